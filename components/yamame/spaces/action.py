"""Actions: from values of a space to a batch, and back.

==================================  =====================================================
kind                                batch of R actions
==================================  =====================================================
``discrete``                        int64 ``[R]``, counted from 0
``multi_discrete``                  int64 ``[R, n]``, counted from 0
``multi_binary``                    int8 ``[R, n]``
``box``                             float32 ``[R, n]`` within the bounds
==================================  =====================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from yamame.spaces.arrays import (
    Array,
    SpaceError,
    child,
    first_wrong,
    from_one_hots,
    is_tree,
    range_text,
    text_of,
    whole,
)

Kind = Literal["discrete", "multi_discrete", "multi_binary", "box"]

_SLACK = 1e-5  # of the range of a number
_ROUNDING = 4 * float(np.finfo(np.float32).eps)  # of a bound


@dataclass(frozen=True, eq=False)
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

    @property
    def is_box(self) -> bool:
        """Return whether the values are real numbers."""
        return self.dtype.kind == "f"

    @property
    def sizes(self) -> Array:
        """Number of values of each whole number."""
        return self.high - self.low + 1

    def values(self, columns: Array) -> list[Any]:
        """The values of ``columns`` ``[R, n]``, as new arrays."""
        values = columns if self.is_box else columns + self.low
        return list(values.astype(self.dtype).reshape(len(columns), *self.shape))

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether one value may have this shape: its own, or one with or without a dimension
        of size 1.
        """
        return shape == self.shape or (self.shape in ((), (1,)) and shape in ((), (1,)))

    def takes_one_hots(self, shape: tuple[int, ...]) -> bool:
        """Return whether one value of this shape is the one-hots of all choices side by side."""
        return not self.is_box and shape == (int(self.sizes.sum()),)

    def columns(self, values: Array, label: str, *, indices: bool = False) -> Array:
        """Converts values ``[R, *shape]`` to columns ``[R, n]``: the inverse of `values`.

        Real numbers that are outside the bounds by no more than rounding become the bounds.

        Args:
            values: Values of the space.
            label: Name of the values in messages.
            indices: Whole numbers count from 0 instead of from ``low``.

        Raises:
            ValueError: If a value is outside the bounds.
        """
        values = values.reshape(len(values), len(self.low))
        low, high = self.low, self.high
        if indices and not self.is_box:
            low, high = np.zeros_like(low), high - low

        slack: Any = 0
        if self.is_box:
            values = values.astype(np.float64)
            magnitude = np.maximum(abs(low), abs(high))
            slack = np.maximum(_SLACK * (high - low), _ROUNDING * magnitude)
        else:
            values = whole(values)
        good = (values >= low - slack) & (values <= high + slack)  # False for NaN, too
        if values.dtype.kind == "f" and not self.is_box:
            good &= np.trunc(values) == values
        if not good.all():
            numbers = "" if self.is_box else "whole numbers "
            condition = f"be {numbers}in {range_text(low, high)}"
            raise SpaceError(f"{label} must {condition}, got {first_wrong(values, ~good)}")
        return values.clip(low, high) if self.is_box else values.astype(np.int64) - low


@dataclass(frozen=True, eq=False)
class ActionEntry:
    """The actions of a space, and how a batch of them is taken apart.

    Attributes:
        kind: What a batch looks like.
        parts: The simple spaces, in the order of their columns.
        tree: How values are put together: an index of ``parts``, or a dict or tuple of such.
        box_dtype: Dtype of a batch of kind ``box``.

    >>> dice = ActionEntry("discrete", (Part((), np.dtype("int64"), np.array([1]), np.array([4])),), 0)
    >>> dice.read(np.array([1, 4]), label="action"), dice.values(np.array([0, 3]))
    (array([0, 3]), [1, 4])
    """

    kind: Kind
    parts: tuple[Part, ...]
    tree: Any
    box_dtype: str = "float32"

    @property
    def sizes(self) -> list[int]:
        """Number of actions of each choice."""
        return [n for part in self.parts for n in part.sizes.tolist()]

    @cached_property
    def bounds(self) -> tuple[Array, Array]:
        """The least and the greatest action of all columns of a batch, inclusive."""
        if self.kind == "box":
            low = [_within(part.low, part.high, self.box_dtype) for part in self.parts]
            high = [_within(part.high, part.low, self.box_dtype) for part in self.parts]
            return np.concatenate(low), np.concatenate(high)
        greatest = np.array(self.sizes, np.int64) - 1
        return np.zeros_like(greatest), greatest

    @property
    def dtype(self) -> Any:
        """The dtype of a batch."""
        return {"box": np.dtype(self.box_dtype), "multi_binary": np.int8}.get(self.kind, np.int64)

    @property
    def least(self) -> Array:
        """An action within its bounds."""
        low = self.bounds[0]
        return low[0] if self.kind == "discrete" else low

    @property
    def counts_from_zero(self) -> bool:
        """Return whether the numbers of the space are those of a batch."""
        return self.kind == "box" or not any(part.low.any() for part in self.parts)

    @property
    def first_numbers(self) -> str:
        """The least numbers of the space, for messages."""
        low = np.concatenate([part.low for part in self.parts])
        return text_of(low) if (low != low[0]).any() else f"{low[0]}"

    def nothing(self, num_envs: int) -> Array:
        """A batch of zeros."""
        return np.zeros(
            num_envs if self.kind == "discrete" else (num_envs, len(self.bounds[0])), self.dtype
        )

    def wrong(self, batch: Array) -> Array:
        """Which actions are out of bounds: ``[R]`` bool."""
        low, high = self.bounds
        columns = batch.reshape(len(batch), len(low))
        return ~np.logical_and.reduce((columns >= low) & (columns <= high), axis=1)

    def values(self, batch: Array) -> list[Any]:
        """The values of the space that a batch stands for, one per row."""
        if self.kind == "discrete":
            return (batch + self.parts[0].low[0]).tolist()
        columns, start = [], 0
        for part in self.parts:
            columns.append(part.values(batch[:, start : start + len(part.low)]))
            start += len(part.low)
        if self.tree == 0:
            return columns[0]
        return [_assemble(self.tree, row) for row in zip(*columns, strict=True)]

    def read(self, values: Any, *, label: str, indices: bool = False) -> Array:
        """A batch ``[R]`` or ``[R, n]`` of values of the space: the inverse of `values`, for arrays
        of R rows.

        Whole numbers may have a floating point dtype, and choices may be given as one-hots
        ``[R, sum(sizes)]``. Real numbers outside the bounds by no more than rounding (1e-5 of their
        range) become the bounds.

        Args:
            values: ``[R, *shape]``; of a ``Dict`` or ``Tuple`` a tree of these, or all columns side
                by side ``[R, n]`` if the space counts from 0.
            label: Name of the action in messages.
            indices: Read whole numbers as those of a batch, counted from 0, not as those of the
                space.

        Raises:
            ValueError: If the shape or dtype is none of these, or a value is not in the space.
        """
        columns = []
        for part, array, name, one_hots in self._arrays(values, label, indices):
            if one_hots:
                columns.append(_from_one_hots(array, part.sizes, name))
            else:
                columns.append(part.columns(array, name, indices=indices))
        low, high = self.bounds
        batch = np.concatenate(columns, 1).astype(self.dtype)
        batch = batch.clip(low, high)  # rounding to float32 may leave the bounds
        return batch[:, 0] if self.kind == "discrete" else batch

    def depends_on_indices(self, values: Any, *, indices: bool) -> bool:
        """Return whether `read` takes some of the values for whole numbers that ``indices`` gives
        another meaning.

        One-hots, real numbers and spaces that count from 0 mean the same either way.

        Raises:
            ValueError: If the shape is none that `read` takes.
        """
        return any(
            part.low.any() and not part.is_box and not one_hots
            for part, _, _, one_hots in self._arrays(values, "action", indices)
        )

    def _arrays(
        self, values: Any, label: str, indices: bool
    ) -> list[tuple[Part, Array, str, bool]]:
        """Arrays in the order of their columns: the part of each, its name, and whether it holds
        one-hots.
        """
        if is_tree(values):
            found = self._parts_of(self.tree, values, label)
            arrays = []
            for number, part in enumerate(self.parts):
                array, name = found[number]
                if len(array) != len(found[0][0]):
                    raise SpaceError(
                        f"{name} must have {len(found[0][0])} rows, as the others, got {len(array)}"
                    )
                one_hots = not part.takes(array.shape[1:])
                if one_hots and not part.takes_one_hots(array.shape[1:]):
                    raise SpaceError(
                        f"{name} must have the shape {(len(array), *part.shape)}, got {array.shape}"
                    )
                arrays.append((part, array, name, one_hots))
            return arrays

        array = np.asarray(values)
        shape, size = array.shape[1:], len(self.bounds[0])
        if array.ndim and self.tree == 0 and self.parts[0].takes(shape):
            return [(self.parts[0], array, label, False)]

        low = np.concatenate([part.low for part in self.parts])
        high = np.concatenate([part.high for part in self.parts])
        side_by_side = Part((size,), self.parts[0].dtype, low, high)
        indices = indices or self.counts_from_zero
        if array.ndim and side_by_side.takes(shape):
            if indices:
                return [(side_by_side, array, label, False)]
        elif self.kind in ("discrete", "multi_discrete") and side_by_side.takes_one_hots(shape):
            return [(side_by_side, array, label, True)]
        rows = len(array) if array.ndim else 1
        raise SpaceError(
            f"{label} must have the shape {self._shapes(rows, indices)}, got {array.shape}"
        )

    def _parts_of(self, tree: Any, values: Any, label: str) -> dict[int, tuple[Array, str]]:
        """The array and the name of each part in a tree of values."""
        if isinstance(tree, int):
            if values is None or is_tree(values):
                raise SpaceError(f"{label} must be an array, got {type(values).__name__}")
            array = np.asarray(values)
            if not array.ndim:
                raise SpaceError(f"{label} must have the shape [R, ...], got ()")
            return {tree: (array, label)}
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        names = [str(name) for name in (tree if isinstance(tree, dict) else range(len(tree)))]
        if is_tree(values):
            given = range(len(values)) if isinstance(values, tuple) else values.keys()
            unknown = [str(name) for name in given if str(name) not in names]
            if unknown:
                raise SpaceError(
                    f"{label} must have the entries {names}, got {unknown[0]!r} as well"
                )
        found: dict[int, tuple[Array, str]] = {}
        for name, inner in items:
            found |= self._parts_of(inner, child(values, name), f"{label} {name!r}")
        return found

    def _shapes(self, rows: int, indices: bool) -> str:
        size = len(self.bounds[0])
        shapes = [(rows, *self.parts[0].shape)] if self.tree == 0 else []
        if indices:
            shapes.append((rows,) if self.kind == "discrete" else (rows, size))
        text = (
            " or ".join(map(str, dict.fromkeys(shapes)))
            or "of its space, with an array for each part"
        )
        if self.kind in ("discrete", "multi_discrete"):
            text += f", or {(rows, sum(self.sizes))} as one-hots"
        return text

    def encode(self) -> dict[str, Any]:
        """Plain data that JSON can hold."""
        parts = [
            {
                "shape": list(part.shape),
                "dtype": part.dtype.name,
                "low": part.low.tolist(),
                "high": part.high.tolist(),
            }
            for part in self.parts
        ]
        return {
            "kind": self.kind,
            "parts": parts,
            "tree": _encoded(self.tree),
            "box_dtype": self.box_dtype,
        }

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> "ActionEntry":
        """The entry that `encode` described.

        Raises:
            ValueError: If the description is damaged.
        """
        parts = []
        for part in data["parts"]:
            dtype = np.dtype(str(part["dtype"]))
            wide = np.float64 if dtype.kind == "f" else np.int64
            low, high = (np.array(part[name], wide).reshape(-1) for name in ("low", "high"))
            shape = tuple(int(size) for size in part["shape"])
            if not len(low) == len(high) == int(np.prod(shape)) or not (low <= high).all():
                raise SpaceError(
                    f"a part of an action must have bounds that fit its shape, got {dict(part)}"
                )
            parts.append(Part(shape, dtype, low, high))
        kind, tree = data["kind"], _decoded(data["tree"])
        if (
            kind not in get_args(Kind)
            or sorted(_numbers(tree)) != list(range(len(parts)))
            or not parts
        ):
            raise SpaceError(
                f"an action must have a known kind and a tree of its parts, got {kind!r}, {tree}"
            )
        return cls(kind, tuple(parts), tree, str(data["box_dtype"]))


def _from_one_hots(array: Array, sizes: Array, label: str) -> Array:
    """The choices ``[R, k]`` of one-hots."""
    indices = from_one_hots(array, sizes)
    if (indices < 0).any():
        row = int(np.flatnonzero((indices < 0).any(1))[0])
        raise SpaceError(f"{label} must be one-hot, got {array[row].tolist()} in row {row}")
    return indices


def _within(bound: Array, other: Array, dtype: str) -> Array:
    """Bounds in a dtype, moved towards the other ones where rounding has moved them outwards."""
    with np.errstate(over="ignore"):
        rounded = bound.astype(dtype)
    outside = np.where(other > bound, rounded < bound, rounded > bound)
    return np.where(outside, np.nextafter(rounded, other.astype(dtype)), rounded).astype(dtype)


def _assemble(tree: Any, values: tuple[Any, ...]) -> Any:
    if isinstance(tree, int):
        return values[tree]
    if isinstance(tree, dict):
        return {key: _assemble(part, values) for key, part in tree.items()}
    return tuple(_assemble(part, values) for part in tree)


def _encoded(tree: Any) -> Any:
    """A tree in JSON: a dict as pairs, for its keys may be numbers."""
    if isinstance(tree, dict):
        return {"dict": [[name, _encoded(inner)] for name, inner in tree.items()]}
    return {"tuple": [_encoded(inner) for inner in tree]} if isinstance(tree, tuple) else tree


def _decoded(data: Any) -> Any:
    if isinstance(data, Mapping):
        if "dict" in data:
            return {name: _decoded(inner) for name, inner in data["dict"]}
        return tuple(_decoded(inner) for inner in data["tuple"])
    return int(data)


def _numbers(tree: Any) -> list[int]:
    """All indices of a tree."""
    if isinstance(tree, int):
        return [tree]
    inner = tree.values() if isinstance(tree, dict) else tree
    return [number for each in inner for number in _numbers(each)]
