"""Where a Transformer looks: the attention probabilities of every layer and head over a sequence.

Nothing about masks or positions is computed again: every layer's own attention is given the rows of
the identity matrix as values, and its output is how much of every timestep each query takes.
"""

import copy

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.modules import set_recurrent_mode

from yamame.trajectory.attention import Attend
from yamame.trajectory.transformer import TransformerEncoder


@torch.no_grad()
def attention_maps(encoder: TransformerEncoder, sequence: TensorDictBase) -> Tensor:
    """Attention probabilities of a sequence.

    Row i of a map sums to 1 and tells how the i-th timestep weighs the timesteps up to itself since
    the last start. Multiplied by the values of its layer and head, a map gives the output of that
    head. Memory grows with L squared.

    Args:
        encoder: A Transformer; a copy of it is asked, in evaluation mode.
        sequence: ``[*, L]``, with what the encoder reads.

    Returns:
        ``[layers, *, H, L, L]``.

    Raises:
        ValueError: If this is another encoder.

    >>> from tensordict import TensorDict
    >>> encoder = TransformerEncoder(3, d_model=8, num_heads=2, num_layers=4)
    >>> attention_maps(encoder, TensorDict({"features": torch.zeros(5, 3)}, [5])).shape
    torch.Size([4, 2, 5, 5])
    """
    if not isinstance(encoder, TransformerEncoder):
        kind = type(encoder).__name__
        raise ValueError(f"attention_maps: encoder must be a TransformerEncoder, got {kind}")
    reader = copy.deepcopy(encoder).eval()
    per_layer: list[Tensor] = []

    def recorded(attend: Attend) -> Attend:
        def attend_and_record(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            identity = torch.eye(k.shape[2], dtype=v.dtype, device=v.device).expand(
                *k.shape[:3], -1
            )
            per_layer.append(attend(q, k, identity))
            return attend(q, k, v)

        return attend_and_record

    def hook(module: nn.Module, args: tuple) -> tuple:
        x, attend, *rest = args
        return x, recorded(attend), *rest

    for layer in reader.layers:
        layer.register_forward_pre_hook(hook)
    with set_recurrent_mode(True):
        reader(sequence.copy())
    maps = torch.stack(per_layer)
    return maps.reshape(len(maps), *sequence.batch_size[:-1], *maps.shape[2:])
