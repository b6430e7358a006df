"""What an action is: from a batch to the values that Gymnasium environments take.

==================================  =====================================================
space                               batch of R actions
==================================  =====================================================
``Discrete``                        int64 ``[R]``, counted from 0
``MultiDiscrete``                   int64 ``[R, n]``, counted from 0
``MultiBinary``                     int8 ``[R, n]``
``Box``, real numbers               float32 ``[R, n]`` within the bounds
``Dict``, ``Tuple``                 of ``Box`` alone as one ``Box``, of others as one
                                    ``MultiDiscrete`` (a bit has two values)
==================================  =====================================================

Only NumPy and Gymnasium are needed here.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Array = npt.NDArray[Any]
_MOST_VALUES = 65536  # of a whole number that is chosen as one of so many actions

Kind = Literal["discrete", "multi_discrete", "multi_binary", "box"]


@dataclass(frozen=True)
class Part:
    """The columns of a batch that one simple space takes.

    Attributes:
        shape: Shape of the value.
        dtype: Dtype of the value.
        low: Smallest values, flat.
        high: Greatest values, flat.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: Array
    high: Array

    def values(self, columns: Array) -> list[Any]:
        """The values of ``columns`` ``[R, n]``, as new arrays."""
        values = columns if self.dtype.kind == "f" else columns + self.low
        return list(values.astype(self.dtype).reshape(len(columns), *self.shape))


@dataclass(frozen=True)
class ActionConverter:
    """How a batch of actions is taken apart.

    Attributes:
        kind: What a batch looks like.
        parts: The simple spaces, in the order of their columns.
        tree: How values are put together: an index of ``parts``, or a dict or tuple of such.
    """

    kind: Kind
    parts: tuple[Part, ...]
    tree: Any

    @property
    def sizes(self) -> list[int]:
        """Number of actions of each choice."""
        return [n for part in self.parts for n in (part.high - part.low + 1).tolist()]

    @cached_property
    def bounds(self) -> tuple[Array, Array]:
        """The least and the greatest action of all columns of a batch, inclusive."""
        if self.kind == "box":
            low = np.concatenate([_within(part.low, part.high) for part in self.parts])
            return low, np.concatenate([_within(part.high, part.low) for part in self.parts])
        high = np.array(self.sizes, np.int64) - 1
        return np.zeros_like(high), high

    @property
    def dtype(self) -> Any:
        """The dtype of a batch."""
        return {"box": np.float32, "multi_binary": np.int8}.get(self.kind, np.int64)

    @property
    def least(self) -> Array:
        """An action within its bounds."""
        low = self.bounds[0]
        return low[0] if self.kind == "discrete" else low

    def nothing(self, num_envs: int) -> Array:
        """A batch of zeros."""
        return np.zeros(num_envs if self.kind == "discrete" else (num_envs, len(self.bounds[0])), self.dtype)

    def wrong(self, batch: Array) -> Array:
        """Which actions are out of bounds: ``[R]`` bool."""
        low, high = self.bounds
        columns = batch.reshape(len(batch), len(low))
        return ~np.logical_and.reduce((columns >= low) & (columns <= high), axis=1)

    def values(self, batch: Array) -> list[Any]:
        """What the environments of a batch of envs take."""
        if self.kind == "discrete":
            return (batch + self.parts[0].low[0]).tolist()
        columns, start = [], 0
        for part in self.parts:
            columns.append(part.values(batch[:, start : start + len(part.low)]))
            start += len(part.low)
        if self.tree == 0:
            return columns[0]
        return [_assemble(self.tree, row) for row in zip(*columns, strict=True)]


def _within(bound: Array, other: Array) -> Array:
    """Bounds as float32, moved towards the other ones where rounding has moved them outwards."""
    with np.errstate(over="ignore"):
        rounded = bound.astype(np.float32)
    outside = np.where(other > bound, rounded < bound, rounded > bound)
    return np.where(outside, np.nextafter(rounded, other.astype(np.float32)), rounded).astype(np.float32)


def _assemble(tree: Any, values: tuple[Any, ...]) -> Any:
    if isinstance(tree, int):
        return values[tree]
    if isinstance(tree, dict):
        return {key: _assemble(part, values) for key, part in tree.items()}
    return tuple(_assemble(part, values) for part in tree)


def read_actions(space: spaces.Space[Any], *, owner: str) -> ActionConverter:
    """How batches of actions are turned into values of a space.

    Args:
        space: The space.
        owner: Whose space it is, for messages.

    Raises:
        ValueError: If there is no such batch for it.
    """
    leaves: list[spaces.Space[Any]] = []
    tree = _tree(space, leaves)
    parts = tuple(_part(leaf, owner) for leaf in leaves)
    continuous = {part.dtype.kind == "f" for part in parts}
    if len(continuous) != 1:
        raise ValueError(
            f"{owner}: action_space must hold only Box spaces of real numbers or none, got {space}; leave "
            "one of them out with a gymnasium.ActionWrapper"
        )
    if continuous == {True}:
        return ActionConverter("box", parts, tree)
    if tree == 0 and isinstance(space, spaces.Discrete):
        return ActionConverter("discrete", parts, tree)
    bits = tree == 0 and isinstance(space, spaces.MultiBinary)
    return ActionConverter("multi_binary" if bits else "multi_discrete", parts, tree)


def _tree(space: spaces.Space[Any], leaves: list[spaces.Space[Any]]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _tree(part, leaves) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_tree(part, leaves) for part in space.spaces)
    leaves.append(space)
    return len(leaves) - 1


def _part(space: spaces.Space[Any], owner: str) -> Part:
    if isinstance(space, spaces.Discrete):
        low = np.array([space.start], np.int64)
        return Part((), np.dtype(np.int64), low, low + int(space.n) - 1)
    if isinstance(space, spaces.MultiDiscrete):
        low = space.start.flatten().astype(np.int64)
        return Part(space.nvec.shape, np.dtype(space.dtype), low, low + space.nvec.flatten() - 1)
    if isinstance(space, spaces.MultiBinary):
        low = np.zeros(int(np.prod(space.shape)), np.int64)
        return Part(tuple(space.shape), np.dtype(space.dtype), low, low + 1)
    if not isinstance(space, spaces.Box) or not space.low.size:
        raise ValueError(
            f"{owner}: action_space must be made of Discrete, MultiDiscrete, MultiBinary, Box, Dict and Tuple, "
            f"got {space}; turn it into one of them with a gymnasium.ActionWrapper"
        )
    dtype = np.dtype(space.dtype)
    wide = np.float64 if dtype.kind == "f" else np.int64
    low, high = space.low.flatten().astype(wide), space.high.flatten().astype(wide)
    with np.errstate(over="ignore"):
        width = (high.astype(np.float64) - low).astype(np.float32)
    if not space.is_bounded() or not np.isfinite(width).all() or not (width > 0).all():
        raise ValueError(
            f"{owner}: action_space must have finite bounds, the lower below the upper, got {space}; set them "
            "with gymnasium.wrappers.RescaleAction or a gymnasium.ActionWrapper"
        )
    if dtype.kind != "f" and (width > _MOST_VALUES).any():
        raise ValueError(
            f"{owner}: action_space must have at most {_MOST_VALUES} values of each whole number, got {space}"
        )
    return Part(tuple(space.shape), dtype, low, high)
