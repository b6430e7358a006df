"""Reading trajectories on disk that another process may be appending
(`yamame.replay.disk.storage`).
"""

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
from yamame.replay.disk.files import (
    DTYPES,
    REMEDY,
    STORE,
    Manifest,
    Segment,
    read_manifests,
    width_of,
)


class TrajectoryFollower(Storage):
    """A read-only TorchRL storage over trajectories that another process may be appending.

    ``len()`` counts trajectories; position 0 is the oldest. What is seen is what was there at the
    last `refresh`, whatever the writer does meanwhile.

    Args:
        path: The folder of a `TrajectoryStorage`.

    Raises:
        ValueError: The folder holds no trajectories, or those of another format, or some of them
            are gone.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = Path(path).absolute()
        manifests = read_manifests(path)
        if not manifests:
            raise ValueError(f"TrajectoryFollower: path must hold trajectories, got {path}")
        super().__init__(max_size=manifests[0]["capacity"])
        self.path = path
        self._segments: dict[int, Segment] = {}
        TrajectoryFollower.refresh(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (TrajectoryFollower, (str(self.path),))

    def close(self) -> None:
        """Closes the files; what is stored stays. Nothing else may be called afterwards."""
        self._segments = {}

    def refresh(self) -> None:
        """Sees what was appended and evicted since."""
        manifests = read_manifests(self.path)
        for manifest in manifests:  # after a power cut, what the newest names may not be there
            try:
                return self._load(manifest)
            except FileNotFoundError as error:
                if read_manifests(self.path)[:1] != manifests[:1]:
                    return (
                        self.refresh()
                    )  # the writer deleted a segment after the manifest was read
                missing = error
        reason = (
            f"trajectories of the manifest must still be there, got none of {missing}: {REMEDY}"
        )
        raise ValueError(f"{STORE}: {reason}") from missing

    def verify(self) -> None:
        """Compares all that is held with its checksums.

        Raises:
            ValueError: A trajectory is not what was appended; names its file.
        """
        self._verify(self._segments, self._entries, self._manifest["fields"])

    def _load(self, manifest: Manifest) -> None:
        """Maps all that a manifest names, and releases the rest."""
        self._segments, self._entries = self._map(manifest["held"]["parts"], manifest["fields"])
        self._manifest = manifest

    def _map(
        self, parts: Sequence[Sequence[int]], fields: list[list[Any]]
    ) -> tuple[dict[int, Segment], np.ndarray]:
        """Segments by number, and of each trajectory its segment, its first timestep there, its
        length and CRC-32.
        """
        segments = {number: self._open(number, end, fields) for number, _, end in parts}
        entries = [np.zeros((0, 4), np.int64)]
        for number, first, end in parts:
            lengths, checksums = segments[number].lengths[:end], segments[number].checksums[:end]
            starts = lengths.cumsum() - lengths
            entries.append(np.stack([np.full(end, number), starts, lengths, checksums], 1)[first:])
        return segments, np.concatenate(entries)

    def _open(self, number: int, end: int, fields: list[list[Any]]) -> Segment:
        """A segment, mapped so far that it has ``end`` trajectories; ``FileNotFoundError`` if it
        has not.
        """
        segment = self._segments.get(number)
        try:
            if segment is None or len(segment.lengths) < end:
                segment = Segment.open(self.path, number)
            lengths = segment.lengths[:end]
            is_whole = len(lengths) == end and (lengths >= 1).all()
            if not is_whole or len(segment.data) < lengths.sum() * width_of(fields):
                raise FileNotFoundError
        except FileNotFoundError as error:
            raise FileNotFoundError(f"segment {number} in {self.path}") from error
        return segment

    def _verify(
        self, segments: Mapping[int, Segment], entries: np.ndarray, fields: list[list[Any]]
    ) -> None:
        width = width_of(fields)
        for number, start, length, checksum in entries.tolist():
            data = segments[number].data[start * width : (start + length) * width]
            name = f"trajectory at timestep {start} of {self.path / str(number)}.steps"
            crc = zlib.crc32(data.data)
            require(
                STORE, name, f"CRC-32 {crc}", crc == checksum, f"be as it was appended ({REMEDY})"
            )

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_appended(self) -> int:
        """Number of trajectories appended so far, evicted ones included."""
        return int(self._manifest["held"]["num_appended"])

    @property
    def fields(self) -> dict[NestedKey, tuple[torch.Size, torch.dtype]]:
        """Shape and dtype of every entry of a timestep, by key; none before the first
        trajectory.
        """
        return {
            tuple(key) if len(key) > 1 else key[0]: (torch.Size(size), DTYPES[dtype])
            for key, dtype, size in self._manifest["fields"]
        }

    @property
    def lengths(self) -> Tensor:
        """Number of timesteps of each trajectory held: ``[len]`` int64, oldest first."""
        return torch.from_numpy(self._entries[:, 2].copy())

    def get(self, index: int | slice | Sequence[int] | Tensor) -> TensorDict:
        """Copies trajectories out: ``[B, L]``, zeros after the end of each, and ``mask``
        ``[B, L, 1]``.

        L is the length of the longest of them.

        Args:
            index: Positions, 0 is the oldest; an int gives ``[L]``.

        Raises:
            IndexError: Nothing is held at a position.
        """
        if isinstance(index, int):
            return self.get([index])[0]
        entries = self._entries[index if isinstance(index, slice) else np.asarray(index, np.int64)]
        lengths = entries[:, 2]
        shape = (len(entries), int(lengths.max(initial=0)))
        fields = [
            (tuple(key), DTYPES[dtype], size) for key, dtype, size in self._manifest["fields"]
        ]
        sizes = [dtype.itemsize * math.prod(size) for _, dtype, size in fields]
        values = [
            torch.zeros(shape[0], shape[1] * math.prod(size), dtype=dtype)
            for _, dtype, size in fields
        ]
        columns = [
            value.view(torch.uint8).numpy() for value in values
        ]  # assigning to NumPy is faster
        for b, (number, start, length, _) in enumerate(entries.tolist()):
            data, place = self._segments[number].data, start * sum(sizes)
            for column, size in zip(columns, sizes, strict=True):
                column[b, : length * size] = data[place : place + length * size]
                place += length * size
        mask = torch.arange(shape[1]) < torch.from_numpy(lengths).unsqueeze(-1)
        out = TensorDict({"mask": mask.unsqueeze(-1)}, batch_size=shape)
        for (key, _, size), value in zip(fields, values, strict=True):
            out.set(key, value.view(*shape, *size))
        return out

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Copies the files into a folder, for `TrajectoryFollower` or `TrajectoryStorage.loads`."""
        if read_manifests(Path(path)):  # of an earlier time
            shutil.rmtree(path)
        shutil.copytree(self.path, path, ignore=shutil.ignore_patterns("lock"), dirs_exist_ok=True)

    def contains(self, item: int) -> bool:
        """Whether ``item`` is the position of a trajectory."""
        return 0 <= item < len(self)

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Refused: trajectories can only be appended."""
        raise RuntimeError(f"{STORE}: a trajectory must not be changed, got set({cursor})")
