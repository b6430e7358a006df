"""MLP timestep encoder: everything seen at one step, as flat numbers, becomes one feature vector.

Reads the keys of ``in_sizes`` (float, bool or integer, ``[*B, ...]``), ``goal`` ``[*B, K, d]`` when there is
a goal encoder, and ``mask`` ``[*B, 1]`` bool when present. Writes ``features`` ``[*B, E]`` float32. Each
timestep is encoded on its own, so acting (``[N]``) and training (``[B, L]``) give the same features. Nothing
is remembered but the normaliser's statistics, which move in training mode only and never from padding.
"""

from collections.abc import Mapping

import torch
from tensordict import NestedKey, TensorDictBase, unravel_key
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from yamame.timestep.normalizer import RunningNormalizer


class MLPTimestepEncoder(TensorDictModuleBase):
    """Concatenates the inputs of a timestep and passes them through an MLP.

    Inputs are cast to float32, flattened, concatenated in the order of ``in_sizes`` and normalised; the goal
    embedding joins behind the normaliser. Then ``num_layers`` hidden layers with LeakyReLU, a linear output
    and LayerNorm. The feed-forward timestep encoder of AMAGO (arXiv 2310.09971).

    Args:
        in_sizes: Flat size of each input key, in order; see `yamame.timestep.in_sizes_from_spec`.
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

    >>> from tensordict import TensorDict
    >>> encoder = MLPTimestepEncoder({"observation": 3, "trial_start": 1}, out_size=8)
    >>> td = TensorDict(observation=torch.zeros(5, 3), trial_start=torch.ones(5, 1).bool(), batch_size=5)
    >>> encoder(td)["features"].shape
    torch.Size([5, 8])
    """

    def __init__(
        self,
        in_sizes: Mapping[NestedKey, int],
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
        super().__init__()
        if not in_sizes or min(in_sizes.values()) < 1:
            raise ValueError(
                f"MLPTimestepEncoder: in_sizes must name inputs of positive size, got {dict(in_sizes)}"
            )
        for name, value in (("hidden_size", hidden_size), ("out_size", out_size), ("num_layers", num_layers)):
            if value < 1:
                raise ValueError(f"MLPTimestepEncoder: {name} must be positive, got {value}")
        self.in_sizes: dict[NestedKey, int] = {unravel_key(key): size for key, size in in_sizes.items()}
        self.goal_key = goal_key
        self.mask_key = mask_key
        self.in_keys = [*self.in_sizes, *([goal_key] if goal_encoder is not None else [])]
        self.out_keys = [out_key]
        self.out_features = out_size

        flat_size = sum(self.in_sizes.values())
        self.normalizer = RunningNormalizer(flat_size) if normalize else None
        self.goal_encoder = goal_encoder
        width = flat_size if goal_encoder is None else flat_size + _out_features(goal_encoder)
        layers: list[nn.Module] = []
        for _ in range(num_layers):
            layers += [nn.Linear(width, hidden_size), nn.LeakyReLU()]
            width = hidden_size
        self.mlp = nn.Sequential(*layers, nn.Linear(width, out_size), nn.LayerNorm(out_size))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the features of every timestep of a tensordict of any batch size."""
        mask = tensordict.get(self.mask_key, None)
        if mask is not None:
            mask = mask.reshape(tensordict.batch_size)
        x = torch.cat([self._read(tensordict, key, size) for key, size in self.in_sizes.items()], dim=-1)
        if self.normalizer is not None:
            x = self.normalizer(x, mask)
        if self.goal_encoder is not None:
            goal = self._get(tensordict, self.goal_key)
            x = torch.cat([x, self.goal_encoder(goal, mask)], dim=-1)
        return tensordict.set(self.out_keys[0], self.mlp(x))

    def _read(self, tensordict: TensorDictBase, key: NestedKey, size: int) -> Tensor:
        value = self._get(tensordict, key)
        if value.shape[tensordict.batch_dims :].numel() != size:
            raise ValueError(
                f"MLPTimestepEncoder: input {key!r} must hold {size} numbers per timestep, got shape "
                f"{tuple(value.shape)} at batch size {tuple(tensordict.batch_size)}"
            )
        return value.reshape(*tensordict.batch_size, size).to(torch.float32)

    def _get(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        value = tensordict.get(key, None)
        if value is None:
            raise ValueError(
                f"MLPTimestepEncoder: input {key!r} must be in the tensordict, got "
                f"{sorted(map(str, tensordict.keys()))}"
            )
        return value


def _out_features(module: nn.Module) -> int:
    size = module.out_features
    if not isinstance(size, int):
        raise ValueError(f"MLPTimestepEncoder: goal_encoder.out_features must be an int, got {size!r}")
    return size
