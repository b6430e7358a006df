"""MLP timestep encoder: everything seen at one step, as flat numbers, becomes one feature vector.

Reads the keys of ``in_sizes`` (any dtype, ``[*B, ...]``); what else is read and written, and the laws that hold,
are those of `yamame.timestep.base`.
"""

from collections.abc import Mapping

from tensordict import NestedKey
from torch import nn

from yamame.timestep.base import TimestepEncoder
from yamame.timestep.specs import Input


class MLPTimestepEncoder(TimestepEncoder):
    """Concatenates the inputs of a timestep and passes them through an MLP.

    Inputs are cast to float32, flattened, concatenated in the order of ``in_sizes`` and normalised, images and
    tokens like any numbers; the goal embedding joins behind the normaliser. Then ``num_layers`` hidden layers
    with LeakyReLU, a linear output and LayerNorm. The feed-forward timestep encoder of AMAGO (arXiv 2310.09971).

    Args:
        in_sizes: Flat size of each input key, or the `Input` itself, in order; see
            `yamame.timestep.inputs_from_spec`.
        goal_encoder: Maps ``goal`` ``[*, K, d]`` and a mask ``[*]`` (or None) to ``[*, E_goal]`` and has the
            attribute ``out_features``. Without one the goal is not read.
        hidden_size: Width of the hidden layers.
        out_size: E, size of the features.
        num_layers: Number of hidden layers.
        normalize: Whether inputs pass a `RunningNormalizer`.
        goal_key: Key of the instruction.
        mask_key: Key of the real-timestep mask.
        out_key: Key of the features.

    Raises:
        ValueError: If a size is not positive; at run time if an input is missing or has another size.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> encoder = MLPTimestepEncoder({"observation": 3, "trial_start": 1}, out_size=8)
    >>> td = TensorDict(observation=torch.zeros(5, 3), trial_start=torch.ones(5, 1).bool(), batch_size=5)
    >>> encoder(td)["features"].shape
    torch.Size([5, 8])
    """

    def __init__(
        self,
        in_sizes: Mapping[NestedKey, int | Input],
        *,
        goal_encoder: nn.Module | None = None,
        hidden_size: int = 128,
        out_size: int = 64,
        num_layers: int = 2,
        normalize: bool = True,
        goal_key: NestedKey = "goal",
        mask_key: NestedKey = "mask",
        out_key: NestedKey = "features",
    ) -> None:
        sizes = {key: size.size if isinstance(size, Input) else size for key, size in in_sizes.items()}
        if not sizes or min(sizes.values()) < 1:
            raise ValueError(f"MLPTimestepEncoder: in_sizes must name inputs of positive size, got {sizes}")
        super().__init__(
            {key: Input((size,)) for key, size in sizes.items()},
            encoders={},
            goal_encoder=goal_encoder,
            hidden_size=hidden_size,
            out_size=out_size,
            num_layers=num_layers,
            normalize=normalize,
            goal_key=goal_key,
            mask_key=mask_key,
            out_key=out_key,
        )
