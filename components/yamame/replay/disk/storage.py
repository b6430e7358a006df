"""Whole trajectories on disk that survive the process and can be rolled back.

A trajectory is a sequence of timesteps ``[L]`` with any entries. It is stored without padding in a
segment, a file of several trajectories (`yamame.replay.disk.files`). Appending evicts the oldest
trajectories once more than ``capacity`` timesteps are held, and takes the same time however many
trajectories are held (`yamame.replay.disk.index`).

Laws: a trajectory is read back bit for bit; after a kill at any moment the folder holds a state
between two appends; `TrajectoryStorage.load_state_dict` restores a protected state bit for bit, or
raises.
"""

import os
import weakref
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from yamame.checks import PositiveInt, check_bounds, require
from yamame.files.paths import check_tree
from yamame.replay.disk.files import (
    FORMAT,
    REMEDY,
    STORE,
    Manifest,
    Segment,
    check_fields,
    checked_state,
    fields_of,
    flatten,
    flush,
    lock,
    map_bytes,
    number_of,
    read_manifests,
    to_bytes,
    without_first,
    write,
    write_manifest,
)
from yamame.replay.disk.follower import TrajectoryFollower as TrajectoryFollower
from yamame.replay.disk.index import CHECKSUM, LENGTH, NUM_COLUMNS, TrajectoryIndex, index_rows

SEGMENTS = 16
"""Segments of a full store. While the oldest is being evicted, it stays on disk in addition."""
COPIED_AT_ONCE = 64
"""Trajectories in memory while a store is copied."""


class TrajectoryStorage(TrajectoryFollower):
    """A TorchRL storage whose items are whole trajectories, memory-mapped, in one folder.

    The first `append` decides the entries of a timestep. One process writes, a second writer
    raises, and any number may read (`TrajectoryFollower`, which a pickled storage becomes).

    **Exact resume.** `state_dict` is a few numbers. The trajectories that they name are flushed
    before it returns, so a power cut leaves no checkpoint without its trajectories.
    `load_state_dict` rolls the store back: trajectories appended since are removed, evicted ones
    are restored after a comparison with their checksums. This requires the older files, so
    `protect` must be called once a checkpoint is on disk: files of the last ``keep`` protected
    states are not deleted. Disk use is at most ``1 + keep`` times the capacity, and about the
    capacity if checkpoints are much more frequent than the replacement of all trajectories.

    Args:
        path: Folder; created with its parents.
        capacity: Largest number of timesteps held.
        owner: Name of the owner of the trajectories, e.g. of a run. None accepts any owner.
        keep: Number of latest checkpoints (`protect`) whose trajectories stay on disk, so that they
            can be resumed.
        resume: Whether to continue a store that exists in ``path``.

    Raises:
        ValueError: A value is out of range. The folder holds something else, a store of another
            owner, capacity or format, a store that another process writes, or any store unless
            ``resume``.

    >>> import tempfile
    >>> from tensordict import TensorDict
    >>> storage = TrajectoryStorage(tempfile.mkdtemp(), capacity=10)
    >>> mask = torch.tensor([[True, True, True], [True, True, False]])
    >>> two = TensorDict(
    ...     {"observation": torch.arange(6.0).reshape(2, 3), "mask": mask},
    ...     batch_size=[2, 3],
    ... )
    >>> storage.append(two)
    tensor([0, 1])
    >>> storage.get([1, 0])["observation"]
    tensor([[3., 4., 0.],
            [0., 1., 2.]])
    """

    @check_bounds
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        capacity: PositiveInt,
        owner: str | None = "",
        keep: PositiveInt = 2,
        resume: bool = False,
    ) -> None:
        path = Path(path).absolute()
        manifests = read_manifests(path)
        if owner is None:
            owner = manifests[0]["owner"] if manifests else ""

        wanted = {"format": FORMAT, "owner": owner, "capacity": capacity}
        if manifests:
            for name, value in wanted.items():
                stored = manifests[0][name]
                require(STORE, name, value, value == stored, f"be {stored!r} as in {path}")
            require(STORE, "path", str(path), resume, "be new or empty unless resume=True")

        check_tree(path)
        path.mkdir(parents=True, exist_ok=True)
        self._unlock = weakref.finalize(self, os.close, lock(path))
        if not manifests:
            manifest: Manifest = {
                **wanted,
                "number": 0,
                "fields": [],
                "num_segments": 0,
                "held": {"num_appended": 0, "parts": []},
                "protected": [],
            }
            write_manifest(path, manifest)
            # The new folder is a name in its parent, which must survive a power cut as well.
            flush(path.parent)
        super().__init__(path)
        self.keep = keep

        # Manifests known to be flushed. At first all: an earlier process may have flushed any.
        self._on_disk: set[int] = set()
        if manifests:
            numbers = map(number_of, path.glob("*.manifest"))
            self._on_disk = {number for number in numbers if number is not None}
        # Segments that may not be flushed.
        self._unflushed = {number for number, _, _ in self._manifest["held"]["parts"]}
        # Segment that is appended to, with the numbers of its trajectories and timesteps.
        self._tail: tuple[int, int, int] | None = None

    def close(self) -> None:
        """Close the files. The stored trajectories stay; no other method may be called later."""
        super().close()
        self._unlock()

    def refresh(self) -> None:
        """Do nothing: the writer is always up to date."""

    def append(self, trajectories: TensorDictBase | Sequence[TensorDictBase]) -> Tensor:
        """Append trajectories, oldest first, all of them or none.

        Args:
            trajectories: ``[n, L]``, right padded, with a bool ``mask`` (without one: no padding),
                or a list of ``[L_i]``.

        Returns:
            Numbers of the trajectories ``[n]`` int64, counted from the first one ever appended. If
            together they exceed the capacity, the first of them are evicted at once.

        Raises:
            ValueError: A trajectory is empty, not right padded, not packed (`yamame.replay.pack`),
                longer than the capacity, or has other entries.
            OSError: The disk is full. Nothing was appended.
        """
        timesteps, lengths = flatten(trajectories)
        numbers = self.num_appended + torch.arange(len(lengths))
        if not len(lengths):
            return numbers

        capacity = self._manifest["capacity"]
        longest = int(lengths.max())
        name = "length of a trajectory"
        require(STORE, name, longest, longest <= capacity, f"be at most {capacity}")
        fields = self._manifest["fields"] or fields_of(timesteps)
        check_fields(fields, timesteps)

        number, num_before, timesteps_before = self._next_place()
        # If this append fails, the segment may end in a fragment: the next one begins another.
        self._tail = None
        rows = self._write(number, num_before, timesteps_before, timesteps, lengths, fields)
        data = map_bytes(self.path, number)

        num_in_segment = num_before + len(lengths)
        appended = [*self._manifest["held"]["parts"], [number, num_before, num_in_segment]]
        num_evicted = self._index.count_excess(lengths.tolist(), capacity=capacity)
        parts = without_first(num_evicted, appended)
        held = {"num_appended": self.num_appended + len(lengths), "parts": parts}
        self._replace_manifest(fields=fields, num_segments=number + 1, held=held)

        self._index.append(rows)
        self._index.evict(num_evicted)
        # Rows of the segment stand in the index; a rollback reads them from the file.
        self._segments[number] = Segment(rows[:0], data)
        self._tail = (number, num_in_segment, timesteps_before + int(lengths.sum()))
        self._delete_unnamed()
        return numbers

    def _next_place(self) -> tuple[int, int, int]:
        """Return the segment to append to, and the trajectories and timesteps that it holds."""
        if self._tail is None:
            return self._manifest["num_segments"], 0, 0
        number, _, num_timesteps = self._tail
        if num_timesteps >= max(1, self._manifest["capacity"] // SEGMENTS):
            return number + 1, 0, 0
        return self._tail

    def _write(
        self,
        number: int,
        num_before: int,
        timesteps_before: int,
        timesteps: TensorDictBase,
        lengths: np.ndarray,
        fields: list[list[Any]],
    ) -> np.ndarray:
        """Write trajectories to the files of a segment, and return their rows of the index."""
        columns = [to_bytes(timesteps.get(tuple(key))) for key, _, _ in fields]
        buffers = []
        checksums = []
        start = 0
        for length in lengths.tolist():
            checksum = 0
            for column in columns:
                values = column[start : start + length]
                checksum = zlib.crc32(values.data, checksum)
                buffers.append(values)
            checksums.append(checksum)
            start += length

        rows = index_rows(
            number,
            first_timestep=timesteps_before,
            lengths=lengths,
            checksums=np.array(checksums, np.int64),
        )
        self._unflushed.add(number)
        # A new segment may have files, left by an append that failed.
        mode = "ab" if num_before else "wb"
        write(self.path / f"{number}.steps", mode, buffers)
        pairs = np.ascontiguousarray(rows[:, [LENGTH, CHECKSUM]])
        write(self.path / f"{number}.index", mode, [pairs])
        return rows

    def _replace_manifest(self, *, to_disk: bool = False, **changes: Any) -> None:
        """Write a changed manifest."""
        number = self._manifest["number"] + 1
        manifest = {**self._manifest, **changes, "number": number}
        write_manifest(self.path, manifest, to_disk=to_disk)
        self._manifest = manifest
        if to_disk:
            self._on_disk = {number}

    def _delete_unnamed(self) -> None:
        """Delete files that neither the manifest nor a protected state names."""
        held = {part[0] for part in self._manifest["held"]["parts"]}
        for number in self._segments.keys() - held:
            del self._segments[number]

        named = set(held)
        for state in self._manifest["protected"]:
            named.update(part[0] for part in state["parts"])
        present = {
            ".steps": named,
            ".index": named,
            ".manifest": {*self._on_disk, self._manifest["number"]},
        }
        for file in self.path.iterdir():
            its_number = number_of(file)
            if its_number is not None and its_number not in present[file.suffix]:
                file.unlink()

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers that `load_state_dict` needs, once their trajectories are flushed.

        Raises:
            OSError: The trajectories cannot be flushed.
        """
        self._flush(self._manifest["held"]["parts"])
        if self._on_disk != {self._manifest["number"]}:
            self._replace_manifest(to_disk=True)
            self._delete_unnamed()
        return {"owner": self._manifest["owner"], **self._manifest["held"]}

    def _flush(self, parts: Sequence[Sequence[int]]) -> None:
        named = {number for number, _, _ in parts}
        for number in sorted(named & self._unflushed):
            flush(self.path / f"{number}.steps")
            flush(self.path / f"{number}.index")
            self._unflushed.remove(number)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Roll back to a former state, and protect it. Later states are no longer protected.

        Raises:
            ValueError: The state has another owner, or some of its trajectories are missing or
                damaged.
        """
        owner = self._manifest["owner"]
        other = state_dict["owner"]
        require(STORE, "owner of the state", other, other == owner, f"be {owner!r}")
        held = checked_state(state_dict)
        fields = self._manifest["fields"]
        try:
            segments, index = self._map(held["parts"], fields)
        except FileNotFoundError as error:
            raise ValueError(
                f"{STORE}: trajectories of the state are missing, {error}; call protect() after "
                f"each checkpoint, or {REMEDY}"
            ) from error
        self._verify(segments, index.rows, fields)

        # A segment that was appended to after this state is never appended to again.
        self._tail = None
        # The folder may be a copy that was never flushed.
        self._unflushed |= segments.keys()
        self._flush(held["parts"])
        self._replace_manifest(to_disk=True, held=held)
        self._segments = segments
        self._index = index
        self._delete_unnamed()
        self.protect()

    def protect(self) -> None:
        """Protect the present state and the ``keep - 1`` protected states before it."""
        held = self._manifest["held"]
        states = []
        for state in self._manifest["protected"]:
            if state["num_appended"] < held["num_appended"]:
                states.append(state)
        states.append(held)
        self._replace_manifest(protected=states[-self.keep :])
        self._delete_unnamed()

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Replace all trajectories by those that `dumps` copied."""
        source = TrajectoryFollower(path)
        source.verify()
        self._empty()
        for first in range(0, len(source), COPIED_AT_ONCE):
            self.append(source.get(slice(first, first + COPIED_AT_ONCE)))

    def _empty(self) -> None:
        self._tail = None
        self._replace_manifest(held={"num_appended": self.num_appended, "parts": []})
        self._index = TrajectoryIndex(np.zeros((0, NUM_COLUMNS), np.int64))
        self._delete_unnamed()
