"""Inputs of a timestep encoder, derived from the observation spec of an environment."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, get_args

import torch
from tensordict import NestedKey, unravel_key
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical
from torchrl.data.tensor_specs import TensorSpec

from yamame.checks import require, require_at_least, require_choice
from yamame.keys import NOT_INPUTS

Kind = Literal["vector", "image", "tokens"]

MIN_FLOAT_IMAGE = 8
"""Fewest rows and columns of an image of floats. Smaller arrays of floats are vectors."""


@dataclass(frozen=True)
class Input:
    """Shape and kind of one policy input.

    Args:
        shape: Shape at one timestep, without batch dimensions; ``()`` is one number.
        kind: ``"vector"``: magnitudes (floats, bools, integers). ``"image"``: pixels. ``"tokens"``:
            integers that are names, without order or distance.
        num_tokens: Size of the vocabulary of tokens; None for the other kinds.
        max_value: Upper bound of floating point pixels; None for uint8 pixels and other kinds.

    Raises:
        ArgumentError: A dimension is empty, an image does not have 2 to 4 dimensions, or
            ``num_tokens`` or ``max_value`` does not fit the kind.

    >>> Input((2, 3)).size
    6
    """

    shape: tuple[int, ...]
    kind: Kind = "vector"
    num_tokens: int | None = None
    max_value: float | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        # A list is accepted, and would make the frozen dataclass unhashable.
        object.__setattr__(self, "shape", tuple(self.shape))
        require_choice("Input", "kind", self.kind, get_args(Kind))
        is_filled = min(self.shape, default=1) >= 1
        require("Input", "shape", self.shape, is_filled, "have positive dimensions")
        if self.kind == "image":
            is_image = len(self.shape) in (2, 3, 4)
            require("Input", "shape", self.shape, is_image, "have 2 to 4 dimensions for an image")
        fits = self.max_value is None or (self.kind == "image" and self.max_value > 0)
        require("Input", "max_value", self.max_value, fits, "be positive, or None for no image")
        if self.kind == "tokens":
            require_at_least("Input", 1, num_tokens=self.num_tokens or 0)
        else:
            is_unset = self.num_tokens is None
            require("Input", "num_tokens", self.num_tokens, is_unset, f"be None for {self.kind}")

    @property
    def size(self) -> int:
        """Count of numbers per timestep."""
        return math.prod(self.shape)


def inputs_from_spec(
    observation_spec: Composite, *, batch_dims: int, exclude: Collection[NestedKey] = NOT_INPUTS
) -> dict[NestedKey, Input]:
    """Return the policy inputs of an environment, in sorted key order.

    All tensor leaves are inputs, at any depth, except the excluded ones. Keys are compared whole:
    ``"goal"`` does not exclude ``("robot", "goal")``. A `Categorical` that is not bool holds
    tokens. Pixels with two to four dimensions are an image: uint8, and floats whose bounds are 0
    and either 1 or at least 255, of at least `MIN_FLOAT_IMAGE` rows and columns. Everything else is
    a vector.

    Args:
        observation_spec: ``env.observation_spec``.
        batch_dims: Number of leading environment dimensions of each leaf, ``len(env.batch_size)``.
        exclude: Keys to leave out.

    Raises:
        ArgumentError: No input remains, or a leaf has fewer dimensions than ``batch_dims``.

    >>> from torchrl.data import Unbounded
    >>> spec = Composite(time=Unbounded((8, 1)), words=Categorical(30, shape=(8, 9)), shape=(8,))
    >>> for key, value in inputs_from_spec(spec, batch_dims=1).items():
    ...     print(key, value)
    time Input(shape=(1,), kind='vector', num_tokens=None)
    words Input(shape=(9,), kind='tokens', num_tokens=30)
    """
    owner = "inputs_from_spec"
    excluded = {unravel_key(key) for key in exclude}
    # Strings and tuples cannot be compared.
    keys = sorted(
        observation_spec.keys(True, True), key=lambda key: key if isinstance(key, tuple) else (key,)
    )
    inputs: dict[NestedKey, Input] = {}
    for key in keys:
        leaf = observation_spec[key]
        is_tensor = isinstance(leaf.dtype, torch.dtype)
        if key in excluded or not is_tensor:
            continue
        condition = f"be at most the dimensions of {key!r} {tuple(leaf.shape)}"
        require(owner, "batch_dims", batch_dims, batch_dims <= len(leaf.shape), condition)
        inputs[key] = _input_of(leaf, tuple(leaf.shape[batch_dims:]))
    names = sorted(map(str, excluded))
    require(owner, "exclude", names, bool(inputs), "leave at least one observation")
    return inputs


def _input_of(leaf: TensorSpec, shape: tuple[int, ...]) -> Input:
    # Binary and MultiCategorical derive from Categorical, but bits are magnitudes, and several
    # vocabularies do not fit into one table.
    is_categorical = isinstance(leaf, Categorical)
    is_categorical = is_categorical and not isinstance(leaf, Binary | MultiCategorical)
    if is_categorical and leaf.dtype != torch.bool:
        return Input(shape, "tokens", num_tokens=int(leaf.n))
    if not is_categorical and leaf.dtype == torch.uint8 and len(shape) in (2, 3, 4):
        return Input(shape, "image")
    max_value = _largest_pixel(leaf)
    if max_value is not None and len(shape) in (2, 3, 4):
        sides = [min(pair) for pair in pairwise(shape)]
        if max(sides) >= MIN_FLOAT_IMAGE:
            return Input(shape, "image", max_value=max_value)
    return Input(shape)


def _largest_pixel(leaf: TensorSpec) -> float | None:
    """Return the upper bound of a spec with the range of floating point pixels, else None."""
    if not isinstance(leaf, Bounded) or not leaf.dtype.is_floating_point:
        return None
    low, high = leaf.space.low, leaf.space.high
    highest = float(high.max())
    is_uniform = bool((low == 0).all() and (high == highest).all())
    is_range = highest == 1 or 255 <= highest < math.inf
    return highest if is_uniform and is_range else None
