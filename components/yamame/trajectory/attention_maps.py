"""Attention probabilities of every layer and head of a Transformer over a sequence.

Masks and positions are not computed again: the attention of each layer is applied to the rows of
the identity matrix as values, and its output is the weight of every timestep for each query.
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
    """Return the attention probabilities of a sequence.

    Row i of a map sums to 1 and contains the weights of the timesteps since the last start up to
    timestep i. Multiplied by the values of its layer and head, a map gives the output of that head.
    Memory grows with L squared.

    Args:
        encoder: A Transformer. A copy of it is used, in eval mode.
        sequence: ``[*, L]``, with the keys that the encoder reads.

    Returns:
        ``[layers, *, H, L, L]``.

    Raises:
        ArgumentError: The encoder is not a Transformer.

    >>> from tensordict import TensorDict
    >>> encoder = TransformerEncoder(3, d_model=8, num_heads=2, num_layers=4)
    >>> attention_maps(encoder, TensorDict({"features": torch.zeros(5, 3)}, [5])).shape
    torch.Size([4, 2, 5, 5])
    """
    if not isinstance(encoder, TransformerEncoder):
        kind = type(encoder).__name__
        raise ValueError(f"attention_maps: encoder must be a TransformerEncoder, got {kind}")
    encoder = copy.deepcopy(encoder).eval()
    per_layer: list[Tensor] = []

    def recorded(attend: Attend) -> Attend:
        def attend_and_record(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            num_keys = k.shape[2]
            identity = torch.eye(num_keys, dtype=v.dtype, device=v.device)
            identity = identity.expand(*k.shape[:3], num_keys)  # [B, H, L, L]
            per_layer.append(attend(q, k, identity))
            return attend(q, k, v)

        return attend_and_record

    def hook(module: nn.Module, args: tuple) -> tuple:
        x, attend, *rest = args
        return x, recorded(attend), *rest

    for layer in encoder.layers:
        layer.register_forward_pre_hook(hook)
    rows = sequence if sequence.ndim > 1 else sequence.unsqueeze(0)
    with set_recurrent_mode(True):
        encoder(rows.copy())
    maps = torch.stack(per_layer)  # [layers, B, H, L, L]
    batch_size = sequence.batch_size[:-1]
    return maps.reshape(len(maps), *batch_size, *maps.shape[2:])
