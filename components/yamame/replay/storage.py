"""Whole trajectories on disk: a ring of timesteps that survives the process and can be rolled back.

A trajectory is a sequence of timesteps of any entries (``[L]``), kept contiguously, without padding.
Appending evicts the oldest trajectories once more than ``capacity`` timesteps are held.

Laws: a trajectory is read back bit for bit or not at all; after a kill at any moment the folder holds a state
between two appends; `TrajectoryStorage.load_state_dict` brings a protected state back bit for bit.
"""

import bisect
import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from yamame.replay.follower import TrajectoryFollower
from yamame.replay.layout import (
    INDEX_WIDTH,
    Header,
    Meta,
    Values,
    check_fields,
    fields_of,
    flatten,
    place,
    raw,
    resize,
    write_all,
)


class TrajectoryStorage(TrajectoryFollower):
    """A TorchRL storage whose items are whole trajectories, memory-mapped, in one folder.

    The fields are decided by the first `append`. The files are sparse: they take disk space as they are
    filled. One process writes, a second one is refused; any number may follow (`TrajectoryFollower`, which is
    also what a pickled storage arrives as). What was appended survives the death of the process, not of the
    machine.

    **Exact resume.** `state_dict` is a few numbers. `load_state_dict` rolls the store back: what was appended
    after it disappears, what was evicted after it comes back. That needs the rows of the older state to be
    there still, so a checkpoint calls `protect` once it is on disk. From then on the store uses its slack to
    go on, and when that is used up (`needs_protect`), `append` refuses until a newer state is protected.

    Args:
        path: The folder; created with its parents.
        capacity: Largest number of timesteps held. Rows skipped at the end of the files, where a trajectory
            did not fit, count too.
        owner: Whose trajectories these are, e.g. the name of a run.
        slack: Room beyond ``capacity`` for what was evicted but is protected, as a fraction of ``capacity``.
            At least the largest append plus the longest trajectory. It also lets an append that fails leave
            everything as it was; without slack the oldest trajectories are gone then.
        resume: Continue the store that ``path`` holds, if it does.

    Raises:
        ValueError: On a value outside its range; on a folder that holds something else, a store of another
            owner, size or format, one that another process writes, or one at all unless ``resume``.

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
        owner: str = "",
        slack: float = 0.25,
        resume: bool = False,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"TrajectoryStorage: capacity must be at least 1, got {capacity}")
        if slack < 0:
            raise ValueError(f"TrajectoryStorage: slack must be at least 0, got {slack}")
        path = Path(path).absolute()
        wanted = Meta(owner, capacity, capacity + int(slack * capacity))
        found = Meta.load(path)
        if found is not None:
            wanted.check_same(found, path)
            if not resume:
                raise ValueError(
                    f"TrajectoryStorage: path must be new or empty unless resume=True, got {path}"
                )
        path.mkdir(parents=True, exist_ok=True)
        self._setup(path, found or wanted)
        self._lock()
        if found is None:
            wanted.save(path)
        elif found.fields is not None:
            self._open_for_writing()

    def _lock(self) -> None:
        try:
            fcntl.lockf(self._open("lock", os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise ValueError(
                f"TrajectoryStorage: path must not be written by another process, got {self.path}"
            ) from error

    def _open_for_writing(self) -> None:
        for name in self._sizes():
            self._open(name, os.O_RDWR)
        self._open("index", os.O_RDWR)
        self._open_files(os.O_RDWR)

    def refresh(self) -> None:
        """Nothing to do: the writer knows."""

    def _still_held(self, ids: np.ndarray) -> np.ndarray:
        return np.ones(len(ids), dtype=bool)

    def append(self, trajectories: TensorDictBase | Sequence[TensorDictBase]) -> Tensor:
        """Appends trajectories, oldest first, all of them or none.

        Args:
            trajectories: ``[n, L]``, right padded, with a bool ``mask`` (none: no padding), or a list of
                ``[L_i]``.

        Returns:
            Their numbers ``[n]`` int64, counted from the first trajectory ever appended. If together they
            exceed the capacity, the first of them are evicted at once.

        Raises:
            ValueError: A trajectory is empty, not right padded, longer than the capacity, or of other fields.
            RuntimeError: Protected rows would be overwritten.
            OSError: The disk is full. Nothing was appended.
        """
        values, lengths = flatten(trajectories)
        before, rows, capacity = self._cursors, self._meta.rows, self._meta.capacity
        if not len(lengths):
            return torch.zeros(0, dtype=torch.int64)
        if lengths.max() > capacity:
            raise ValueError(
                f"TrajectoryStorage: a trajectory must have at most {capacity} timesteps, got {lengths.max()}"
            )
        self._agree_on_fields(values)
        starts, end = place(before.row, lengths, rows)
        if before.protected >= 0 and end - rows > before.protected:
            raise RuntimeError(
                f"TrajectoryStorage: append must not overwrite protected rows, got {lengths.sum()} timesteps "
                f"for {self.path}: protect() a newer state first, or give it more slack"
            )
        # An eviction is published before anything that belongs to the evicted is overwritten.
        self._publish(first=self._first_from(end - rows), dirty=max(before.dirty, end))
        gone = int(np.searchsorted(starts, end - capacity))
        self._write(values, starts, lengths, gone)
        first = self._first_from(end - capacity) + gone
        self._publish(first=first, next=before.next + len(lengths), row=end)
        return torch.arange(before.next, before.next + len(lengths))

    def _agree_on_fields(self, values: Values) -> None:
        fields = fields_of(values)
        if self._meta.fields is None:
            self._create_files(Meta(self._meta.owner, self._meta.capacity, self._meta.rows, fields))
        else:
            check_fields(self._meta.fields, fields)

    def _create_files(self, meta: Meta) -> None:
        former, self._meta = self._meta, meta
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        try:
            for name, row_bytes in {**self._sizes(), "index": 8 * INDEX_WIDTH}.items():
                resize(self._open(name, flags), meta.rows * row_bytes, self.path / name)
            Header(self._open("header", flags), self.path / "header").create()
            meta.save(self.path)
        except OSError:
            self._meta = former
            raise
        self._open_files(os.O_RDWR)

    def _first_from(self, row: int) -> int:
        """Number of the oldest trajectory that begins at ``row`` or later."""
        ids = range(self._cursors.first, self._cursors.next)
        return ids.start + bisect.bisect_left(
            ids, row, key=lambda i: int(self._index[i % self._meta.rows, 0])
        )

    def _publish(self, **changes: int) -> None:
        cursors = self._cursors._replace(**changes)
        self._header.publish(cursors)
        self._cursors = cursors

    def _write(self, values: Values, starts: np.ndarray, lengths: np.ndarray, gone: int) -> None:
        """Writes all but the first ``gone`` trajectories: in one run before a lap ends, one after."""
        rows = self._meta.rows
        source = np.concatenate([[0], lengths.cumsum()])
        wrap = int(np.searchsorted(starts, (starts[gone] // rows + 1) * rows))
        for begin, end in ((gone, wrap), (wrap, len(starts))):
            if begin < end:
                for name, field in zip(self._sizes(), self._meta.fields or (), strict=True):
                    data = raw(values[field.key][source[begin] : source[end]])
                    self._write_at(name, data, int(starts[begin]) % rows * field.row_bytes)
        generation = np.full_like(lengths, self._cursors.generation)
        entries = np.stack([starts, lengths, generation], -1)[gone:]
        slot = (self._cursors.next + gone) % rows
        for part, to in ((entries[: rows - slot], slot), (entries[rows - slot :], 0)):
            self._write_at("index", part, to * 8 * INDEX_WIDTH)

    def _write_at(self, name: str, data: np.ndarray, offset: int) -> None:
        if data.size:
            write_all(self._descriptors[name], data, offset, self.path / name)

    def state_dict(self) -> dict[str, Any]:
        """Which trajectories are held, in a few numbers; what they hold stays in the folder."""
        now = self._cursors
        start = int(self._index[now.first % self._meta.rows, 0]) if len(self) else now.row
        return {
            "owner": self._meta.owner,
            "generation": now.generation,
            "first": now.first,
            "next": now.next,
            "row": now.row,
            "start": start,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Rolls back to a former state. If a state is protected, this one is from now on, instead.

        Raises:
            ValueError: The state is of another owner or newer than the store, or some of its rows are
                overwritten.
        """
        self._check_restorable(state_dict)
        if not self._maps:
            return
        self._publish(
            generation=self._cursors.generation + 1,
            protected=_protected(state_dict) if self._cursors.protected >= 0 else -1,
            **{name: state_dict[name] for name in ("first", "next", "row")},
        )

    def protect(self, state_dict: Mapping[str, Any] | None = None) -> None:
        """Keeps every row of a state, to be rolled back to; the state protected before is released.

        Args:
            state_dict: What `state_dict` returned. None: the present state.
        """
        state_dict = self.state_dict() if state_dict is None else state_dict
        self._check_restorable(state_dict)
        if self._maps:
            self._publish(protected=_protected(state_dict))

    def needs_protect(self, num_timesteps: int) -> bool:
        """Whether appending ``num_timesteps`` might have to overwrite protected rows.

        If not, `append` will not refuse them, however they are divided into trajectories.
        """
        rows, row = self._meta.rows, self._cursors.row
        left = rows - row % rows
        end = row + num_timesteps + (left if num_timesteps > left else 0)
        return self._cursors.protected >= 0 and end - rows > self._cursors.protected

    def _check_restorable(self, state: Mapping[str, Any]) -> None:
        if state["owner"] != self._meta.owner:
            raise ValueError(
                f"TrajectoryStorage: owner of the state must be {self._meta.owner!r}, got {state['owner']!r}"
            )
        if state["next"] > self._cursors.next:
            raise ValueError(
                f"TrajectoryStorage: next of the state must be at most {self._cursors.next}, as appended to "
                f"{self.path}, got {state['next']}"
            )
        ids = np.arange(state["first"], state["next"])
        if not len(ids):
            return
        overwritten = state["start"] < self._cursors.dirty - self._meta.rows
        if overwritten or (self._index[ids % self._meta.rows, 2] > state["generation"]).any():
            raise ValueError(
                f"TrajectoryStorage: rows of the state must not be overwritten, got start={state['start']} "
                f"with rows up to {self._cursors.dirty} written in {self.path}: protect() it in time"
            )

    def _empty(self) -> None:
        if self._maps:
            self._publish(first=self._cursors.next)


def _protected(state: Mapping[str, Any]) -> int:
    return state["start"] if state["first"] < state["next"] else -1
