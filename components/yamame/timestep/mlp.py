"""MLP timestep encoder: everything seen at one timestep becomes one feature vector.

Reads its inputs, ``goal`` ``[*B, K, d]`` when there is a goal encoder, and ``mask`` ``[*B, 1]``
bool when present. Writes ``features`` ``[*B, E]``. Each timestep is encoded on its own, so acting
(``[N]``) and training (``[B, L]``) give the same features. Nothing is remembered but the
normaliser's statistics, which move in training mode only and never from padding.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import torch
from tensordict import NestedKey, TensorDictBase, unravel_key
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.modules import MLP

from yamame.checks import require, require_at_least
from yamame.normalization import RunningNormalizer


class Sized(Protocol):
    """An input that knows its size, such as `yamame.timestep.Input`."""

    @property
    def size(self) -> int:
        """Numbers per timestep."""


class MLPTimestepEncoder(TensorDictModuleBase):
    """Concatenates the inputs of a timestep and passes them through an MLP.

    Vectors are cast to float32, flattened, concatenated and normalised. Behind them come the
    embeddings of inputs that have an encoder of their own, then that of the goal. Then
    ``num_layers`` hidden layers with LeakyReLU, a linear output and LayerNorm. The feed-forward
    timestep encoder of AMAGO (arXiv 2310.09971).

    Args:
        in_sizes: Flat size of each vector key, in order, or what has it as ``size``; an image or
            tokens listed here are flattened like any numbers. See
            `yamame.timestep.inputs_from_spec`.
        encoders: Module of each further key, in order: maps ``[*, ...]`` to ``[*, E_key]`` and has
            the attribute ``out_features``.
        goal_encoder: Maps ``goal`` ``[*, K, d]`` and a mask ``[*]`` (or None) to ``[*, E_goal]``
            and has the attribute ``out_features``. Without one the goal is not read.
        hidden_size: Width of the hidden layers.
        out_size: E, size of the features.
        num_layers: Number of hidden layers.
        normalize: Whether vectors pass a `RunningNormalizer`.
        goal_key, mask_key, out_key: Keys of the instruction, of the mask of real timesteps and of
            the features.

    Raises:
        ValueError: If there is no input, a key is listed twice or a size is not positive; at run
            time if an input is missing or has another size.

    >>> from tensordict import TensorDict
    >>> encoder = MLPTimestepEncoder({"observation": 3, "trial_start": 1}, out_size=8)
    >>> td = TensorDict(observation=torch.zeros(5, 3), trial_start=torch.ones(5, 1).bool(), batch_size=5)
    >>> encoder(td)["features"].shape
    torch.Size([5, 8])
    """

    parameter_roles: ClassVar[Mapping[str, str]] = {"mlp.0": "input"}

    def __init__(
        self,
        in_sizes: Mapping[NestedKey, int | Sized],
        *,
        encoders: Mapping[NestedKey, nn.Module] | None = None,
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
        name = type(self).__name__
        require_at_least(name, 1, hidden_size=hidden_size, out_size=out_size, num_layers=num_layers)
        self.in_sizes: dict[NestedKey, int] = {
            unravel_key(key): size if isinstance(size, int) else size.size
            for key, size in in_sizes.items()
        }
        encoders = {unravel_key(key): module for key, module in (encoders or {}).items()}
        known = (self.in_sizes or encoders) and min(self.in_sizes.values(), default=1) >= 1
        require(name, "in_sizes", self.in_sizes, bool(known), "name inputs of positive size")
        twice = sorted(map(str, self.in_sizes.keys() & encoders.keys()))
        require(name, "encoders", twice, not twice, "be of other keys than in_sizes")

        self.goal_key, self.mask_key = goal_key, mask_key
        self.encoded_keys = list(encoders)
        self.encoders = nn.ModuleList(encoders.values())
        self.goal_encoder = goal_encoder
        self.in_keys = [*self.in_sizes, *encoders, *([] if goal_encoder is None else [goal_key])]
        self.out_keys, self.out_features = [out_key], out_size

        width = sum(self.in_sizes.values())
        self.normalizer = RunningNormalizer(width) if normalize and width else None
        parts = {f"encoders[{key!r}]": module for key, module in encoders.items()}
        if goal_encoder is not None:
            parts["goal_encoder"] = goal_encoder
        for part, module in parts.items():
            out_features: Any = module.out_features
            integer = isinstance(out_features, int)
            require(name, f"{part}.out_features", out_features, integer, "be an int")
            width += out_features
        self.mlp = MLP(
            width, out_size, depth=num_layers, num_cells=hidden_size, activation_class=nn.LeakyReLU
        )
        self.norm = nn.LayerNorm(out_size)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the features of every timestep of a tensordict of any batch size."""
        mask = tensordict.get(self.mask_key, None)
        if mask is not None:
            mask = mask.reshape(tensordict.batch_size)
        parts: list[Tensor] = []
        if self.in_sizes:
            x = torch.cat([self._vector(tensordict, key) for key in self.in_sizes], dim=-1)
            parts.append(x if self.normalizer is None else self.normalizer(x, mask))
        for key, encoder in zip(self.encoded_keys, self.encoders, strict=True):
            parts.append(self._embedding(tensordict, key, encoder))
        if self.goal_encoder is not None:
            parts.append(self.goal_encoder(self._get(tensordict, self.goal_key), mask))
        features = self.norm(self.mlp(torch.cat(parts, dim=-1)))
        return tensordict.set(self.out_keys[0], features)

    def _vector(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        value, size = self._get(tensordict, key), self.in_sizes[key]
        if value.shape[tensordict.batch_dims :].numel() != size:
            raise ValueError(
                f"{type(self).__name__}: input {key!r} must hold {size} numbers per timestep, got shape "
                f"{tuple(value.shape)} at batch size {tuple(tensordict.batch_size)}"
            )
        return value.reshape(*tensordict.batch_size, size).to(torch.float32)

    def _embedding(self, tensordict: TensorDictBase, key: NestedKey, encoder: nn.Module) -> Tensor:
        value = self._get(tensordict, key)
        embedding: Tensor = encoder(value)
        # An encoder takes any batch dimensions: one too many would pass as part of the batch.
        if embedding.shape[:-1] != tensordict.batch_size:
            raise ValueError(
                f"{type(self).__name__}: input {key!r} must hold one of what its encoder reads per timestep, got "
                f"shape {tuple(value.shape)} at batch size {tuple(tensordict.batch_size)}"
            )
        return embedding

    def _get(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        value = tensordict.get(key, None)
        if value is None:
            raise ValueError(
                f"{type(self).__name__}: input {key!r} must be in the tensordict, got "
                f"{sorted(map(str, tensordict.keys()))}"
            )
        return value
