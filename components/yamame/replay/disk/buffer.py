"""Replay buffer of whole trajectories: TorchRL's `ReplayBuffer` over a `TrajectoryStorage`.

``extend`` takes right-padded trajectories ``[n, L]`` with ``mask``, or TorchRL rollouts of whole
episodes. ``sample`` returns trajectories ``[B, L']`` in the same form, where L' is the longest
length in the batch. Transforms receive whole trajectories.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal, get_args

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.data import ReplayBuffer
from torchrl.data.replay_buffers import RandomSampler
from torchrl.data.replay_buffers.writers import ImmutableDatasetWriter
from torchrl.envs.transforms import Transform

from yamame.checks import Bounds, check_bounds, require_choice
from yamame.replay.disk.storage import TrajectoryFollower, TrajectoryStorage
from yamame.replay.frequencies import count_held
from yamame.replay.packing import pack_whole

SampleBy = Literal["trajectory", "timestep"]


class TrajectoryReplayBuffer(ReplayBuffer):
    """Whole trajectories on disk, sampled at random (AMAGO, arXiv 2310.09971).

    The methods of `ReplayBuffer` work on trajectories: ``extend``, ``sample``,
    ``append_transform``, ``len``, ``empty``, ``state_dict``.

    For exact resume see `TrajectoryStorage`: ``state_dict`` holds no trajectories, and `protect`
    must be called once a checkpoint is on disk.

    Args:
        path, capacity, owner, keep, resume: As for `TrajectoryStorage`.
        batch_size: Trajectories per sample; None: an argument of ``sample``.
        transform: Applied to samples, e.g. ``Compose(Relabel(), Window(128))``.
        sample_by: ``trajectory``: all trajectories are equally likely. ``timestep``: in proportion
            to their numbers of transitions.
        held_out: Hold every n-th trajectory out from ``sample``, by its number since the first one
            ever appended, for `sample_held_out`; at least 2. None: none is held out.
        generator: Generator of this buffer's draws, not of its transforms'; None: torch's global
            one.

    Raises:
        ValueError: ``sample_by`` is unknown, ``held_out`` is below 2, and as `TrajectoryStorage`.
        RuntimeError: ``sample`` is called while there is nothing to sample.
    """

    @check_bounds
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        capacity: int,
        batch_size: int | None = None,
        transform: Transform | None = None,
        sample_by: SampleBy = "trajectory",
        held_out: int | None = None,
        owner: str | None = "",
        keep: int = 2,
        resume: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        # The sampler checks its argument before the storage makes a folder.
        sampler = TrajectorySampler(sample_by, held_out=held_out)
        storage = TrajectoryStorage(path, capacity=capacity, owner=owner, keep=keep, resume=resume)
        super().__init__(
            storage=storage,
            sampler=sampler,
            writer=TrajectoryWriter(),
            collate_fn=keep_batch,
            transform=transform,
            batch_size=batch_size,
            generator=generator,
        )
        # A resumed storage holds trajectories of an earlier process.
        count_held(self._transform, self.storage)

    def extend(self, data: TensorDictBase | Sequence[TensorDictBase], **options: Any) -> Tensor:
        """Append trajectories.

        Args:
            data: Trajectories ``[n, L]``, or TorchRL rollouts ``[T]`` or ``[N, T]``, which are
                packed.
            options: As for `ReplayBuffer.extend`.

        Returns:
            Numbers of the trajectories, as `TrajectoryStorage.append`.

        Raises:
            ValueError: A rollout does not hold whole episodes, and as `TrajectoryStorage.append`.
        """
        return super().extend(pack_whole(data), **options)

    def append_transform(self, transform: Transform, *, invert: bool = False) -> ReplayBuffer:
        """Append a transform, as TorchRL does.

        A transform that counts goals counts those of the trajectories held.
        """
        count_held(transform, self.storage)
        return super().append_transform(transform, invert=invert)

    def insert_transform(
        self, index: int, transform: Transform, *, invert: bool = False
    ) -> ReplayBuffer:
        """Insert a transform, otherwise as `append_transform`."""
        count_held(transform, self.storage)
        return super().insert_transform(index, transform, invert=invert)

    @property
    def held_out(self) -> int | None:
        """Every n-th trajectory is held out from ``sample``; None: none is."""
        return self._sampler.held_out

    @property
    def num_held_out(self) -> int:
        """Number of trajectories held that are held out from ``sample``."""
        return self._sampler.num_held_out(self.storage)

    def sample_held_out(self, batch_size: int | None = None) -> TensorDictBase:
        """Sample trajectories that are held out from ``sample``, otherwise as ``sample`` does.

        Args:
            batch_size: Trajectories to sample; None: that of the buffer.

        Returns:
            Transformed trajectories ``[B, L]``.

        Raises:
            RuntimeError: No trajectory is held out.
        """
        with self._replay_lock, self._sampler.on_held_out():
            return self.sample(batch_size)

    @property
    def fields(self) -> dict[NestedKey, tuple[torch.Size, torch.dtype]]:
        """Shape and dtype of every entry of a timestep, by key; empty before the first append."""
        return self.storage.fields

    @property
    def num_timesteps(self) -> int:
        """Number of timesteps held."""
        return self.storage.num_timesteps

    def stats(self) -> dict[str, int | float | bool]:
        """Return the counters of `ReplayBuffer.stats`.

        ``capacity`` and ``utilization`` count timesteps.
        """
        stats = super().stats()
        stats["num_timesteps"] = self.num_timesteps
        stats["utilization"] = self.num_timesteps / self.storage.max_size
        return stats

    def protect(self) -> None:
        """Protect the present state from deletion, see `TrajectoryStorage.protect`."""
        with self._replay_lock:
            self.storage.protect()

    def close(self) -> None:
        """Close the files. The stored trajectories stay."""
        self.storage.close()


class TrajectorySampler(RandomSampler):
    """A sampler with replacement, for any `ReplayBuffer` over trajectories on disk.

    The ``collate_fn`` of the buffer must return a batch as it is, as `keep_batch` does.

    Args:
        by: As ``sample_by`` of `TrajectoryReplayBuffer`.
        held_out: As ``held_out`` of `TrajectoryReplayBuffer`. If all trajectories held would be
            held out, none is.
    """

    @check_bounds
    def __init__(
        self,
        by: SampleBy = "trajectory",
        *,
        held_out: Annotated[int, Bounds(least=2)] | None = None,
    ) -> None:
        require_choice("TrajectorySampler", "by", by, get_args(SampleBy))
        self.by = by
        self.held_out = held_out
        self._draws_held_out = False

    @contextmanager
    def on_held_out(self) -> Iterator[None]:
        """Let ``sample`` draw held-out trajectories alone within the block."""
        self._draws_held_out = True
        try:
            yield
        finally:
            self._draws_held_out = False

    def num_held_out(self, storage: TrajectoryFollower) -> int:
        """Return the number of trajectories held that are held out."""
        return int(self._is_held_out(storage).sum())

    def sample(self, storage: TrajectoryFollower, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draw positions ``[batch_size]`` of trajectories.

        Raises:
            RuntimeError: No trajectory with a transition is held, or none of them is held out.
        """
        storage.refresh()
        positions = None
        # Without a split, a draw takes the same time however many trajectories are held.
        if self.held_out is not None or self._draws_held_out:
            is_drawn = self._is_held_out(storage) == self._draws_held_out
            positions = is_drawn.nonzero().squeeze(-1)
        total = len(storage) if positions is None else len(positions)
        ends = None
        if self.by == "timestep":
            lengths = storage.lengths if positions is None else storage.lengths[positions]
            ends = (lengths - 1).cumsum(0)
            total = int(ends[-1]) if total else 0
        if not total:
            kind = "no held-out trajectory" if self._draws_held_out else "nothing to sample"
            raise RuntimeError(f"TrajectorySampler: {storage.path} holds {kind} yet, append some")

        index = torch.randint(total, (batch_size,), generator=self._rng)
        if ends is not None:
            # The draw is of a transition: find the trajectory that holds it.
            index = torch.searchsorted(ends, index, right=True)
        if positions is not None:
            index = positions[index]
        return index, {}

    def _is_held_out(self, storage: TrajectoryFollower) -> Tensor:
        """Return whether each trajectory held is held out: bool ``[len]``, oldest first."""
        num_held = len(storage)
        if self.held_out is None:
            return torch.zeros(num_held, dtype=torch.bool)
        # Numbers since the first trajectory ever appended, which eviction of others leaves as is.
        numbers = storage.num_appended - num_held + torch.arange(num_held)
        is_held_out = numbers % self.held_out == self.held_out - 1
        # A buffer that holds nothing else must still be sampled.
        return torch.zeros_like(is_held_out) if bool(is_held_out.all()) else is_held_out


class TrajectoryWriter(ImmutableDatasetWriter):
    """A writer that appends to the `TrajectoryStorage` of the buffer, and has no state itself."""

    # TorchRL reads this attribute for `ReplayBuffer.write_count`.
    @property
    def _write_count(self) -> int:
        return self._storage.num_appended

    def add(self, data: TensorDictBase) -> int:
        """Append one trajectory ``[L]``."""
        return int(self._storage.append([data]))

    def extend(self, data: TensorDictBase | Sequence[TensorDictBase]) -> Tensor:
        """Append trajectories, see `TrajectoryStorage.append`."""
        return self._storage.append(data)

    def _empty(self, empty_write_count: bool = True) -> None:
        pass


def keep_batch(batch: TensorDictBase) -> TensorDictBase:
    """Return a batch as it is: a storage of trajectories returns collated batches."""
    return batch
