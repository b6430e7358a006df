"""The files of a trajectory store: what they hold, and how they change without ever being half written.

``meta.json``
    Format, version, owner, sizes and fields. Replaced as a whole (rename).
``lock``
    Locked by the one process that may write.
``<n>.rows``
    One per field: its rows, one after the other, no padding.
``index``
    A ring with one entry per trajectory: first row, number of rows, generation (three int64).
``header``
    The `Cursors`, in two slots with checksums that are written in turn, so that one of them always holds.

Everything is written with ``pwrite``, so a full disk is an ``OSError`` and not the death of the process, and
what was written survives the process because it lies in the page cache.
"""

import json
import math
import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

FORMAT = "yamame trajectories"
VERSION = 1
Values = dict[tuple[str, ...], Tensor]
INDEX_WIDTH = 3
"""Number of int64 of one index entry."""


class Field(NamedTuple):
    """One entry of every timestep: its key path, dtype and shape."""

    key: tuple[str, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one timestep."""
        return self.dtype.itemsize * math.prod(self.shape)

    def __str__(self) -> str:
        return f"{'.'.join(self.key)} {self.dtype} {list(self.shape)}"


class Cursors(NamedTuple):
    """Where a store begins and ends.

    Trajectories are numbered in the order of appending. Rows are counted over all laps of the ring: row r
    lies at place ``r % rows`` of the files.
    """

    generation: int = 0
    """Number of rollbacks so far."""
    first: int = 0
    """Number of the oldest trajectory."""
    next: int = 0
    """Number of the trajectory that is appended next."""
    row: int = 0
    """The row after the newest trajectory."""
    dirty: int = 0
    """Whatever lies ``rows`` or more before this row may have been overwritten."""
    protected: int = -1
    """Rows from this one on must not be overwritten; -1: nothing is protected."""


@dataclass(frozen=True)
class Meta:
    """What ``meta.json`` says. ``fields`` is None until the first append has decided it."""

    owner: str
    capacity: int
    rows: int
    fields: tuple[Field, ...] | None = None

    def save(self, path: Path) -> None:
        """Writes ``meta.json`` into the folder ``path``, replacing the one that is there."""
        content = {"format": FORMAT, "version": VERSION, **self.__dict__}
        if self.fields is not None:
            content["fields"] = [
                {"key": field.key, "dtype": str(field.dtype).removeprefix("torch."), "shape": field.shape}
                for field in self.fields
            ]
        draft = path / "meta.json.tmp"
        draft.write_text(json.dumps(content, indent=2))
        draft.replace(path / "meta.json")

    @classmethod
    def load(cls, path: Path) -> "Meta | None":
        """Reads ``meta.json`` of the folder ``path``: None where a store could be created.

        Raises:
            ValueError: The folder holds something else, or a store of another format.
        """
        try:
            text = (path / "meta.json").read_text()
        except FileNotFoundError:
            strange = {p.name for p in path.iterdir()} - {"lock", "meta.json.tmp"} if path.exists() else set()
            if strange:
                raise ValueError(
                    f"TrajectoryStorage: path must be empty or hold trajectories, got {path} "
                    f"with {sorted(strange)[0]}"
                ) from None
            return None
        content = json.loads(text)
        known = (content.pop("format", None), content.pop("version", None))
        if known != (FORMAT, VERSION):
            raise ValueError(
                f"TrajectoryStorage: path must hold {FORMAT!r} of version {VERSION}, got {known} in {path}"
            )
        if content["fields"] is not None:
            content["fields"] = tuple(_load_field(field) for field in content["fields"])
        return cls(**content)

    def check_same(self, found: "Meta", path: Path) -> None:
        """Raises ValueError unless ``found`` in the folder ``path`` has the same owner and sizes."""
        for name in ("owner", "capacity", "rows"):
            ours, theirs = getattr(self, name), getattr(found, name)
            if ours != theirs:
                raise ValueError(f"TrajectoryStorage: {name} must be {theirs!r} as in {path}, got {ours!r}")


def _load_field(content: dict[str, Any]) -> Field:
    return Field(tuple(content["key"]), getattr(torch, content["dtype"]), tuple(content["shape"]))


class Header:
    """The file of the `Cursors`.

    Readers in other processes see the cursors before or after a `publish`, never something between; so does
    whoever opens the file after the writer was killed.
    """

    _slot = struct.Struct("<7q")
    _check = struct.Struct("<I")
    _stride = 64

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self._sequence = 0

    def create(self) -> None:
        """Writes both slots of a new file."""
        self.publish(Cursors())
        self.publish(Cursors())

    def publish(self, cursors: Cursors) -> None:
        """Makes ``cursors`` the content of the file."""
        data = self._slot.pack(self._sequence + 1, *cursors)
        data += self._check.pack(zlib.crc32(data))
        write_all(self._descriptor, data, (self._sequence + 1) % 2 * self._stride, self._path)
        self._sequence += 1

    def read(self) -> Cursors:
        """The newest cursors that were completely published when this was called."""
        content = os.pread(self._descriptor, 2 * self._stride, 0)
        valid: list[tuple[int, ...]] = []
        for offset in (0, self._stride):
            data = content[offset : offset + self._slot.size]
            (check,) = self._check.unpack_from(content, offset + self._slot.size)
            if check == zlib.crc32(data):
                valid.append(self._slot.unpack(data))
        if not valid:
            raise ValueError(f"TrajectoryStorage: {self._path} must have a valid checksum, got none")
        self._sequence, *cursors = max(valid)
        return Cursors(*cursors)


def write_all(descriptor: int, data: Any, offset: int, path: Path) -> None:
    """Writes a contiguous buffer at ``offset``, or raises ``OSError`` that names ``path``."""
    left = memoryview(data).cast("B")
    needed = len(left)
    try:
        while left:
            written = os.pwrite(descriptor, left, offset)
            left, offset = left[written:], offset + written
    except OSError as error:
        raise OSError(
            error.errno, f"TrajectoryStorage: {path} must have room for {needed} bytes, got {error.strerror}"
        ) from error


def resize(descriptor: int, size: int, path: Path) -> None:
    """Gives a file its size without taking disk space, or raises ``OSError`` that names ``path``."""
    try:
        os.ftruncate(descriptor, size)
    except OSError as error:
        raise OSError(
            error.errno, f"TrajectoryStorage: {path} must be able to hold {size} bytes, got {error.strerror}"
        ) from error


def place(row: int, lengths: np.ndarray, rows: int) -> tuple[np.ndarray, int]:
    """First rows of trajectories that come one after the other from ``row`` on, and the row after the last.

    None of them crosses the end of a lap: where one would, it begins with the next lap.

    >>> place(2, np.array([3, 4, 4, 2]), 10)
    (array([ 2,  5, 10, 14]), 16)
    """
    ends = row + lengths.cumsum()
    lap_end = (row // rows + 1) * rows
    while ends[-1] > lap_end:
        crossing = np.searchsorted(ends, lap_end, side="right")
        ends[crossing:] += lap_end - (ends[crossing] - lengths[crossing])
        lap_end += rows
    return ends - lengths, int(ends[-1])


def fields_of(values: Values) -> tuple[Field, ...]:
    """The fields of flat values ``[R, ...]``."""
    fields = tuple(Field(key, value.dtype, tuple(value.shape[1:])) for key, value in values.items())
    for field in fields:
        if not field.row_bytes:
            raise ValueError(f"TrajectoryStorage: an entry must have at least one element, got {field}")
    return fields


def raw(value: Tensor) -> np.ndarray:
    """The bytes of ``[R, ...]`` as ``[R, row_bytes]``; shares memory if that is possible."""
    return value.detach().cpu().contiguous().reshape(len(value), -1).view(torch.uint8).numpy()


def zero(value: Tensor, parts: Iterable[tuple[int, int, int]]) -> Tensor:
    """Zeroes, in place, timesteps ``begin`` to ``end - 1`` of trajectories of a contiguous ``[B, L, *]``.

    Args:
        value: Of any dtype.
        parts: Trajectory, ``begin`` and ``end`` of each part.
    """
    rows = value.view(len(value), -1).view(torch.uint8)
    size = rows.shape[1] // value.shape[1]
    # NumPy assigns a slice ten times faster than torch.
    into = rows.numpy() if rows.device.type == "cpu" else rows
    for b, begin, end in parts:
        into[b, begin * size : end * size] = 0
    return value


def check_fields(fields: Sequence[Field], got: Sequence[Field]) -> None:
    """Raises ValueError unless both hold the same fields, in any order."""
    ours, theirs = ({field.key: field for field in some} for some in (fields, got))
    for key in [*ours, *theirs]:
        expected, found = ours.get(key), theirs.get(key)
        if expected != found:
            raise ValueError(f"TrajectoryStorage: trajectories must hold {expected}, got {found}")


def flatten(trajectories: TensorDictBase | Sequence[TensorDictBase]) -> tuple[Values, np.ndarray]:
    """All real timesteps, one after the other, ``[R, ...]`` per key, and the lengths ``[n]`` of trajectories.

    Raises:
        ValueError: A trajectory is empty, not right padded, or of other fields than the first.
    """
    if isinstance(trajectories, TensorDictBase):
        values, lengths = _flatten_padded(trajectories)
    else:
        parts = [_leaves(one) for one in trajectories]
        for part in parts:
            check_fields(fields_of(parts[0]), fields_of(part))
        values = {key: torch.cat([part[key] for part in parts]) for key in (parts[0] if parts else ())}
        lengths = np.array([len(one) for one in trajectories], dtype=np.int64)
    if not (lengths > 0).all():
        raise ValueError(f"TrajectoryStorage: a trajectory must have a timestep, got lengths {lengths}")
    return values, lengths


def _flatten_padded(trajectories: TensorDictBase) -> tuple[Values, np.ndarray]:
    values = {key: value.flatten(0, 1) for key, value in _leaves(trajectories).items()}
    mask = trajectories.get("mask", None)
    if mask is None:
        return values, np.full(len(trajectories), trajectories.shape[1], dtype=np.int64)
    mask = mask.reshape(trajectories.shape)
    lengths = mask.sum(-1)
    if not bool((mask == (torch.arange(mask.shape[1], device=mask.device) < lengths[:, None])).all()):
        raise ValueError("TrajectoryStorage: mask must be right padded, got a real timestep after padding")
    if not bool(mask.all()):
        real = mask.flatten().nonzero().squeeze(-1)
        values = {key: value.index_select(0, real) for key, value in values.items()}
    return values, lengths.cpu().numpy()


def _leaves(trajectories: TensorDictBase) -> Values:
    items = trajectories.items(True, True)
    return {key if isinstance(key, tuple) else (key,): value for key, value in items if key != "mask"}
