"""Actions: conversion between values of a space and batches.

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
    BoundsError,
    Outside,
    SpaceError,
    child,
    first_wrong,
    from_one_hots,
    is_tree,
    range_text,
    text_of,
    whole,
)
from yamame.spaces.plain import decode_outside, decode_tree, encode_tree

Kind = Literal["discrete", "multi_discrete", "multi_binary", "box"]

# Real numbers may exceed a bound by these shares of the range and of the bound.
_SLACK = 1e-5
_ROUNDING = 4 * float(np.finfo(np.float32).eps)


@dataclass(frozen=True, eq=False)
class Part:
    """Columns of a batch that belong to one simple space.

    Attributes:
        shape: Shape of a value.
        dtype: Dtype of a value.
        low: Smallest values, flat.
        high: Largest values, flat.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: Array
    high: Array

    @property
    def is_box(self) -> bool:
        """True if the values are real numbers."""
        return self.dtype.kind == "f"

    @property
    def sizes(self) -> Array:
        """Number of values of each whole number."""
        return self.high - self.low + 1

    def values(self, columns: Array) -> list[Any]:
        """Convert ``columns`` ``[R, n]`` to values, as new arrays.

        Single numbers are what Gymnasium samples: arrays without dimensions of real numbers, NumPy
        scalars of whole ones.
        """
        values = columns if self.is_box else columns + self.low
        values = values.astype(self.dtype).reshape(len(columns), *self.shape)
        if self.is_box and not self.shape:
            return [np.array(value) for value in values]
        return list(values)

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether a value may have this shape.

        A scalar may have a dimension of size 1, and the reverse.
        """
        scalars = ((), (1,))
        return shape == self.shape or (self.shape in scalars and shape in scalars)

    def takes_one_hots(self, shape: tuple[int, ...]) -> bool:
        """Return whether the one-hots of all choices side by side have this shape."""
        return not self.is_box and shape == (int(self.sizes.sum()),)

    def columns(
        self, values: Array, label: str, *, indices: bool = False, clip: bool = False
    ) -> Array:
        """Convert values ``[R, *shape]`` to columns ``[R, n]``: the inverse of `values`.

        Real numbers outside of the bounds by no more than rounding become the bounds.

        Args:
            values: Values of the space.
            label: Name of the values in messages.
            indices: Whether whole numbers count from 0 instead of from ``low``.
            clip: Whether all finite real numbers outside of the bounds become the bounds.

        Raises:
            SpaceError: A value is out of bounds.
        """
        values = values.reshape(len(values), len(self.low))
        low = self.low
        high = self.high
        if indices and not self.is_box:
            high = high - low
            low = np.zeros_like(low)

        slack: Any = 0
        if self.is_box:
            values = values.astype(np.float64)
            magnitude = np.maximum(abs(low), abs(high))
            slack = np.maximum(_SLACK * (high - low), _ROUNDING * magnitude)
            if clip:
                # NaN and infinite numbers stay what they are, and are refused.
                values = np.where(np.isfinite(values), values.clip(low, high), values)
        else:
            values = whole(values)
        # NaN fails both comparisons.
        is_good = (values >= low - slack) & (values <= high + slack)
        if values.dtype.kind == "f" and not self.is_box:
            is_good &= np.trunc(values) == values
        if not is_good.all():
            numbers = "" if self.is_box else "whole numbers "
            condition = f"be {numbers}in {range_text(low, high)}"
            has_bounds_only = self.is_box and bool(np.isfinite(values).all())
            error = BoundsError if has_bounds_only else SpaceError
            raise error(label, condition, first_wrong(values, ~is_good))
        return values.clip(low, high) if self.is_box else values.astype(np.int64) - low


@dataclass(frozen=True, eq=False)
class ActionEntry:
    """Actions of a space, and their conversion to and from batches.

    Attributes:
        kind: Kind of a batch, see above.
        parts: Simple spaces, in the order of their columns.
        tree: Structure of a value: an index of ``parts``, or a dict or tuple of structures.
        box_dtype: Dtype of a batch of kind ``box``.
        outside: Handling of real numbers outside of the bounds by more than rounding, where `read`
            reads them: ``clip`` makes them the bounds, the others refuse them.

    >>> numbers = Part((), np.dtype("int64"), low=np.array([1]), high=np.array([4]))
    >>> dice = ActionEntry("discrete", (numbers,), tree=0)
    >>> dice.read(np.array([1, 4]), label="action"), dice.values(np.array([0, 3]))
    (array([0, 3]), [np.int64(1), np.int64(4)])
    """

    kind: Kind
    parts: tuple[Part, ...]
    tree: Any
    box_dtype: str = "float32"
    outside: Outside = "raise"

    @property
    def sizes(self) -> list[int]:
        """Number of actions of each choice."""
        sizes: list[int] = []
        for part in self.parts:
            sizes += part.sizes.tolist()
        return sizes

    @cached_property
    def _columns(self) -> Part:
        """All columns side by side, as one part."""
        # Parts without numbers have a dtype as well, which may be of the other kind.
        filled = [part for part in self.parts if len(part.low)]
        low = np.concatenate([part.low for part in filled])
        high = np.concatenate([part.high for part in filled])
        return Part((len(low),), filled[0].dtype, low, high)

    @cached_property
    def bounds(self) -> tuple[Array, Array]:
        """Smallest and largest action of all columns of a batch, inclusive."""
        if self.kind == "box":
            low = self._columns.low
            high = self._columns.high
            # A policy's actions are in the dtype of a batch, and must stay in the space.
            least = _round_inwards(low, high, self.box_dtype)
            largest = _round_inwards(high, low, self.box_dtype)
            return least, largest
        largest = np.array(self.sizes, np.int64) - 1
        return np.zeros_like(largest), largest

    @property
    def dtype(self) -> Any:
        """Dtype of a batch."""
        if self.kind == "box":
            return np.dtype(self.box_dtype)
        return np.int8 if self.kind == "multi_binary" else np.int64

    @property
    def least(self) -> Array:
        """An action within its bounds."""
        low, _ = self.bounds
        return low[0] if self.kind == "discrete" else low

    @property
    def counts_from_zero(self) -> bool:
        """True if the numbers of the space are those of a batch."""
        return self.kind == "box" or not self._columns.low.any()

    @property
    def first_numbers(self) -> str:
        """Smallest numbers of the space, for messages."""
        low = self._columns.low
        if (low != low[0]).any():
            return text_of(low)
        return f"{low[0]}"

    def nothing(self, num_envs: int) -> Array:
        """Return a batch of zeros."""
        if self.kind == "discrete":
            return np.zeros(num_envs, self.dtype)
        return np.zeros((num_envs, len(self.bounds[0])), self.dtype)

    def wrong(self, batch: Array) -> Array:
        """Return which actions are out of bounds: ``[R]`` bool."""
        low, high = self.bounds
        columns = batch.reshape(len(batch), len(low))
        # NaN is in no bounds, so the test must be for good actions.
        is_good = (columns >= low) & (columns <= high)
        return ~np.logical_and.reduce(is_good, axis=1)

    def values(self, batch: Array) -> list[Any]:
        """Convert a batch to values of the space, one per row.

        They have the dtype of the space, as those that its ``sample`` draws.
        """
        if self.kind == "discrete":
            return self.parts[0].values(batch[:, None])
        values = []
        start = 0
        for part in self.parts:
            end = start + len(part.low)
            values.append(part.values(batch[:, start:end]))
            start = end
        # A simple space, whose values have no structure.
        if self.tree == 0:
            return values[0]
        assembled = []
        for row in zip(*values, strict=True):
            assembled.append(_assemble(self.tree, row))
        return assembled

    def read(self, values: Any, *, label: str, indices: bool = False) -> Array:
        """Convert values of the space to a batch: the inverse of `values`, for arrays of R rows.

        Whole numbers may have a floating point dtype, and choices may be one-hots
        ``[R, sum(sizes)]``. Real numbers outside of the bounds by no more than rounding (1e-5 of
        their range) become the bounds, and all others too if ``outside`` is ``clip``.

        Args:
            values: ``[R, *shape]``; of a ``Dict`` or ``Tuple`` a tree of these, or all columns side
                by side ``[R, n]`` if the space counts from 0.
            label: Name of the action in messages.
            indices: Whether whole numbers are those of a batch, counted from 0, instead of those of
                the space.

        Returns:
            Batch ``[R]`` or ``[R, n]``.

        Raises:
            BoundsError: A real number is out of bounds.
            SpaceError: The shape or dtype is another one, or a value is not in the space.
        """
        clip = self.outside == "clip"
        columns = []
        for part, array, name, is_one_hot in self._arrays(values, label, indices):
            if is_one_hot:
                columns.append(_from_one_hots(array, part.sizes, name))
            else:
                columns.append(part.columns(array, name, indices=indices, clip=clip))
        low, high = self.bounds
        batch = np.concatenate(columns, 1).astype(self.dtype)
        # Rounding to float32 may leave the bounds.
        batch = batch.clip(low, high)
        return batch[:, 0] if self.kind == "discrete" else batch

    def depends_on_indices(self, values: Any, *, indices: bool) -> bool:
        """Return whether `read` gives some of the values another meaning with other ``indices``.

        One-hots, real numbers and spaces that count from 0 have the same meaning either way.

        Raises:
            SpaceError: The shape is not one that `read` takes.
        """
        # A structured space may have parts of several sorts.
        for part, _, _, is_one_hot in self._arrays(values, "action", indices):
            if part.low.any() and not part.is_box and not is_one_hot:
                return True
        return False

    def _arrays(
        self, values: Any, label: str, indices: bool
    ) -> list[tuple[Part, Array, str, bool]]:
        """Return arrays in the order of their columns.

        Returns:
            Part, array, name, and whether the array holds one-hots.
        """
        if is_tree(values):
            return self._arrays_of_tree(values, label)
        array = np.asarray(values)
        shape = array.shape[1:]
        has_rows = array.ndim > 0
        if has_rows and self.tree == 0 and self.parts[0].takes(shape):
            return [(self.parts[0], array, label, False)]

        # Columns side by side are no value of the space, so their numbers must be unambiguous.
        indices = indices or self.counts_from_zero
        side_by_side = self._columns
        if has_rows and side_by_side.takes(shape):
            if indices:
                return [(side_by_side, array, label, False)]
        elif self._takes_one_hots and side_by_side.takes_one_hots(shape):
            return [(side_by_side, array, label, True)]
        num_rows = len(array) if has_rows else 1
        raise SpaceError(label, f"have the shape {self._shapes(num_rows, indices)}", array.shape)

    @property
    def _takes_one_hots(self) -> bool:
        return self.kind in ("discrete", "multi_discrete")

    def _arrays_of_tree(self, values: Any, label: str) -> list[tuple[Part, Array, str, bool]]:
        found = self._parts_of(self.tree, values, label)
        rows = len(found[0][0])
        arrays = []
        for number, part in enumerate(self.parts):
            array, name = found[number]
            if len(array) != rows:
                raise SpaceError(name, f"have {rows} rows, as the others", len(array))
            shape = array.shape[1:]
            is_one_hot = not part.takes(shape)
            if is_one_hot and not part.takes_one_hots(shape):
                raise SpaceError(name, f"have the shape {(rows, *part.shape)}", array.shape)
            arrays.append((part, array, name, is_one_hot))
        return arrays

    def _parts_of(self, tree: Any, values: Any, label: str) -> dict[int, tuple[Array, str]]:
        """Return the array and the name of each part in a tree of values."""
        if isinstance(tree, int):
            if values is None or is_tree(values):
                raise SpaceError(label, "be an array", type(values).__name__)
            array = np.asarray(values)
            if not array.ndim:
                raise SpaceError(label, "have the shape [R, ...]", "()")
            return {tree: (array, label)}

        items = dict(tree) if isinstance(tree, dict) else dict(enumerate(tree))
        # Names may be numbers, which files hold as text, and files nest them at slashes.
        names = [str(name) for name in items]
        first_names = {name.partition("/")[0] for name in names}
        given: Any = ()
        if isinstance(values, tuple):
            given = range(len(values))
        elif is_tree(values):
            given = values.keys()
        for name in given:
            if str(name) not in names and name not in first_names:
                raise SpaceError(label, f"have the entries {names}", f"{str(name)!r} as well")
        is_ambiguous = len(set(names)) < len(names) or any(
            "/" in name and name.partition("/")[0] in names for name in names
        )
        if is_ambiguous and not set(items).issubset(given):
            raise SpaceError(label, f"have the keys of the space, {list(items)}", list(given))
        found: dict[int, tuple[Array, str]] = {}
        for name, inner in items.items():
            found |= self._parts_of(inner, child(values, name), f"{label} {name!r}")
        return found

    def _shapes(self, rows: int, indices: bool) -> str:
        """Describe the shapes that `read` takes."""
        shapes = []
        if self.tree == 0:
            shapes.append(str((rows, *self.parts[0].shape)))
        if indices:
            columns = () if self.kind == "discrete" else (len(self.bounds[0]),)
            shapes.append(str((rows, *columns)))
        if not shapes:
            shapes.append("of its space, with an array for each part")
        # Of a simple space, the two may be the same.
        text = " or ".join(dict.fromkeys(shapes))
        if self._takes_one_hots:
            text += f", or {(rows, sum(self.sizes))} as one-hots"
        return text

    def encode(self) -> dict[str, Any]:
        """Return plain data that JSON can hold, for `decode`."""
        parts = []
        for part in self.parts:
            numbers: dict[str, Any] = {"shape": list(part.shape)}
            numbers["dtype"] = part.dtype.name
            numbers["low"] = part.low.tolist()
            numbers["high"] = part.high.tolist()
            parts.append(numbers)
        tree = encode_tree(self.tree)
        data = {"kind": self.kind, "parts": parts, "tree": tree, "box_dtype": self.box_dtype}
        if self.outside != "raise":
            data["outside"] = self.outside
        return data

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> "ActionEntry":
        """Return the entry that `encode` described.

        Raises:
            ValueError: The description is damaged.
        """
        parts = []
        for part in data["parts"]:
            dtype = np.dtype(str(part["dtype"]))
            wide = np.float64 if dtype.kind == "f" else np.int64
            low = np.array(part["low"], wide).reshape(-1)
            high = np.array(part["high"], wide).reshape(-1)
            shape = tuple(int(size) for size in part["shape"])
            size = int(np.prod(shape))
            fits = len(low) == size and len(high) == size
            if not fits or not (low <= high).all():
                raise ValueError(
                    f"a part of an action must have bounds that fit its shape, got {dict(part)}"
                )
            parts.append(Part(shape, dtype, low, high))

        kind = data["kind"]
        tree = decode_tree(data["tree"])
        is_tree_of_parts = sorted(_numbers(tree)) == list(range(len(parts)))
        if kind not in get_args(Kind) or not parts or not is_tree_of_parts:
            raise ValueError(
                f"an action must have a known kind and a tree of its parts, got {kind!r}, {tree}"
            )
        return cls(kind, tuple(parts), tree, str(data["box_dtype"]), decode_outside(data))


def _from_one_hots(array: Array, sizes: Array, label: str) -> Array:
    """Return the choices ``[R, k]`` of one-hots, or raise."""
    indices = from_one_hots(array, sizes)
    is_wrong = (indices < 0).any(1)
    if is_wrong.any():
        row = int(np.flatnonzero(is_wrong)[0])
        raise SpaceError(label, "be one-hot", f"{array[row].tolist()} in row {row}")
    return indices


def _round_inwards(bound: Array, other: Array, dtype: str) -> Array:
    """Convert bounds to a dtype; those that rounding moves outwards move back by one number."""
    # Large doubles become infinite, which is corrected as well.
    with np.errstate(over="ignore"):
        rounded = bound.astype(dtype)
    is_outside = np.where(other > bound, rounded < bound, rounded > bound)
    inwards = np.nextafter(rounded, other.astype(dtype))
    return np.where(is_outside, inwards, rounded).astype(dtype)


def _assemble(tree: Any, values: tuple[Any, ...]) -> Any:
    if isinstance(tree, int):
        return values[tree]
    if isinstance(tree, tuple):
        return tuple(_assemble(inner, values) for inner in tree)
    assembled = {}
    for name, inner in tree.items():
        assembled[name] = _assemble(inner, values)
    return assembled


def _numbers(tree: Any) -> list[int]:
    """Return all indices in a tree."""
    if isinstance(tree, int):
        return [tree]
    numbers: list[int] = []
    for inner in tree.values() if isinstance(tree, dict) else tree:
        numbers += _numbers(inner)
    return numbers
