"""Reading whole trajectories from disk, in the process that writes them or in any other."""

import functools
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data.replay_buffers import Storage

from yamame.replay.layout import INDEX_WIDTH, Cursors, Header, Meta, zero

MOST_READ_AHEAD = 1 << 16
"""Bytes of a trajectory below which rows beyond its end are read too, if that takes fewer calls."""
Index = int | slice | Sequence[int] | Tensor | tuple[Tensor, Tensor, Tensor]


class TrajectoryFollower(Storage):
    """A read-only TorchRL storage over trajectories that another process may be appending.

    ``len()`` counts trajectories; position 0 is the oldest. What is seen is what was there at the last
    `refresh`. A trajectory is read bit for bit as it was appended, or left out because it was evicted
    meanwhile.

    Args:
        path: The folder of a `TrajectoryStorage`.

    Raises:
        ValueError: The folder holds no trajectories, or those of another format.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = Path(path).absolute()
        meta = Meta.load(path)
        if meta is None:
            raise ValueError(f"TrajectoryFollower: path must hold trajectories, got {path}")
        self._setup(path, meta)
        self.refresh()

    def __reduce__(self) -> tuple[Any, ...]:
        return (TrajectoryFollower, (str(self.path),))

    def _setup(self, path: Path, meta: Meta) -> None:
        super().__init__(max_size=meta.capacity)
        self.path = path
        self._meta = meta
        self._cursors = Cursors()
        self._known_lengths: tuple[Cursors, Tensor] | None = None
        self._maps: list[Tensor] = []  # the bytes of each field
        self._descriptors: dict[str, int] = {}
        self._finalizer = weakref.finalize(self, _close, self._descriptors)

    def _open(self, name: str, flags: int = os.O_RDONLY) -> int:
        if name in self._descriptors:
            os.close(self._descriptors.pop(name))
        self._descriptors[name] = os.open(self.path / name, flags, 0o644)
        return self._descriptors[name]

    def _sizes(self) -> dict[str, int]:
        """Names of the files of rows, and the bytes of one row."""
        return {f"{i}.rows": field.row_bytes for i, field in enumerate(self._meta.fields or ())}

    def _open_files(self, flags: int = os.O_RDONLY) -> None:
        """Maps rows and index for reading and reads the header; the fields must be known."""

        def mapped(name: str, dtype: type, width: int) -> np.ndarray:
            return np.memmap(self.path / name, dtype=dtype, mode="r", shape=(self._meta.rows, width))

        def flat(name: str, size: int) -> Tensor:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*not writable")
                return torch.from_numpy(mapped(name, np.uint8, size).reshape(-1))

        self._header = Header(self._open("header", flags), self.path / "header")
        self._cursors = self._header.read()
        self._index = np.asarray(mapped("index", np.int64, INDEX_WIDTH))
        self._maps = [flat(name, size) for name, size in self._sizes().items()]

    def close(self) -> None:
        """Closes the files; what is stored stays. Nothing else may be called afterwards."""
        self._maps = []
        self._finalizer()

    def refresh(self) -> None:
        """Sees what was appended and evicted since."""
        if not self._maps:
            self._meta = Meta.load(self.path) or self._meta
            if self._meta.fields is None:
                return
            self._open_files()
        self._cursors = self._header.read()

    def __len__(self) -> int:
        return self._cursors.next - self._cursors.first

    @property
    def num_appended(self) -> int:
        """Number of trajectories appended so far, evicted ones included."""
        return self._cursors.next

    @property
    def num_timesteps(self) -> int:
        """Number of timesteps held."""
        return int(self.lengths.sum())

    @property
    def lengths(self) -> Tensor:
        """Number of timesteps of each trajectory held: ``[len]`` int64, oldest first."""
        if self._known_lengths is None or self._known_lengths[0] != self._cursors:
            ids = np.arange(self._cursors.first, self._cursors.next)
            lengths = torch.from_numpy(self._index[ids % self._meta.rows, 1] if len(ids) else ids)
            self._known_lengths = (self._cursors, lengths)
        return self._known_lengths[1]

    def get(self, index: Index) -> TensorDict:
        """Copies trajectories out: ``[B, L]``, zeros after the end of each, and ``mask`` ``[B, L, 1]``.

        L is the length of the longest of them.

        Args:
            index: Positions from 0 (the oldest) to ``len - 1``; an int gives ``[L]``. A tuple of three
                ``[B]`` reads a part of each: positions, first timestep, timestep after the last.

        Returns:
            Of a follower without those that were evicted since its last `refresh`.

        Raises:
            IndexError: A position outside 0..len - 1, or a part outside its trajectory.
            RuntimeError: Nothing of what was asked for is held any more.
        """
        if isinstance(index, int):
            return self.get([index])[0]
        positions, *part = index if isinstance(index, tuple) else (index,)
        ids = self._cursors.first + self._positions(positions)
        entries = self._index[ids % self._meta.rows] if len(ids) else np.zeros((0, INDEX_WIDTH), np.int64)
        held = self._still_held(ids)
        if not held.any():
            raise RuntimeError(
                f"TrajectoryStorage: get must ask for trajectories that are held, got {len(ids)} evicted ones"
            )
        starts, lengths = entries[held, 0] % self._meta.rows, entries[held, 1]
        if part:
            begin, end = (bound.numpy()[held] for bound in part)
            if ((begin < 0) | (begin >= end) | (end > lengths)).any():
                raise IndexError(f"TrajectoryStorage: parts must lie in their trajectories, got {part}")
            starts, lengths = starts + begin, end - begin
        out = self._copy(starts, lengths)
        after = self._still_held(ids)[held]
        return out if after.all() else out[torch.from_numpy(after)]

    def _positions(self, index: slice | Sequence[int] | Tensor) -> np.ndarray:
        if isinstance(index, slice):
            return np.arange(*index.indices(len(self)))
        positions = np.asarray(index, dtype=np.int64).reshape(-1)
        if ((positions < 0) | (positions >= len(self))).any():
            raise IndexError(f"TrajectoryStorage: positions must be in 0..{len(self) - 1}, got {positions}")
        return positions

    def _still_held(self, ids: np.ndarray) -> np.ndarray:
        """Which trajectories are what they were at the last `refresh` ``[B]`` bool.

        The writer publishes an eviction before it overwrites rows or index, so what was read before this was
        called is good.
        """
        now = self._header.read() if len(ids) else self._cursors
        return (ids >= now.first) & (now.generation == self._cursors.generation)

    def _copy(self, starts: np.ndarray, lengths: np.ndarray) -> TensorDict:
        shape = (len(starts), int(lengths.max()))
        mask = torch.arange(shape[1]) < torch.from_numpy(lengths).unsqueeze(-1)
        entries: dict[str, Any] = {"mask": mask.unsqueeze(-1)}
        read = self._reader(starts, lengths)
        for field, rows in zip(self._meta.fields or (), self._maps, strict=True):
            *path, name = field.key
            group = functools.reduce(lambda into, part: into.setdefault(part, {}), path, entries)
            group[name] = read(rows, field.row_bytes).view(field.dtype).view(*shape, *field.shape)
        return TensorDict(entries, batch_size=shape)

    def _reader(self, starts: np.ndarray, lengths: np.ndarray) -> Callable[[Tensor, int], Tensor]:
        """What copies the rows of trajectories out of one file: ``[B, L * row_bytes]``, zeros after each."""
        longest, index = int(lengths.max()), torch.from_numpy(starts)
        padding = [(b, length, longest) for b, length in enumerate(lengths.tolist()) if length < longest]
        # Beyond a trajectory, others follow, or the file ends.
        follows = int(starts.max()) + longest <= self._meta.rows

        def read(rows: Tensor, size: int) -> Tensor:
            if not padding or (follows and longest * size <= MOST_READ_AHEAD):
                # All windows of so many rows are one view; this copies each of those asked for in one piece.
                out = rows.unfold(0, longest * size, size).index_select(0, index)
            else:
                out = torch.empty(len(starts), longest * size, dtype=torch.uint8)
                for to, start, length in zip(out.numpy(), starts.tolist(), lengths.tolist(), strict=True):
                    to[: length * size] = rows.numpy()[start * size : (start + length) * size]
            return zero(out.view(-1, longest, size), padding) if padding else out

        return read

    def contains(self, item: int) -> bool:
        """Whether ``item`` is the position of a trajectory."""
        return 0 <= item < len(self)

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Refused: trajectories can only be appended."""
        raise RuntimeError(f"TrajectoryStorage: a trajectory must not be changed, got set({cursor})")


def _close(descriptors: dict[str, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])
