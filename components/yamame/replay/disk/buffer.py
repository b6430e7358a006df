"""The replay buffer of whole trajectories: TorchRL's `ReplayBuffer` over a `TrajectoryStorage`.

``extend`` takes trajectories ``[n, L]`` (right padded, ``mask``) or whole episodes as TorchRL has
them, ``sample`` gives ``[B, L']`` in the same form, after the transforms, which see whole
trajectories. L' is the longest length in the batch.
"""

import os
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.data import ReplayBuffer
from torchrl.data.replay_buffers import RandomSampler
from torchrl.data.replay_buffers.writers import ImmutableDatasetWriter
from torchrl.envs.transforms import Transform

from yamame.checks import require_choice
from yamame.replay.disk.storage import TrajectoryFollower, TrajectoryStorage
from yamame.replay.frequencies import count_held
from yamame.replay.packing import pack_whole

SampleBy = Literal["trajectory", "timestep"]


class TrajectoryReplayBuffer(ReplayBuffer):
    """Whole trajectories on disk, drawn at random (AMAGO, arXiv 2310.09971).

    Everything of `ReplayBuffer` works on trajectories: ``extend``, ``sample``,
    ``append_transform``, ``len``, ``empty``, ``state_dict``. Draws come from ``generator``, or else
    from torch's global one.

    For exact resume see `TrajectoryStorage`: ``state_dict`` holds no trajectories, and a checkpoint
    that is on disk calls `protect`.

    Args:
        path, capacity, owner, keep, resume: As for `TrajectoryStorage`.
        batch_size: Trajectories per sample; None: `sample` is told.
        transform: Applied to what was sampled, e.g. ``Compose(Relabel(), Window(128))``.
        sample_by: ``trajectory``: each is as likely as any other. ``timestep``: as likely as it is
            long (in transitions).
        generator: Source of all draws of this buffer, not of its transforms.

    Raises:
        ValueError: On an unknown ``sample_by``, and as `TrajectoryStorage`.
        RuntimeError: On sampling while there is nothing to sample.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        capacity: int,
        batch_size: int | None = None,
        transform: Transform | None = None,
        sample_by: SampleBy = "trajectory",
        owner: str | None = "",
        keep: int = 2,
        resume: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        sampler = TrajectorySampler(sample_by)  # refuses before a folder is made
        super().__init__(
            storage=TrajectoryStorage(
                path, capacity=capacity, owner=owner, keep=keep, resume=resume
            ),
            sampler=sampler,
            writer=TrajectoryWriter(),
            collate_fn=whole,
            transform=transform,
            batch_size=batch_size,
            generator=generator,
        )
        count_held(self._transform, self.storage)  # what a former process has appended

    def extend(self, data: TensorDictBase | Sequence[TensorDictBase], **options: Any) -> Tensor:
        """Appends trajectories ``[n, L]``, or rollouts of TorchRL ``[T]`` or ``[N, T]``, which it
        packs.

        Raises:
            ValueError: A rollout does not hold whole episodes, and as `TrajectoryStorage.append`.
        """
        return super().extend(pack_whole(data), **options)

    def append_transform(self, transform: Transform, *, invert: bool = False) -> ReplayBuffer:
        """As TorchRL's; if the transform counts goals, it counts those of the trajectories that are
        held.
        """
        count_held(transform, self.storage)
        return super().append_transform(transform, invert=invert)

    def insert_transform(
        self, index: int, transform: Transform, *, invert: bool = False
    ) -> ReplayBuffer:
        """As `append_transform`."""
        count_held(transform, self.storage)
        return super().insert_transform(index, transform, invert=invert)

    @property
    def fields(self) -> dict[NestedKey, tuple[torch.Size, torch.dtype]]:
        """Shape and dtype of every entry of a timestep, by key; none before the first
        trajectory.
        """
        return self.storage.fields

    @property
    def num_timesteps(self) -> int:
        """Number of timesteps held."""
        return int(self.storage.lengths.sum())

    def stats(self) -> dict[str, int | float | bool]:
        """The counters of `ReplayBuffer.stats`; ``capacity`` and ``utilization`` speak of
        timesteps.
        """
        held = self.num_timesteps
        return {
            **super().stats(),
            "num_timesteps": held,
            "utilization": held / self.storage.max_size,
        }

    def protect(self) -> None:
        """Keeps the present state on disk, and some protected before, see
        `TrajectoryStorage.protect`.
        """
        with self._replay_lock:
            self.storage.protect()

    def close(self) -> None:
        """Closes the files; what is stored stays."""
        self.storage.close()


class TrajectorySampler(RandomSampler):
    """Draws trajectories, with replacement, for any `ReplayBuffer` over trajectories on disk.

    Args:
        by: As ``sample_by`` of `TrajectoryReplayBuffer`, whose ``collate_fn`` should be `whole`.
    """

    def __init__(self, by: SampleBy = "trajectory") -> None:
        require_choice("TrajectorySampler", "by", by, get_args(SampleBy))
        self.by = by

    def sample(self, storage: TrajectoryFollower, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws positions ``[batch_size]`` of trajectories."""
        storage.refresh()
        total = len(storage)
        if self.by == "timestep":
            ends = (storage.lengths - 1).cumsum(0)
            total = int(ends[-1]) if total else 0
        if not total:
            raise RuntimeError(
                f"TrajectorySampler: {storage.path} must hold something to sample, got nothing yet"
            )
        index = torch.randint(total, (batch_size,), generator=self._rng)
        if self.by == "timestep":
            index = torch.searchsorted(ends, index, right=True)
        return index, {}


class TrajectoryWriter(ImmutableDatasetWriter):
    """Appends to the `TrajectoryStorage` of the buffer; as the writer of a dataset, it has no state
    of its own.
    """

    @property
    def _write_count(self) -> int:
        return self._storage.num_appended

    def add(self, data: TensorDictBase) -> int:
        """Appends one trajectory ``[L]``."""
        return int(self._storage.append([data]))

    def extend(self, data: TensorDictBase | Sequence[TensorDictBase]) -> Tensor:
        """Appends trajectories, see `TrajectoryStorage.append`."""
        return self._storage.append(data)

    def _empty(self, empty_write_count: bool = True) -> None:
        pass


def whole(batch: TensorDictBase) -> TensorDictBase:
    """Collates nothing: a storage of trajectories gives batches already."""
    return batch
