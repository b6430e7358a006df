"""Whole trajectories on disk, which survive the process and can be rolled back.

A trajectory is a sequence of timesteps of any entries (``[L]``), kept without padding in a file of several
trajectories, a segment (`yamame.replay.disk.files`). Appending evicts the oldest trajectories once more than
``capacity`` timesteps are held.

Laws: a trajectory is read back bit for bit; after a kill at any moment the folder holds a state between two
appends; `TrajectoryStorage.load_state_dict` brings a protected state back bit for bit.
"""

import math
import os
import shutil
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data.replay_buffers import Storage
from yamame.checks import require, require_at_least
from yamame.replay.disk.files import (
    FORMAT,
    STORE,
    Manifest,
    Segment,
    check_fields,
    fields_of,
    flatten,
    lock,
    read_manifest,
    to_bytes,
    without_first,
    write,
    write_manifest,
)

SEGMENTS = 16
"""Segments of a full store. While the oldest is evicted, it stays on disk, beside the capacity."""
COPIED_AT_ONCE = 64
"""Trajectories in memory while a store is copied."""


class TrajectoryFollower(Storage):
    """A read-only TorchRL storage over trajectories that another process may be appending.

    ``len()`` counts trajectories; position 0 is the oldest. What is seen is what was there at the last
    `refresh`, whatever the writer does meanwhile.

    Args:
        path: The folder of a `TrajectoryStorage`.

    Raises:
        ValueError: The folder holds no trajectories, or those of another format.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = Path(path).absolute()
        manifest = read_manifest(path)
        if manifest is None:
            raise ValueError(f"TrajectoryFollower: path must hold trajectories, got {path}")
        super().__init__(max_size=manifest["capacity"])
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
        manifest = read_manifest(self.path)
        assert manifest is not None
        try:
            self._load(manifest)
        except FileNotFoundError:
            if read_manifest(self.path) == manifest:
                raise
            self.refresh()  # the writer deleted a segment after the manifest was read

    def _load(self, manifest: Manifest) -> None:
        """Maps all that a manifest names, and releases the rest."""
        parts = manifest["held"]["parts"]
        self._segments = {number: self._open(number, end) for number, _, end in parts}
        entries = [np.zeros((0, 3), np.int64)]
        for number, first, end in parts:
            lengths = self._segments[number].lengths[:end]
            starts = lengths.cumsum() - lengths
            entries.append(np.stack([np.full(end, number), starts, lengths], 1)[first:])
        # Of each trajectory its segment, its first timestep there, and its length.
        self._entries = np.concatenate(entries)
        self._manifest = manifest

    def _open(self, number: int, end: int) -> Segment:
        """A segment, mapped so far that it has ``end`` trajectories."""
        segment = self._segments.get(number)
        if segment is None or len(segment.lengths) < end:
            segment = Segment.open(self.path, number)
        if len(segment.lengths) < end:
            raise FileNotFoundError(f"{STORE}: segment {number} in {self.path} must have {end} trajectories")
        return segment

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_appended(self) -> int:
        """Number of trajectories appended so far, evicted ones included."""
        return int(self._manifest["held"]["num_appended"])

    @property
    def lengths(self) -> Tensor:
        """Number of timesteps of each trajectory held: ``[len]`` int64, oldest first."""
        return torch.from_numpy(self._entries[:, 2].copy())

    def get(self, index: int | slice | Sequence[int] | Tensor) -> TensorDict:
        """Copies trajectories out: ``[B, L]``, zeros after the end of each, and ``mask`` ``[B, L, 1]``.

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
        fields = [(tuple(key), getattr(torch, dtype), size) for key, dtype, size in self._manifest["fields"]]
        sizes = [dtype.itemsize * math.prod(size) for _, dtype, size in fields]
        values = [torch.zeros(shape[0], shape[1] * math.prod(size), dtype=dtype) for _, dtype, size in fields]
        columns = [value.view(torch.uint8).numpy() for value in values]  # assigning to NumPy is faster
        for b, (number, start, length) in enumerate(entries.tolist()):
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
        if read_manifest(Path(path)) is not None:  # of an earlier time
            shutil.rmtree(path)
        shutil.copytree(self.path, path, ignore=shutil.ignore_patterns("lock"), dirs_exist_ok=True)

    def contains(self, item: int) -> bool:
        """Whether ``item`` is the position of a trajectory."""
        return 0 <= item < len(self)

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Refused: trajectories can only be appended."""
        raise RuntimeError(f"{STORE}: a trajectory must not be changed, got set({cursor})")


class TrajectoryStorage(TrajectoryFollower):
    """A TorchRL storage whose items are whole trajectories, memory-mapped, in one folder.

    The entries of a timestep are decided by the first `append`. One process writes, a second one is refused;
    any number may follow (`TrajectoryFollower`, which is also what a pickled storage arrives as).

    **Exact resume.** `state_dict` is a few numbers. `load_state_dict` rolls the store back: what was appended
    after it disappears, what was evicted after it comes back. That needs the older trajectories to be there
    still, so a checkpoint calls `protect` once it is on disk: what the last ``keep`` protected states hold is
    not deleted. On disk are thus at most ``1 + keep`` times the capacity; about once, if checkpoints are made
    much more often than everything is replaced.

    Args:
        path: The folder; created with its parents.
        capacity: Largest number of timesteps held.
        owner: Whose trajectories these are, e.g. the name of a run; None: whoever's ``path`` holds.
        keep: How many protected states can be rolled back to.
        resume: Continue the store that ``path`` holds, if it does.

    Raises:
        ValueError: On a value outside its range; on a folder that holds something else, a store of another
            owner, capacity or format, one that another process writes, or one at all unless ``resume``.

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
        manifest = read_manifest(path)
        if owner is None:
            owner = "" if manifest is None else manifest["owner"]
        wanted = {"format": FORMAT, "owner": owner, "capacity": capacity}
        if manifest is not None:
            for name, value in wanted.items():
                require(STORE, name, value, value == manifest[name], f"be {manifest[name]!r} as in {path}")
            require(STORE, "path", str(path), resume, "be new or empty unless resume=True")
        path.mkdir(parents=True, exist_ok=True)
        self._unlock = weakref.finalize(self, os.close, lock(path))
        if manifest is None:
            held = {"num_appended": 0, "parts": []}
            manifest = wanted | {"number": 0, "fields": [], "num_segments": 0, "held": held, "protected": []}
            write_manifest(path, manifest)
        super().__init__(path)
        self.keep = keep
        self._tail: tuple[int, int, int] | None = None
        """The segment that is appended to, the number of its trajectories and of their timesteps."""

    def close(self) -> None:
        """Closes the files; what is stored stays. Nothing else may be called afterwards."""
        super().close()
        self._unlock()

    def refresh(self) -> None:
        """Nothing to do: the writer knows."""

    def append(self, trajectories: TensorDictBase | Sequence[TensorDictBase]) -> Tensor:
        """Appends trajectories, oldest first, all of them or none.

        Args:
            trajectories: ``[n, L]``, right padded, with a bool ``mask`` (none: no padding), or a list of
                ``[L_i]``.

        Returns:
            Their numbers ``[n]`` int64, counted from the first trajectory ever appended. If together they
            exceed the capacity, the first of them are evicted at once.

        Raises:
            ValueError: A trajectory is empty, not right padded, not packed (`yamame.replay.pack`), longer than
                the capacity, or of other entries.
            OSError: The disk is full. Nothing was appended.
        """
        timesteps, lengths = flatten(trajectories)
        numbers = self.num_appended + torch.arange(len(lengths))
        if not len(lengths):
            return numbers
        capacity, longest = self._manifest["capacity"], int(lengths.max())
        require(STORE, "length of a trajectory", longest, longest <= capacity, f"be at most {capacity}")
        fields = self._manifest["fields"] or fields_of(timesteps)
        check_fields(fields, timesteps)
        number, count, size = self._tail or (self._manifest["num_segments"], 0, 0)
        if size >= max(1, capacity // SEGMENTS):
            number, count, size = number + 1, 0, 0
        self._tail = None  # if this fails, the next append begins a segment
        columns = [to_bytes(timesteps.get(tuple(key))) for key, _, _ in fields]
        ends = lengths.cumsum()
        steps = (column[end - n : end] for n, end in zip(lengths, ends, strict=True) for column in columns)
        mode = "ab" if count else "wb"  # an append that failed may have left something
        write(self.path / f"{number}.steps", mode, steps)
        write(self.path / f"{number}.lengths", mode, [lengths])
        tail = (number, count + len(lengths), size + int(ends[-1]))

        every = np.concatenate([self._entries[:, 2], lengths])
        evicted = len(every) - int((every[::-1].cumsum() <= capacity).sum())
        parts = without_first(evicted, [*self._manifest["held"]["parts"], [number, count, tail[1]]])
        held = {"num_appended": self.num_appended + len(lengths), "parts": parts}
        self._publish(fields=fields, num_segments=number + 1, held=held)
        self._tail = tail
        return numbers

    def _publish(self, **changes: Any) -> None:
        """Makes a changed manifest the present one, and deletes what it does not name."""
        manifest = {**self._manifest, **changes, "number": self._manifest["number"] + 1}
        write_manifest(self.path, manifest)
        self._load(manifest)
        named = {part[0] for held in (manifest["held"], *manifest["protected"]) for part in held["parts"]}
        present = {".steps": named, ".lengths": named, ".manifest": {manifest["number"]}}
        for file in self.path.iterdir():
            if file.suffix in present and int(file.stem) not in present[file.suffix]:
                file.unlink()

    def state_dict(self) -> dict[str, Any]:
        """Which trajectories are held, in a few numbers; what they hold stays in the folder."""
        return {"owner": self._manifest["owner"], **self._manifest["held"]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Rolls back to a former state, which is protected from now on; states after it no longer are.

        Raises:
            ValueError: The state is of another owner, or some of its trajectories are gone.
        """
        owner, held = self._manifest["owner"], {name: state_dict[name] for name in ("num_appended", "parts")}
        require(
            STORE, "owner of the state", state_dict["owner"], state_dict["owner"] == owner, f"be {owner!r}"
        )
        try:
            for number, _, end in held["parts"]:
                self._open(number, end)
        except FileNotFoundError as error:
            message = f"got none of segment {number} in {self.path}: protect() it in time"
            raise ValueError(f"{STORE}: trajectories of the state must still be there, {message}") from error
        self._tail = None  # never appended to where something was appended after this state
        self._publish(held=held)
        self.protect()

    def protect(self) -> None:
        """Keeps what is held now, to be rolled back to, and that of the ``keep - 1`` protected states before."""
        held = self._manifest["held"]
        older = [one for one in self._manifest["protected"] if one["num_appended"] < held["num_appended"]]
        self._publish(protected=[*older, held][-self.keep :])

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Replaces what is held by what `dumps` wrote."""
        source = TrajectoryFollower(path)
        self._empty()
        for first in range(0, len(source), COPIED_AT_ONCE):
            self.append(source.get(slice(first, first + COPIED_AT_ONCE)))

    def _empty(self) -> None:
        self._tail = None
        self._publish(held={"num_appended": self.num_appended, "parts": []})
