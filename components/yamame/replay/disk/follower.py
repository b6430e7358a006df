"""Read access to trajectories on disk that another process may be appending."""

import math
import os
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.data.replay_buffers import Storage

from yamame.checks import require
from yamame.files.paths import check_tree
from yamame.replay.disk.files import (
    DTYPES,
    REMEDY,
    STORE,
    Manifest,
    Segment,
    read_manifests,
    width_of,
)
from yamame.replay.disk.index import LENGTH, NUM_COLUMNS, TrajectoryIndex


class TrajectoryFollower(Storage):
    """A read-only TorchRL storage over trajectories that another process may be appending.

    ``len()`` counts trajectories; position 0 is the oldest. The trajectories are those of the last
    `refresh`, whatever the writer has appended or evicted since.

    Args:
        path: Folder of a `TrajectoryStorage`.

    Raises:
        ValueError: The folder holds no trajectories, a store of another format, or a store of which
            files are missing.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = Path(path).absolute()
        manifests = read_manifests(path)
        if not manifests:
            raise ValueError(f"TrajectoryFollower: path must hold trajectories, got {path}")
        check_tree(path)
        super().__init__(max_size=manifests[0]["capacity"])
        self.path = path
        self._segments: dict[int, Segment] = {}
        TrajectoryFollower.refresh(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (TrajectoryFollower, (str(self.path),))

    def close(self) -> None:
        """Close the files. The stored trajectories stay; no other method may be called later."""
        self._segments = {}

    def refresh(self) -> None:
        """Update to the trajectories that the writer holds now."""
        manifests = read_manifests(self.path)
        # After a power cut, files that the newest manifest names may be missing.
        for manifest in manifests:
            try:
                self._load(manifest)
                return
            except FileNotFoundError as error:
                if read_manifests(self.path)[:1] != manifests[:1]:
                    # The writer has deleted a segment since the manifests were read.
                    self.refresh()
                    return
                missing = error
        raise ValueError(f"{STORE}: trajectories are missing, {missing}; {REMEDY}") from missing

    def verify(self) -> None:
        """Compare all trajectories with their checksums.

        Raises:
            ValueError: A trajectory was changed since it was appended; names its file.
        """
        self._verify(self._segments, self._index.rows, self._manifest["fields"])

    def _load(self, manifest: Manifest) -> None:
        """Map everything that a manifest names, and release the rest."""
        self._segments, self._index = self._map(manifest["held"]["parts"], manifest["fields"])
        self._manifest = manifest

    def _map(
        self, parts: Sequence[Sequence[int]], fields: list[list[Any]]
    ) -> tuple[dict[int, Segment], TrajectoryIndex]:
        """Map the segments of ranges.

        Returns:
            Segments by number, and the index of the trajectories.
        """
        segments: dict[int, Segment] = {}
        rows = [np.zeros((0, NUM_COLUMNS), np.int64)]
        for number, first, end in parts:
            if number not in segments or len(segments[number].rows) < end:
                segments[number] = self._open(number, end, fields)
            rows.append(segments[number].rows[first:end])
        return segments, TrajectoryIndex(np.concatenate(rows))

    def _open(self, number: int, end: int, fields: list[list[Any]]) -> Segment:
        """Map a segment with at least ``end`` trajectories.

        Raises:
            FileNotFoundError: The segment is missing or incomplete.
        """
        segment = self._segments.get(number)
        missing = f"segment {number} in {self.path}"
        if segment is None or len(segment.rows) < end:
            try:
                segment = Segment.open(self.path, number)
            except FileNotFoundError as error:
                raise FileNotFoundError(missing) from error

        # A power cut may leave files that are too short or filled with zeros.
        lengths = segment.rows[:end, LENGTH]
        is_whole = len(lengths) == end and bool((lengths >= 1).all())
        # Compared one by one as well: the sum of huge numbers would overflow.
        width = width_of(fields)
        longest = int(lengths.max(initial=0)) * width
        num_bytes = len(segment.data)
        if not is_whole or longest > num_bytes or int(lengths.sum()) * width > num_bytes:
            raise FileNotFoundError(missing)
        # A timestep without content would have any number of them.
        require(STORE, f"bytes of a timestep of {self.path}", width, width > 0, "be positive")
        return segment

    def _verify(
        self, segments: Mapping[int, Segment], rows: np.ndarray, fields: list[list[Any]]
    ) -> None:
        width = width_of(fields)
        for number, start, length, checksum in rows.tolist():
            data = segments[number].data[start * width : (start + length) * width]
            found = zlib.crc32(data.data)
            file = self.path / f"{number}.steps"
            require(
                STORE,
                f"trajectory at timestep {start} of {file}",
                f"CRC-32 {found}",
                found == checksum,
                f"be as it was appended, with CRC-32 {checksum}",
                remedy=REMEDY,
            )

    def __len__(self) -> int:
        return len(self._index)

    @property
    def num_appended(self) -> int:
        """Number of trajectories appended so far, including evicted ones."""
        return int(self._manifest["held"]["num_appended"])

    @property
    def num_timesteps(self) -> int:
        """Number of timesteps held."""
        return self._index.num_timesteps

    @property
    def fields(self) -> dict[NestedKey, tuple[torch.Size, torch.dtype]]:
        """Shape and dtype of every entry of a timestep, by key; empty before the first append."""
        fields: dict[NestedKey, tuple[torch.Size, torch.dtype]] = {}
        for path, dtype, shape in self._manifest["fields"]:
            key = tuple(path) if len(path) > 1 else path[0]
            fields[key] = (torch.Size(shape), DTYPES[dtype])
        return fields

    @property
    def lengths(self) -> Tensor:
        """Timesteps of each trajectory held: ``[len]`` int64, oldest first."""
        return torch.from_numpy(self._index.rows[:, LENGTH].copy())

    def get(self, index: int | slice | Sequence[int] | Tensor) -> TensorDict:
        """Copy trajectories out.

        Args:
            index: Positions; 0 is the oldest trajectory.

        Returns:
            ``[B, L]`` with ``mask`` ``[B, L, 1]``, right padded with zeros to the longest of the
            trajectories; ``[L]`` for an int.

        Raises:
            IndexError: No trajectory is held at a position.
        """
        if isinstance(index, int):
            return self.get([index])[0]
        positions = index if isinstance(index, slice) else np.asarray(index, np.int64)
        rows = self._index.rows[positions]
        lengths = rows[:, LENGTH]
        num_trajectories = len(rows)
        longest = int(lengths.max(initial=0))

        values = {}
        # Assigning bytes to NumPy arrays is faster than to tensors.
        columns = []
        widths = []
        for path, name, shape in self._manifest["fields"]:
            dtype = DTYPES[name]
            size = math.prod(shape)
            value = torch.zeros(num_trajectories, longest * size, dtype=dtype)
            columns.append(value.view(torch.uint8).numpy())
            widths.append(dtype.itemsize * size)
            values[tuple(path)] = value.view(num_trajectories, longest, *shape)

        for b, (number, start, length, _) in enumerate(rows.tolist()):
            data = self._segments[number].data
            place = start * sum(widths)
            for column, width in zip(columns, widths, strict=True):
                column[b, : length * width] = data[place : place + length * width]
                place += length * width

        mask = torch.arange(longest) < torch.from_numpy(lengths).unsqueeze(-1)
        batch = TensorDict({"mask": mask.unsqueeze(-1)}, batch_size=mask.shape)
        for key, value in values.items():
            batch.set(key, value)
        return batch

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Copy the files to a folder, for `TrajectoryFollower` or `TrajectoryStorage.loads`."""
        # Files of an earlier dump must not stay beside the new ones.
        if read_manifests(Path(path)):
            shutil.rmtree(path)
        shutil.copytree(self.path, path, ignore=shutil.ignore_patterns("lock"), dirs_exist_ok=True)

    def contains(self, item: int) -> bool:
        """Return whether a trajectory is held at a position."""
        return 0 <= item < len(self)

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Raise: trajectories can only be appended."""
        raise RuntimeError(f"{STORE}: trajectories must not be changed, got set({cursor})")
