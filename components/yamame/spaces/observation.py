"""Entries of an observation: what the values of a space become.

==================================  =======================================================================
kind                                array of R timesteps
==================================  =======================================================================
``number``                          float32 ``[R, *shape]``
``byte``                            uint8 ``[R, *shape]``
``token``                           int64 ``[R, *shape]`` in 0..n-1
``integer``                         int64 ``[R, *shape]``
``bit``                             bool ``[R, *shape]``
``one_hot``                         float32 ``[R, sum(sizes)]``, the one-hots of all choices side by side
==================================  =======================================================================

A value without dimensions is stored with one of size 1.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
        path: Where its value is found in an observation of the space.
        kind: Kind of the entry, see the module.
        shape: Shape of a value of the space.
        sizes: Number of values of each one-hot or token; empty for other kinds.
        low: Smallest value of each one-hot, ``[len(sizes)]``.
        bounds: Least and largest value of a number or byte, ``[*shape]`` each; None where any is
            allowed.
        whole: Whether numbers must be whole ones, though they are stored as real numbers.
        dtype: Dtype of the stored array; by default that of the kind.
        stored_shape: Shape of one timestep of the stored array.

    >>> dice = ObservationEntry(("observation",), (), "one_hot", (), sizes=(5,), low=(1,))
    >>> dice.read(np.array([1, 3]), batch=(2,))
    array([[1., 0., 0., 0., 0.],
           [0., 0., 1., 0., 0.]], dtype=float32)
    """

    name: tuple[str, ...]
    path: tuple[str | int, ...]
    kind: Kind
    shape: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    low: tuple[int, ...] = ()
    bounds: tuple[Array, Array] | None = field(default=None, compare=False)
    dtype: str = ""
    stored_shape: tuple[int, ...] = None  # type: ignore[assignment]
    whole: bool = False

    def __post_init__(self) -> None:
        if self.stored_shape is None:
            shape = (sum(self.sizes),) if self.kind == "one_hot" else self.shape or (1,)
            object.__setattr__(self, "stored_shape", shape)
        if not self.dtype:
            object.__setattr__(self, "dtype", _DTYPES[self.kind])

    @property
    def key(self) -> str | tuple[str, ...]:
        """The name as a key of a TensorDict."""
        return self.name[0] if len(self.name) == 1 else self.name

    @property
    def raw_dtype(self) -> Any:
        """The dtype in which values of the space are gathered."""
        return np.dtype("int64" if self.kind == "one_hot" else self.dtype)

    def accepted(self, value: Any, batch: tuple[int, ...] = (), label: str | None = None) -> Array:
        """A value of the space, or a batch of them, as an array of the right shape and dtype.

        Raises:
            ValueError: If the shape or dtype is another.
        """
        array, raw = np.asarray(value), self.raw_dtype
        label = label or str(self)
        if array.shape != batch + self.shape:
            raise SpaceError(f"{label} must have shape {batch + self.shape}, got {array.shape}")
        if array.dtype == raw:
            return array
        if array.dtype.kind not in ("biuf" if self.kind == "number" else "biu"):
            raise SpaceError(f"{label} must be {raw}, got {array.dtype}")
        if self.kind in ("byte", "bit"):
            highest = 255 if self.kind == "byte" else 1
            if array.size and (array.min() < 0 or array.max() > highest):
                raise SpaceError(
                    f"{label} must be in 0..{highest}, got {array.min()}..{array.max()}"
                )
        with np.errstate(over="ignore"):
            converted = array.astype(raw)
        if (
            array.dtype.kind == "u" and raw.kind == "i" and (converted < 0).any()
        ):  # uint64 wraps around
            raise SpaceError(f"{label} must be below 2**63, got {array.max()}")
        return converted

    def finish(self, raw: Array) -> tuple[Array, dict[int, str]]:
        """Turns gathered values ``[R, *shape]`` into the stored array.

        Returns:
            The array, and an error message for each row with a wrong value.
        """
        bad = {}
        for wrong, condition in self._faults(raw, bounded=True):
            for row in np.flatnonzero(wrong.reshape(len(wrong), -1).any(1)).tolist():
                bad[row] = f"{self} must {condition}, got {text_of(raw[row])}"
        return self._stored(raw), bad

    def read(
        self,
        values: Any,
        *,
        batch: tuple[int, ...],
        label: str | None = None,
        bounded: bool = False,
    ) -> Array:
        """Values from elsewhere, such as a file, as the stored array.

        They are either values of the space or entries as they are stored. Only for one-hots do
        these differ, and their shapes tell them apart.

        Args:
            values: ``[*batch, *shape]`` or ``[*batch, *stored_shape]``. One number per timestep may
                have a dimension of size 1; whole numbers may have a floating point dtype, except
                bytes and bits.
            batch: The leading dimensions.
            label: Name of the entry in messages.
            bounded: Refuse numbers and bytes outside ``bounds``, as `finish` does for values of an
                environment. Files may hold zeros where an observation is unknown, so they are read
                without.

        Returns:
            Array ``[*batch, *stored_shape]``.

        Raises:
            ValueError: If the shape or dtype is neither of the two, or a value is not in the space.
        """
        label, array = label or str(self), np.asarray(values)
        own = array.shape[len(batch) :]
        number = self.shape in ((), (1,)) and own in ((), (1,))
        if array.shape[: len(batch)] != batch or not (
            number or own in (self.shape, self.stored_shape)
        ):
            raise SpaceError(
                f"{label} must have the shape {self._shapes(batch)}, got {array.shape}"
            )
        rows = math.prod(batch)
        if self.kind == "one_hot" and own == self.stored_shape:
            return self._one_hots(array.reshape(rows, *own), label).reshape(array.shape)
        array = array.reshape(rows, *self.shape)
        if self.kind in ("one_hot", "token", "integer"):
            array = self._whole(array, label)
        raw = self.accepted(array, (rows,), label)
        for wrong, condition in self._faults(raw, bounded=bounded):
            raise SpaceError(f"{label} must {condition}, got {first_wrong(raw, wrong)}")
        return self._stored(raw).reshape(*batch, *self.stored_shape)

    def value(self, stored: Array) -> Array:
        """The value of the space that one stored timestep ``[*stored_shape]`` stands for: the
        inverse of `read`.

        One-hots become their numbers; one of zeros, where the observation is unknown, is returned
        as it is.
        """
        if self.kind != "one_hot":
            return stored.reshape(self.shape).astype(np.int64 if self.whole else stored.dtype)
        choices = from_one_hots(stored.reshape(1, -1), np.array(self.sizes))[0]
        return stored if (choices < 0).any() else (choices + np.array(self.low)).reshape(self.shape)

    def find(self, observation: Any, *, by_path: bool) -> Any:
        """Returns the value of this entry in an observation; None if it has none.

        Args:
            observation: An observation, nested as in the space or by the names of the entries.
            by_path: Whether it is nested as in the space, see `is_nested_as_space`. Then ``path``
                is tried first.
        """
        own = (self.path, self.name) if by_path else (self.name, self.path)
        for places in (*own, self.name[1:]):
            value = _at(observation, places)
            if value is not None:
                return value
        return None

    def _whole(self, array: Array, label: str) -> Array:
        array = whole(array)
        if array.dtype.kind == "f":
            fraction = ~(np.trunc(array) == array) | ~(np.abs(array) < 2.0**53)
            got = first_wrong(array, fraction)
            raise SpaceError(f"{label} must be whole numbers{self._in_range()}, got {got}")
        return array

    def _one_hots(self, array: Array, label: str) -> Array:
        """Checks one-hots ``[R, sum(sizes)]``. Rows of zeros may stand where an observation is
        unknown.
        """
        if self.stored_shape == self.shape or self.stored_shape == (
            1,
        ):  # every choice has one value alone
            own = array.reshape(len(array), -1) == np.array(self.low)
            array = np.where(own, 1, array)
        known = from_one_hots(array, np.array(self.sizes)) >= 0
        wrong = ~known.all(1) & (array != 0).any(1)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise SpaceError(
                f"{label} must be one-hot{self._in_range()}, got {text_of(array[row])}"
            )
        return array.astype(self.dtype)

    def _stored(self, raw: Array) -> Array:
        if self.kind != "one_hot":
            return raw.reshape(len(raw), *self.stored_shape)
        sizes = np.array(self.sizes)
        index = raw.reshape(len(raw), len(sizes)) - np.array(self.low)
        hot = np.zeros((len(raw), int(sizes.sum())), self.dtype)
        np.put_along_axis(hot, index.clip(0, sizes - 1) + (sizes.cumsum() - sizes), 1, 1)
        return hot

    def _faults(self, raw: Array, *, bounded: bool) -> Iterator[tuple[Array, str]]:
        """Wrong numbers of ``raw`` ``[R, *shape]``, and the condition that they break."""
        if bounded and self.bounds is not None:
            low, high = self.bounds
            # Environments compute with rounded numbers, so numbers may be a little outside; bytes
            # may not.
            slack = _SLACK if self.kind == "number" else 0
            wrong = (raw < low - slack * np.maximum(1, abs(low))) | (
                raw > high + slack * np.maximum(1, abs(high))
            )
            if wrong.any():
                yield wrong, f"be in {range_text(low, high)}, the bounds of its space"
        if self.kind == "number" and not np.isfinite(raw).all():
            yield ~np.isfinite(raw), "be finite"
        if self.whole and (fraction := np.trunc(raw) != raw).any():
            yield fraction, "be whole numbers"
        if self.sizes:
            low, high = (bound.reshape(self._choices) for bound in self._own_range())
            wrong = (raw < low) | (raw > high)
            if wrong.any():
                yield wrong, f"be{self._in_range()}"

    @property
    def _choices(self) -> tuple[int, ...]:
        """Shape in which ranges broadcast against values."""
        return self.shape if self.kind == "one_hot" else (len(self.sizes),)

    def _own_range(self) -> tuple[Array, Array]:
        """Least and greatest value of each choice, in numbers of the space."""
        low = np.array(self.low or (0,) * len(self.sizes), np.int64)
        return low, low + np.array(self.sizes, np.int64) - 1

    def _in_range(self) -> str:
        return f" in {range_text(*self._own_range())}" if self.sizes else ""

    def _shapes(self, batch: tuple[int, ...]) -> str:
        own, stored = batch + self.shape, batch + self.stored_shape
        if self.kind != "one_hot":
            return f"{stored}"
        return f"{own} with numbers{self._in_range()}, or {stored} as one-hots"

    def __str__(self) -> str:
        return ".".join(self.name)

    def encode(self) -> dict[str, Any]:
        """Plain data that JSON can hold."""
        data: dict[str, Any] = {
            name: list(getattr(self, name)) for name in ("name", "path", "shape", "sizes", "low")
        }
        stored = list(self.stored_shape)
        data = {"kind": self.kind, **data, "dtype": self.dtype, "stored_shape": stored}
        if self.bounds is not None:
            data["bounds"] = [_encoded_bound(bound) for bound in self.bounds]
        if self.whole:
            data["whole"] = True
        return data

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> "ObservationEntry":
        """The entry that `encode` described; those of earlier versions have no ``bounds``.

        Raises:
            ValueError: If the description is damaged.
        """
        kind, dtype = data["kind"], str(data["dtype"])
        shape, sizes, low, stored = (
            tuple(int(n) for n in data[key]) for key in ("shape", "sizes", "low", "stored_shape")
        )
        path = tuple(part if isinstance(part, int) else str(part) for part in data["path"])
        if kind not in get_args(Kind) or np.dtype(dtype).kind not in "biuf":
            raise SpaceError(
                f"an entry must have a known kind and dtype, got {kind!r} and {dtype!r}"
            )
        if kind == "one_hot":
            whole_choices = len(sizes) == len(low) == math.prod(shape) and stored == (sum(sizes),)
        else:
            whole_choices = math.prod(shape) == math.prod(stored)
        if not whole_choices or min((*shape, *sizes), default=1) < 0:
            raise SpaceError(f"an entry must have shapes that agree, got {dict(data)}")
        name = tuple(str(part) for part in data["name"])
        bounds = None
        if data.get("bounds") is not None:
            least, largest = (_decoded_bound(bound, shape, dtype) for bound in data["bounds"])
            if not (least <= largest).all():
                raise SpaceError(f"an entry must have bounds in order, got {dict(data)}")
            bounds = least, largest
        whole = bool(data.get("whole", False))
        return cls(
            name,
            path,
            kind,
            shape,
            sizes,
            low,
            bounds,
            dtype=dtype,
            stored_shape=stored,
            whole=whole,
        )


def _encoded_bound(bound: Array) -> Any:
    """A bound as one number, if it is the same everywhere, or a flat list; infinities as texts."""
    numbers = bound.reshape(-1).tolist()
    if len(set(numbers)) == 1:
        numbers = numbers[:1]
    numbers = [number if math.isfinite(number) else str(number) for number in numbers]
    return numbers[0] if len(numbers) == 1 else numbers


def _decoded_bound(data: Any, shape: tuple[int, ...], dtype: str) -> Array:
    numbers = [float(number) for number in (data if isinstance(data, list) else [data])]
    return np.broadcast_to(np.array(numbers, dtype), math.prod(shape)).reshape(shape)


def is_nested_as_space(entries: Iterable[ObservationEntry], observation: Any) -> bool:
    """Returns whether an observation is nested as in the space, not by the names of entries.

    All entries decide together: in ``{"observation": {"x": a}, "x": b}``, ``a`` is found under the
    path of one entry and under the name of the other.
    """
    paths = [entry.path for entry in entries if entry.path]
    return bool(paths) and all(_at(observation, path) is not None for path in paths)


def _at(observation: Any, places: tuple[str | int, ...]) -> Any:
    """Returns the array at a place of a nested observation; None if there is none."""
    value = observation
    for place in places:
        value = child(value, place)
    return None if is_tree(value) else value
