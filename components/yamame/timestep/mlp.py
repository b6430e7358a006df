"""MLP timestep encoder: all inputs of one timestep to one feature vector.

Reads its inputs, ``goal`` ``[*B, K, d]`` if there is a goal encoder, and ``mask`` ``[*B, 1]`` bool
if present. Writes ``features`` ``[*B, E]``. Each timestep is encoded by itself, so acting (``[N]``)
and training (``[B, L]``) give the same features. The only state are the normaliser's statistics,
which are updated in training mode and never from padding.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, Protocol

import torch
from tensordict import NestedKey, TensorDictBase, unravel_key
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.modules import MLP

from yamame.checks import (
    Activation,
    ArgumentError,
    NumLayers,
    PositiveFloat,
    PositiveInt,
    check_bounds,
    require,
    require_activation,
    require_tensordict,
)
from yamame.normalization import RunningNormalizer


class Sized(Protocol):
    """Input with a size, such as `yamame.timestep.Input`."""

    @property
    def size(self) -> int:
        """Count of numbers per timestep."""


class MLPTimestepEncoder(TensorDictModuleBase):
    """Multilayer perceptron over the concatenated inputs of a timestep (AMAGO, arXiv 2310.09971).

    Vectors are cast to float32, flattened, concatenated and normalised. The embeddings of inputs
    with an encoder of their own follow, and then the embedding of the goal. They pass
    ``num_layers`` hidden layers, a linear output and LayerNorm.

    Args:
        in_sizes: Flat size of each vector key, in order, or an object with the attribute ``size``.
            Images or tokens listed here are flattened. See `yamame.timestep.inputs_from_spec`.
        encoders: Module of each further key, in order. It maps ``[*, ...]`` to ``[*, E_key]`` and
            has the attribute ``out_features``.
        goal_encoder: Maps ``goal`` ``[*, K, d]`` and a mask ``[*]`` (or None) to ``[*, E_goal]``
            and has the attribute ``out_features``. Without one the goal is not read.
        hidden_size: Width of the hidden layers.
        out_size: Size E of the features.
        num_layers: Number of hidden layers.
        normalize: Normalise vectors by running statistics (`RunningNormalizer`).
        clip: Largest magnitude of a normalised number.
        activation: Activation of the hidden layers (`yamame.checks.Activation`).
        goal_key: Key of the instruction.
        mask_key: Key of the mask of real timesteps.
        out_key: Key of the features.

    Raises:
        ArgumentError: There is no input, a key is listed twice, or a size is not positive. When
            called: an input is missing or has another size.

    >>> from tensordict import TensorDict
    >>> encoder = MLPTimestepEncoder({"observation": 3, "trial_start": 1}, out_size=8)
    >>> timestep = TensorDict(observation=torch.zeros(5, 3), batch_size=5)
    >>> timestep["trial_start"] = torch.ones(5, 1, dtype=torch.bool)
    >>> encoder(timestep)["features"].shape
    torch.Size([5, 8])
    """

    parameter_roles: ClassVar[Mapping[str, str]] = {"mlp.0": "input"}

    @check_bounds
    def __init__(
        self,
        in_sizes: Mapping[NestedKey, int | Sized],
        *,
        encoders: Mapping[NestedKey, nn.Module] | None = None,
        goal_encoder: nn.Module | None = None,
        hidden_size: PositiveInt = 128,
        out_size: PositiveInt = 64,
        num_layers: NumLayers = 2,
        normalize: bool = True,
        clip: PositiveFloat = 10.0,
        activation: Activation = "leaky_relu",
        goal_key: NestedKey = "goal",
        mask_key: NestedKey = "mask",
        out_key: NestedKey = "features",
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        self.in_sizes: dict[NestedKey, int] = {}
        for key, size in in_sizes.items():
            self.in_sizes[unravel_key(key)] = size if isinstance(size, int) else size.size
        encoders = {unravel_key(key): module for key, module in (encoders or {}).items()}
        has_inputs = bool(self.in_sizes or encoders)
        is_positive = min(self.in_sizes.values(), default=1) >= 1
        condition = "name inputs of positive size"
        require(owner, "in_sizes", self.in_sizes, has_inputs and is_positive, condition)
        repeated = sorted(map(str, self.in_sizes.keys() & encoders.keys()))
        require(owner, "encoders", repeated, not repeated, "have other keys than in_sizes")

        self.goal_key = goal_key
        self.mask_key = mask_key
        self.encoded_keys = list(encoders)
        self.encoders = nn.ModuleList(encoders.values())
        self.goal_encoder = goal_encoder
        self.in_keys = [*self.in_sizes, *encoders]
        if goal_encoder is not None:
            self.in_keys.append(goal_key)
        self.out_keys = [out_key]
        self.out_features = out_size

        width = sum(self.in_sizes.values())
        self.normalizer = RunningNormalizer(width, clip=clip) if normalize and width > 0 else None
        parts = {f"encoders[{key!r}]": module for key, module in encoders.items()}
        if goal_encoder is not None:
            parts["goal_encoder"] = goal_encoder
        for name, module in parts.items():
            out_features: Any = module.out_features
            # A custom module may hold a tensor or a module under this name.
            is_int = isinstance(out_features, int)
            require(owner, f"{name}.out_features", out_features, is_int, "be an int")
            width += out_features
        self.mlp = MLP(
            width,
            out_size,
            depth=num_layers,
            num_cells=hidden_size,
            activation_class=getattr(nn, require_activation(owner, activation)),
        )
        self.norm = nn.LayerNorm(out_size)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the features of every timestep of a TensorDict of any batch size."""
        require_tensordict(type(self).__name__, tensordict)
        mask = tensordict.get(self.mask_key, None)
        if mask is not None:
            mask = mask.reshape(tensordict.batch_size)

        parts: list[Tensor] = []
        if self.in_sizes:
            vectors = [self._vector(tensordict, key) for key in self.in_sizes]
            vector = torch.cat(vectors, dim=-1)
            if self.normalizer is not None:
                vector = self.normalizer(vector, mask)
            parts.append(vector)
        for key, encoder in zip(self.encoded_keys, self.encoders, strict=True):
            parts.append(self._embedding(tensordict, key, encoder))
        if self.goal_encoder is not None:
            goal = self._get(tensordict, self.goal_key)
            parts.append(self.goal_encoder(goal, mask))

        features = self.norm(self.mlp(torch.cat(parts, dim=-1)))
        return tensordict.set(self.out_keys[0], features)

    def _vector(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        """Return an input as float32 ``[*B, size]``."""
        value = self._get(tensordict, key)
        size = self.in_sizes[key]
        batch_size = tensordict.batch_size
        if value.shape != (*batch_size, size):
            if value.shape[len(batch_size) :].numel() != size:
                self._refuse_shape(tensordict, key, value, f"hold {size} numbers per timestep")
            value = value.reshape(*batch_size, size)
        return value.to(torch.float32)

    def _embedding(self, tensordict: TensorDictBase, key: NestedKey, encoder: nn.Module) -> Tensor:
        """Return the embedding ``[*B, E_key]`` of an input."""
        value = self._get(tensordict, key)
        embedding: Tensor = encoder(value)
        # An encoder accepts any batch dimensions, so a superfluous one would pass as a part of the
        # batch.
        if embedding.shape[:-1] != tensordict.batch_size:
            self._refuse_shape(tensordict, key, value, "hold one input of its encoder per timestep")
        return embedding

    def _refuse_shape(
        self, tensordict: TensorDictBase, key: NestedKey, value: Tensor, condition: str
    ) -> NoReturn:
        batch_size = tuple(tensordict.batch_size)
        owner = type(self).__name__
        condition = f"{condition} at batch size {batch_size}"
        raise ArgumentError(owner, f"input {key!r}", tuple(value.shape), condition)

    def _get(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        value = tensordict.get(key, None)
        if value is None:
            names = sorted(map(str, tensordict.keys()))
            raise ArgumentError(
                type(self).__name__, f"input {key!r}", names, "be in the tensordict"
            )
        return value
