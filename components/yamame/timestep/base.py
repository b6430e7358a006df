"""What timestep encoders share: reading a timestep's entries, normaliser, goal embedding and trunk.

Reads the input keys, ``goal`` ``[*B, K, d]`` when there is a goal encoder, and ``mask`` ``[*B, 1]`` bool when
present. Writes ``features`` ``[*B, E]`` float32. Each timestep is encoded on its own, so acting (``[N]``) and
training (``[B, L]``) give the same features. Nothing is remembered but the normaliser's statistics, which move in
training mode only and never from padding.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase, unravel_key
from torch import Tensor, nn

from yamame.preparable import Preparable
from yamame.product import Product
from yamame.rows import in_row_blocks
from yamame.timestep.normalizer import RunningNormalizer
from yamame.timestep.specs import Input


class TimestepEncoder(Preparable):
    """Normalised vectors, embeddings of the other inputs and of the goal, concatenated, through one MLP.

    Args:
        inputs: Shape and kind of each input key, in order.
        encoders: Module of each input that is no vector: maps ``[*, ...]`` to ``[*, E_key]`` and has the
            attribute ``out_features``. All inputs without one are flattened to one vector.
        goal_encoder: Maps ``goal`` ``[*, K, d]`` and a mask ``[*]`` (or None) to ``[*, E_goal]`` and has the
            attribute ``out_features``. Without one the goal is not read.
        hidden_size: Width of the trunk's hidden layers.
        out_size: E, size of the features.
        num_layers: Number of the trunk's hidden layers.
        normalize: Whether vectors pass a `RunningNormalizer`.
        goal_key: Key of the instruction.
        mask_key: Key of the real-timestep mask.
        out_key: Key of the features.

    Raises:
        ValueError: If a size is not positive; at run time if an input is missing or has another size.
    """

    def __init__(
        self,
        inputs: Mapping[NestedKey, Input],
        *,
        encoders: Mapping[NestedKey, nn.Module],
        goal_encoder: nn.Module | None,
        hidden_size: int,
        out_size: int,
        num_layers: int,
        normalize: bool,
        goal_key: NestedKey,
        mask_key: NestedKey,
        out_key: NestedKey,
    ) -> None:
        super().__init__()
        sizes = {"hidden_size": hidden_size, "out_size": out_size, "num_layers": num_layers}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{type(self).__name__}: {name} must be positive, got {value}")
        self.inputs: dict[NestedKey, Input] = {unravel_key(key): value for key, value in inputs.items()}
        modules = {unravel_key(key): module for key, module in encoders.items()}
        self.encoded_keys: list[NestedKey] = [key for key in self.inputs if key in modules]
        self.in_sizes: dict[NestedKey, int] = {
            key: value.size for key, value in self.inputs.items() if key not in modules
        }
        self.goal_key = goal_key
        self.mask_key = mask_key
        self.in_keys = [*self.inputs, *([goal_key] if goal_encoder is not None else [])]
        self.out_keys = [out_key]
        self.out_features = out_size

        width = sum(self.in_sizes.values())
        self.normalizer = RunningNormalizer(width) if normalize and width else None
        self.encoders = nn.ModuleList(modules[key] for key in self.encoded_keys)
        self.goal_encoder = goal_encoder
        for key, module in zip(self.encoded_keys, self.encoders, strict=True):
            width += self._width(f"encoders[{key!r}]", module)
        if goal_encoder is not None:
            width += self._width("goal_encoder", goal_encoder)
        layers: list[nn.Module] = []
        for _ in range(num_layers):
            layers += [nn.Linear(width, hidden_size), nn.LeakyReLU(inplace=True)]
            width = hidden_size
        self.mlp = nn.Sequential(*layers, nn.Linear(width, out_size), nn.LayerNorm(out_size))

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
            parts.append(encoder(self._shaped(tensordict, key)))
        if self.goal_encoder is not None:
            parts.append(self.goal_encoder(self._get(tensordict, self.goal_key), mask))
        x = torch.cat(parts, dim=-1)
        mlp = self.mlp if self._prepared is None else self._prepared
        features = in_row_blocks(mlp, x.reshape(-1, x.shape[-1]))
        return tensordict.set(self.out_keys[0], features.view(*x.shape[:-1], self.out_features))

    def _prepare(self) -> Callable[[Tensor], Tensor] | None:
        """The trunk in a lower precision; its input and the LayerNorm at its end keep theirs."""
        dtype = self._compute_dtype
        if dtype is None:
            return None
        layers: list[Any] = list(self.mlp)
        norm = layers.pop()
        products = [
            Product(layer.weight.t(), layer.bias, dtype, compiled=self._compiled) for layer in layers[::2]
        ]

        def trunk(x: Tensor) -> Tensor:
            for product, activation in zip(products[:-1], layers[1::2], strict=True):
                x = activation(product(x.to(dtype)))
            features: Tensor = norm(products[-1](x.to(dtype)).to(norm.weight.dtype))
            return features

        return trunk

    def _vector(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        value, size = self._get(tensordict, key), self.in_sizes[key]
        if value.shape[tensordict.batch_dims :].numel() != size:
            raise ValueError(
                f"{type(self).__name__}: input {key!r} must hold {size} numbers per timestep, got shape "
                f"{tuple(value.shape)} at batch size {tuple(tensordict.batch_size)}"
            )
        return value.reshape(*tensordict.batch_size, size).to(torch.float32)

    def _shaped(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        value, shape = self._get(tensordict, key), self.inputs[key].shape
        if value.shape[tensordict.batch_dims :] != shape:
            raise ValueError(
                f"{type(self).__name__}: input {key!r} must have shape {shape} per timestep, got shape "
                f"{tuple(value.shape)} at batch size {tuple(tensordict.batch_size)}"
            )
        return value

    def _get(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        value = tensordict.get(key, None)
        if value is None:
            raise ValueError(
                f"{type(self).__name__}: input {key!r} must be in the tensordict, got "
                f"{sorted(map(str, tensordict.keys()))}"
            )
        return value

    def _width(self, name: str, module: nn.Module) -> int:
        size = module.out_features
        if not isinstance(size, int):
            raise ValueError(f"{type(self).__name__}: {name}.out_features must be an int, got {size!r}")
        return size
