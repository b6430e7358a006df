"""Whole trajectories on disk, which survive the process and can be rolled back.

A trajectory is a sequence of timesteps of any entries (``[L]``), kept without padding in a file of
several trajectories, a segment (`yamame.replay.disk.files`). Appending evicts the oldest
trajectories once more than ``capacity`` timesteps are held.

Laws: a trajectory is read back bit for bit; after a kill at any moment the folder holds a state
between two appends; `TrajectoryStorage.load_state_dict` brings a protected state back bit for bit,
or refuses to.
"""

import functools
import itertools
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

from yamame.checks import require, require_at_least
from yamame.replay.disk.files import (
    FORMAT,
    REMEDY,
    STORE,
    check_fields,
    checked_state,
    fields_of,
    flatten,
    flush,
    lock,
    read_manifests,
    to_bytes,
    without_first,
    write,
    write_manifest,
)
from yamame.replay.disk.follower import TrajectoryFollower as TrajectoryFollower

SEGMENTS = 16
"""Segments of a full store. While the oldest is evicted, it stays on disk, beside the capacity."""
COPIED_AT_ONCE = 64
"""Trajectories in memory while a store is copied."""


class TrajectoryStorage(TrajectoryFollower):
    """A TorchRL storage whose items are whole trajectories, memory-mapped, in one folder.

    The entries of a timestep are decided by the first `append`. One process writes, a second one is
    refused; any number may follow (`TrajectoryFollower`, which is also what a pickled storage
    arrives as).

    **Exact resume.** `state_dict` is a few numbers; what they name is on the disk before they are
    returned, so that a power cut leaves no checkpoint without its trajectories. `load_state_dict`
    rolls the store back: what was appended after it disappears, what was evicted after it comes
    back, compared with its checksums. That needs the older trajectories to be there still, so a
    checkpoint calls `protect` once it is on disk: what the last ``keep`` protected states hold is
    not deleted. On disk are thus at most ``1 + keep`` times the capacity; about once, if
    checkpoints are made much more often than everything is replaced.

    Args:
        path: The folder; created with its parents.
        capacity: Largest number of timesteps held.
        owner: Whose trajectories these are, e.g. the name of a run; None: whoever's ``path`` holds.
        keep: How many protected states can be rolled back to.
        resume: Continue the store that ``path`` holds, if it does.

    Raises:
        ValueError: On a value outside its range; on a folder that holds something else, a store of
            another owner, capacity or format, one that another process writes, or one at all unless
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

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        capacity: int,
        owner: str | None = "",
        keep: int = 2,
        resume: bool = False,
    ) -> None:
        require_at_least(STORE, 1, capacity=capacity, keep=keep)
        path = Path(path).absolute()
        manifests = read_manifests(path)
        if owner is None:
            owner = manifests[0]["owner"] if manifests else ""
        wanted = {"format": FORMAT, "owner": owner, "capacity": capacity}
        for name, value in wanted.items() if manifests else ():
            require(
                STORE,
                name,
                value,
                value == manifests[0][name],
                f"be {manifests[0][name]!r} as in {path}",
            )
        require(
            STORE, "path", str(path), resume or not manifests, "be new or empty unless resume=True"
        )
        path.mkdir(parents=True, exist_ok=True)
        self._unlock = weakref.finalize(self, os.close, lock(path))
        if not manifests:
            held = {"num_appended": 0, "parts": []}
            manifest = wanted | {
                "number": 0,
                "fields": [],
                "num_segments": 0,
                "held": held,
                "protected": [],
            }
            write_manifest(path, manifest)
            flush(path.parent)
        super().__init__(path)
        self.keep = keep
        self._on_disk = {int(file.stem) for file in path.glob("*.manifest")} if manifests else set()
        """Manifests that are known to be on the disk; at first, all that another process may have
        flushed.
        """
        self._unflushed = {number for number, _, _ in self._manifest["held"]["parts"]}
        """Segments that may not be on the disk."""
        self._tail: tuple[int, int, int] | None = None
        """The segment that is appended to, the number of its trajectories and of their
        timesteps.
        """

    def close(self) -> None:
        """Closes the files; what is stored stays. Nothing else may be called afterwards."""
        super().close()
        self._unlock()

    def refresh(self) -> None:
        """Nothing to do: the writer knows."""

    def append(self, trajectories: TensorDictBase | Sequence[TensorDictBase]) -> Tensor:
        """Appends trajectories, oldest first, all of them or none.

        Args:
            trajectories: ``[n, L]``, right padded, with a bool ``mask`` (none: no padding), or a
                list of ``[L_i]``.

        Returns:
            Their numbers ``[n]`` int64, counted from the first trajectory ever appended. If
            together they exceed the capacity, the first of them are evicted at once.

        Raises:
            ValueError: A trajectory is empty, not right padded, not packed (`yamame.replay.pack`),
                longer than the capacity, or of other entries.
            OSError: The disk is full. Nothing was appended.
        """
        timesteps, lengths = flatten(trajectories)
        numbers = self.num_appended + torch.arange(len(lengths))
        if not len(lengths):
            return numbers
        capacity, longest = self._manifest["capacity"], int(lengths.max())
        require(
            STORE, "length of a trajectory", longest, longest <= capacity, f"be at most {capacity}"
        )
        fields = self._manifest["fields"] or fields_of(timesteps)
        check_fields(fields, timesteps)
        number, count, size = self._tail or (self._manifest["num_segments"], 0, 0)
        if size >= max(1, capacity // SEGMENTS):
            number, count, size = number + 1, 0, 0
        self._tail = None  # if this fails, the next append begins a segment
        columns = [to_bytes(timesteps.get(tuple(key))) for key, _, _ in fields]
        ends = lengths.cumsum()
        steps = [
            [column[end - n : end] for column in columns]
            for n, end in zip(lengths, ends, strict=True)
        ]
        checksums = [
            functools.reduce(lambda crc, part: zlib.crc32(part.data, crc), parts, 0)
            for parts in steps
        ]
        self._unflushed.add(number)
        mode = "ab" if count else "wb"  # an append that failed may have left something
        write(self.path / f"{number}.steps", mode, itertools.chain.from_iterable(steps))
        write(
            self.path / f"{number}.index",
            mode,
            [np.stack([lengths, checksums], 1).astype(np.int64)],
        )
        tail = (number, count + len(lengths), size + int(ends[-1]))

        every = np.concatenate([self._entries[:, 2], lengths])
        evicted = len(every) - int((every[::-1].cumsum() <= capacity).sum())
        parts = without_first(evicted, [*self._manifest["held"]["parts"], [number, count, tail[1]]])
        held = {"num_appended": self.num_appended + len(lengths), "parts": parts}
        self._publish(fields=fields, num_segments=number + 1, held=held)
        self._tail = tail
        return numbers

    def _publish(self, *, to_disk: bool = False, **changes: Any) -> None:
        """Makes a changed manifest the present one, and deletes what neither it nor a checkpoint
        names.
        """
        manifest = {**self._manifest, **changes, "number": self._manifest["number"] + 1}
        write_manifest(self.path, manifest, to_disk=to_disk)
        if to_disk:
            self._on_disk = {manifest["number"]}
        self._load(manifest)
        named = {
            part[0] for held in (manifest["held"], *manifest["protected"]) for part in held["parts"]
        }
        present = {
            ".steps": named,
            ".index": named,
            ".manifest": {*self._on_disk, manifest["number"]},
        }
        for file in self.path.iterdir():
            if file.suffix in present and int(file.stem) not in present[file.suffix]:
                file.unlink()

    def state_dict(self) -> dict[str, Any]:
        """Which trajectories are held, in a few numbers; what they hold is in the folder, and on
        the disk.

        Raises:
            OSError: It cannot be brought there.
        """
        self._flush(self._manifest["held"]["parts"])
        if self._on_disk != {self._manifest["number"]}:
            self._publish(to_disk=True)
        return {"owner": self._manifest["owner"], **self._manifest["held"]}

    def _flush(self, parts: Sequence[Sequence[int]]) -> None:
        for number in sorted({number for number, _, _ in parts} & self._unflushed):
            flush(self.path / f"{number}.steps")
            flush(self.path / f"{number}.index")
            self._unflushed.remove(number)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Rolls back to a former state, which is protected from now on; states after it no longer
        are.

        Raises:
            ValueError: The state is of another owner, or some of its trajectories are gone or
                damaged.
        """
        owner, held, fields = (
            self._manifest["owner"],
            checked_state(state_dict),
            self._manifest["fields"],
        )
        require(
            STORE,
            "owner of the state",
            state_dict["owner"],
            state_dict["owner"] == owner,
            f"be {owner!r}",
        )
        try:
            segments, entries = self._map(held["parts"], fields)
        except FileNotFoundError as error:
            message = f"got none of {error}: protect() it in time, or {REMEDY}"
            raise ValueError(
                f"{STORE}: trajectories of the state must still be there, {message}"
            ) from error
        self._verify(segments, entries, fields)
        self._tail = None  # never appended to where something was appended after this state
        self._unflushed |= segments.keys()  # it may be a copy
        self._flush(held["parts"])
        self._publish(to_disk=True, held=held)
        self.protect()

    def protect(self) -> None:
        """Keeps what is held now, to be rolled back to, and that of the ``keep - 1`` protected
        states before.
        """
        held = self._manifest["held"]
        older = [
            one for one in self._manifest["protected"] if one["num_appended"] < held["num_appended"]
        ]
        self._publish(protected=[*older, held][-self.keep :])

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Replaces what is held by what `dumps` wrote."""
        source = TrajectoryFollower(path)
        source.verify()
        self._empty()
        for first in range(0, len(source), COPIED_AT_ONCE):
            self.append(source.get(slice(first, first + COPIED_AT_ONCE)))

    def _empty(self) -> None:
        self._tail = None
        self._publish(held={"num_appended": self.num_appended, "parts": []})
