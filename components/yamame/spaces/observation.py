"""Entries of an observation: conversion of values of a space to stored arrays.

===========  ====================================================================
kind         array of R timesteps
===========  ====================================================================
``number``   float32 ``[R, *shape]``
``byte``     uint8 ``[R, *shape]``
``token``    int64 ``[R, *shape]`` in 0..n-1
``integer``  int64 ``[R, *shape]``
``bit``      bool ``[R, *shape]``
``one_hot``  float32 ``[R, sum(sizes)]``, the one-hots of all choices side by side
===========  ====================================================================

A value without dimensions is stored with one of size 1.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from yamame.spaces.arrays import (
    BOUNDS_REMEDY,
    Array,
    BoundsError,
    Key,
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
from yamame.spaces.plain import (
    decode_bound,
    decode_key,
    decode_outside,
    encode_bound,
    encode_key,
    integers,
)

Kind = Literal["number", "integer", "byte", "token", "one_hot", "bit"]

_SLACK = np.float32(1e-5)
_DTYPES: dict[Kind, str] = {
    "number": "float32",
    "integer": "int64",
    "byte": "uint8",
    "token": "int64",
    "one_hot": "float32",
    "bit": "bool",
}


@dataclass(frozen=True)
class ObservationEntry:
    """One array of an observation.

    Attributes:
        name: Names of the entry, from the root.
        path: Place of its value in an observation of the space.
        kind: Kind of the entry, see above.
        shape: Shape of a value of the space.
        sizes: Number of values of each one-hot or token; empty for other kinds.
        low: Smallest value of each one-hot, ``[len(sizes)]``.
        bounds: Smallest and largest value of a number or byte, ``[*shape]`` each; None if
            unbounded.
        whole: Whether numbers must be whole, although they are stored as real numbers.
        outside: Handling of finite numbers outside of ``bounds`` by more than rounding: ``raise``
            makes them errors, ``clip`` makes them the bounds, ``warn`` reports and keeps them.
        dtype: Dtype of the stored array; by default that of the kind.
        stored_shape: Shape of one timestep of the stored array.

    >>> dice = ObservationEntry(("observation",), (), "one_hot", (), sizes=(5,), low=(1,))
    >>> dice.read(np.array([1, 3]), batch=(2,))
    array([[1., 0., 0., 0., 0.],
           [0., 0., 1., 0., 0.]], dtype=float32)
    """

    name: tuple[str, ...]
    path: tuple[Key, ...]
    kind: Kind
    shape: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    low: tuple[int, ...] = ()
    bounds: tuple[Array, Array] | None = field(default=None, compare=False)
    dtype: str = ""
    stored_shape: tuple[int, ...] = None  # type: ignore[assignment]
    whole: bool = False
    outside: Outside = field(default="raise", compare=False)

    def __post_init__(self) -> None:
        stored_shape = self.shape or (1,)
        if self.kind == "one_hot":
            stored_shape = (sum(self.sizes),)
        # Fields of a frozen dataclass are set through object.
        if self.stored_shape is None:
            object.__setattr__(self, "stored_shape", stored_shape)
        if not self.dtype:
            object.__setattr__(self, "dtype", _DTYPES[self.kind])

    @property
    def key(self) -> str | tuple[str, ...]:
        """The name as a key of a TensorDict."""
        return self.name[0] if len(self.name) == 1 else self.name

    @property
    def raw_dtype(self) -> Any:
        """Dtype in which values of the space are gathered."""
        return np.dtype("int64" if self.kind == "one_hot" else self.dtype)

    def accepted(self, value: Any, batch: tuple[int, ...] = (), label: str | None = None) -> Array:
        """Convert a value of the space, or a batch of values, to an array of the raw dtype.

        Raises:
            SpaceError: The shape or dtype is another one.
        """
        array = np.asarray(value)
        raw = self.raw_dtype
        label = label or str(self)
        shape = batch + self.shape
        if array.shape != shape:
            raise SpaceError(label, f"have shape {shape}", array.shape)
        if array.dtype == raw:
            return array
        allowed_kinds = "biuf" if self.kind == "number" else "biu"
        if array.dtype.kind not in allowed_kinds:
            raise SpaceError(label, f"be {raw}", array.dtype)
        # Conversion to bytes and bits would wrap around.
        if self.kind in ("byte", "bit"):
            highest = 255 if self.kind == "byte" else 1
            smallest = array.min(initial=0)
            largest = array.max(initial=0)
            if smallest < 0 or largest > highest:
                found = f"{array.min()}..{array.max()}"
                raise SpaceError(label, f"be in 0..{highest}", found)

        # Doubles beyond float32 become infinite, which another check reports.
        with np.errstate(over="ignore"):
            converted = array.astype(raw)
        # uint64 wraps around.
        if array.dtype.kind == "u" and raw.kind == "i" and (converted < 0).any():
            raise SpaceError(label, "be below 2**63", array.max())
        return converted

    def finish(
        self, raw: Array, *, reports: bool = True
    ) -> tuple[Array, dict[int, str], dict[int, str]]:
        """Convert gathered values ``[R, *shape]`` to the stored array.

        Args:
            raw: Values, which are clipped in place if ``outside`` is ``clip``.
            reports: Whether to look for values to report if ``outside`` is ``warn``.

        Returns:
            The array; an error message for each row with a wrong value; and, if ``outside`` is
            ``warn``, a message for each other row with a value outside of the bounds.
        """
        faults: dict[int, str] = {}
        for wrong, condition in self._faults(raw):
            faults |= self._messages(raw, wrong, condition)

        remarks: dict[int, str] = {}
        if self.bounds is None or (self.outside == "warn" and not reports):
            return self._stored(raw), faults, remarks
        is_outside = self._is_outside(raw)
        if is_outside.any():
            remarks = self._messages(raw, is_outside, self._in_bounds)
            # Infinite numbers are out of bounds as well.
            for row in faults:
                remarks.pop(row, None)
        if self.outside == "clip":
            np.clip(raw, *self.bounds, out=raw)
            remarks = {}
        if self.outside == "raise":
            for row, message in remarks.items():
                faults[row] = f"{message}; {BOUNDS_REMEDY}"
            remarks = {}
        return self._stored(raw), faults, remarks

    def _messages(self, raw: Array, wrong: Array, condition: str) -> dict[int, str]:
        """Return a message for each row of ``wrong`` ``[R, ...]`` with a true value."""
        messages = {}
        is_wrong_row = wrong.reshape(len(wrong), -1).any(1)
        for row in np.flatnonzero(is_wrong_row).tolist():
            messages[row] = f"{self} must {condition}, got {text_of(raw[row])}"
        return messages

    def read(
        self,
        values: Any,
        *,
        batch: tuple[int, ...],
        label: str | None = None,
        bounded: bool = False,
        may_be_unknown: bool = False,
        report: Callable[[str], None] | None = None,
    ) -> Array:
        """Convert values from elsewhere, such as a file, to the stored array.

        They are either values of the space or stored entries. These differ for one-hots only, where
        their shapes differ as well.

        Args:
            values: ``[*batch, *shape]`` or ``[*batch, *stored_shape]``. One number per timestep may
                have a dimension of size 1; whole numbers may have a floating point dtype, except
                bytes and bits.
            batch: Leading dimensions.
            label: Name of the entry in messages.
            bounded: Whether ``outside`` applies to numbers outside of ``bounds``, as in `finish`;
                otherwise they are kept.
            may_be_unknown: Whether rows of zeros may be out of bounds. Files hold them where an
                observation is unknown.
            report: Called with a message about the first number outside of the bounds, if
                ``outside`` is ``warn``.

        Returns:
            Array ``[*batch, *stored_shape]``.

        Raises:
            BoundsError: A number is out of bounds, and ``outside`` is ``raise``.
            SpaceError: The shape or dtype is another one, or a value is not in the space.
        """
        label = label or str(self)
        array = np.asarray(values)
        own_shape = array.shape[len(batch) :]
        scalars = ((), (1,))
        is_scalar = self.shape in scalars and own_shape in scalars
        fits = is_scalar or own_shape in (self.shape, self.stored_shape)
        if array.shape[: len(batch)] != batch or not fits:
            raise SpaceError(label, f"have the shape {self._shapes(batch)}", array.shape)

        rows = math.prod(batch)
        if self.kind == "one_hot" and own_shape == self.stored_shape:
            one_hots = array.reshape(rows, *own_shape)
            stored = self._check_one_hots(one_hots, label)
            return stored.reshape(array.shape)

        array = array.reshape(rows, *self.shape)
        if self.kind in ("one_hot", "token", "integer"):
            array = self._to_whole(array, label)
        raw = self.accepted(array, (rows,), label)
        for wrong, condition in self._faults(raw):
            raise SpaceError(label, condition, first_wrong(raw, wrong))
        if bounded and self.bounds is not None:
            raw = self._bounded(raw, label, may_be_unknown, report)
        stored = self._stored(raw)
        return stored.reshape(*batch, *self.stored_shape)

    def _bounded(
        self,
        raw: Array,
        label: str,
        may_be_unknown: bool,
        report: Callable[[str], None] | None,
    ) -> Array:
        """Apply ``outside`` to finite values ``[R, *shape]``."""
        is_outside = self._is_outside(raw)
        if may_be_unknown:
            is_known = (raw.reshape(len(raw), -1) != 0).any(1)
            is_outside[~is_known] = False
        if not is_outside.any():
            return raw
        error = BoundsError(label, self._in_bounds, first_wrong(raw, is_outside))
        if self.outside == "raise":
            raise error
        if self.outside == "warn" and report is not None:
            report(str(error))
        if self.outside == "clip":
            low, high = self.bounds  # type: ignore[misc]
            return raw.clip(low, high)
        return raw

    def value(self, stored: Array) -> Array:
        """Convert one stored timestep ``[*stored_shape]`` to a value: the inverse of `read`.

        One-hots become their numbers. A one-hot of zeros, where the observation is unknown, is
        returned as it is.
        """
        if self.kind != "one_hot":
            dtype = np.int64 if self.whole else stored.dtype
            return stored.reshape(self.shape).astype(dtype)
        (choices,) = from_one_hots(stored.reshape(1, -1), np.array(self.sizes))
        if (choices < 0).any():
            return stored
        return (choices + np.array(self.low)).reshape(self.shape)

    def find(self, observation: Any, *, by_path: bool) -> Any:
        """Find the value of this entry in an observation.

        Args:
            observation: Observation, nested as in the space or by the names of the entries.
            by_path: Whether it is nested as in the space, see `is_nested_as_space`. Then ``path``
                is tried first.

        Returns:
            The value; None if there is none.
        """
        # Names may be given without their common root. They may be keys of other entries.
        names = (self.name, self.name[1:])
        for place in (self.path, *names) if by_path else (*names, self.path):
            value = _at(observation, place)
            if value is not None:
                return value
        return None

    def _to_whole(self, array: Array, label: str) -> Array:
        array = whole(array)
        if array.dtype.kind == "f":
            # Above 2**53, doubles skip whole numbers, so a value there may have been rounded.
            is_whole = (np.trunc(array) == array) & (np.abs(array) < 2.0**53)
            condition = f"be whole numbers{self._in_range()}"
            raise SpaceError(label, condition, first_wrong(array, ~is_whole))
        return array

    def _check_one_hots(self, array: Array, label: str) -> Array:
        """Raise unless values ``[R, sum(sizes)]`` are one-hots, or zeros if unknown."""
        if self.stored_shape in (self.shape, (1,)):
            # Every choice has a single value, so numbers of the space have the shape of one-hots.
            is_number = array.reshape(len(array), -1) == np.array(self.low)
            array = np.where(is_number, 1, array)
        is_known = from_one_hots(array, np.array(self.sizes)) >= 0
        is_wrong = ~is_known.all(1) & (array != 0).any(1)
        if is_wrong.any():
            row = int(np.flatnonzero(is_wrong)[0])
            raise SpaceError(label, f"be one-hot{self._in_range()}", text_of(array[row]))
        return array.astype(self.dtype)

    def _stored(self, raw: Array) -> Array:
        if self.kind != "one_hot":
            return raw.reshape(len(raw), *self.stored_shape)
        sizes = np.array(self.sizes)
        index = raw.reshape(len(raw), len(sizes)) - np.array(self.low)
        # Wrong values are reported apart; clipped, they write within their own choice.
        index = index.clip(0, sizes - 1)
        first = sizes.cumsum() - sizes
        hot = np.zeros((len(raw), int(sizes.sum())), self.dtype)
        np.put_along_axis(hot, first + index, 1, 1)
        return hot

    @cached_property
    def _limits(self) -> tuple[Array, Array]:
        """Bounds with the slack of rounding."""
        low, high = self.bounds  # type: ignore[misc]
        # Environments compute with rounded numbers, which may be slightly out of bounds; bytes may
        # not.
        if self.kind != "number":
            return low, high
        least = low - _SLACK * np.maximum(1, abs(low))
        largest = high + _SLACK * np.maximum(1, abs(high))
        return least, largest

    def _is_outside(self, raw: Array) -> Array:
        """Return which numbers of ``raw`` ``[R, *shape]`` are out of bounds."""
        least, largest = self._limits
        is_outside: Array = (raw < least) | (raw > largest)
        return is_outside

    @property
    def _in_bounds(self) -> str:
        return f"be in {range_text(*self.bounds)}, the bounds of its space"  # type: ignore[misc]

    def _faults(self, raw: Array) -> Iterator[tuple[Array, str]]:
        """Find numbers in ``raw`` ``[R, *shape]`` that are no values of the space.

        Yields:
            Mask of the wrong numbers, and the condition that they do not meet.
        """
        if self.kind == "number":
            is_finite = np.isfinite(raw)
            if not is_finite.all():
                yield ~is_finite, "be finite"
        if self.whole:
            is_fraction = np.trunc(raw) != raw
            if is_fraction.any():
                yield is_fraction, "be whole numbers"
        if self.sizes:
            low, high = self._own_range()
            # Shape in which the ranges of choices broadcast against values.
            choices = self.shape if self.kind == "one_hot" else (len(self.sizes),)
            is_wrong = (raw < low.reshape(choices)) | (raw > high.reshape(choices))
            if is_wrong.any():
                yield is_wrong, f"be{self._in_range()}"

    def _own_range(self) -> tuple[Array, Array]:
        """Return the smallest and largest value of each choice, in numbers of the space."""
        sizes = np.array(self.sizes, np.int64)
        # Tokens count from 0 and have no `low`.
        low = np.array(self.low, np.int64) if self.low else np.zeros_like(sizes)
        return low, low + sizes - 1

    def _in_range(self) -> str:
        return f" in {range_text(*self._own_range())}" if self.sizes else ""

    def _shapes(self, batch: tuple[int, ...]) -> str:
        stored = batch + self.stored_shape
        if self.kind != "one_hot":
            return f"{stored}"
        own = batch + self.shape
        return f"{own} with numbers{self._in_range()}, or {stored} as one-hots"

    def __str__(self) -> str:
        return ".".join(self.name)

    def encode(self) -> dict[str, Any]:
        """Return plain data that JSON can hold, for `decode`."""
        data: dict[str, Any] = {"kind": self.kind}
        for name in ("name", "shape", "sizes", "low"):
            data[name] = list(getattr(self, name))
        data["path"] = [encode_key(key) for key in self.path]
        data["dtype"] = self.dtype
        data["stored_shape"] = list(self.stored_shape)
        if self.bounds is not None:
            low, high = self.bounds
            data["bounds"] = [encode_bound(low), encode_bound(high)]
        if self.whole:
            data["whole"] = True
        if self.outside != "raise":
            data["outside"] = self.outside
        return data

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> "ObservationEntry":
        """Return the entry that `encode` described.

        Raises:
            ValueError: The description is damaged.
        """
        kind = data["kind"]
        dtype = str(data["dtype"])
        if kind not in get_args(Kind) or np.dtype(dtype).kind not in "biuf":
            raise ValueError(
                f"an entry must have a known kind and dtype, got {kind!r} and {dtype!r}"
            )
        shape = integers(data["shape"])
        sizes = integers(data["sizes"])
        low = integers(data["low"])
        stored = integers(data["stored_shape"])
        size = math.prod(shape)
        if kind == "one_hot":
            has_choices = len(sizes) == size and len(low) == size
            agrees = has_choices and stored == (sum(sizes),)
        else:
            agrees = math.prod(stored) == size
        if not agrees or min((*shape, *sizes), default=1) < 0:
            raise ValueError(f"an entry must have shapes that agree, got {dict(data)}")

        bounds = None
        # Descriptions of earlier versions have no bounds.
        if data.get("bounds") is not None:
            smallest, largest = data["bounds"]
            bounds = decode_bound(smallest, shape, dtype), decode_bound(largest, shape, dtype)
            if not (bounds[0] <= bounds[1]).all():
                raise ValueError(f"an entry must have bounds in order, got {dict(data)}")
        return cls(
            name=tuple(str(name) for name in data["name"]),
            path=tuple(decode_key(key) for key in data["path"]),
            kind=kind,
            shape=shape,
            sizes=sizes,
            low=low,
            bounds=bounds,
            dtype=dtype,
            stored_shape=stored,
            whole=bool(data.get("whole", False)),
            outside=decode_outside(data),
        )


def is_nested_as_space(entries: Iterable[ObservationEntry], observation: Any) -> bool:
    """Return whether an observation is nested as in the space, not by the names of entries.

    All entries decide together: in ``{"observation": {"x": a}, "x": b}``, ``a`` is found under the
    path of one entry and under the name of the other.
    """
    has_paths = False
    for entry in entries:
        # An empty path is the observation itself, which is not nested.
        if entry.path:
            has_paths = True
            if _at(observation, entry.path) is None:
                return False
    return has_paths


def _at(observation: Any, place: tuple[Key, ...]) -> Any:
    """Return the array at a place of a nested observation; None if there is none."""
    value = observation
    for name in place:
        value = child(value, name)
    return None if is_tree(value) else value
