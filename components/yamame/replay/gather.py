"""Shared parts of transforms of right-padded trajectories ``[B, L]``."""

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase, pad
from tensordict.utils import NestedKey, expand_as_right
from torch import Tensor
from torchrl.envs.transforms import Transform

from yamame.checks import require
from yamame.replay.pieces import Pieces
from yamame.rollouts import is_rollout


class BatchTransform(Transform):
    """A transform of samples of a replay buffer, without effect in a `TransformedEnv`."""

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def entries(
        self, batch: TensorDictBase, keys: Sequence[NestedKey], *, remedy: str | None = None
    ) -> list[Tensor]:
        """Return the entries of a batch.

        Args:
            batch: ``[B, L]``.
            keys: Keys of the entries.
            remedy: Advice for users whose batch lacks an entry.

        Raises:
            ArgumentError: The batch lacks an entry; names the first.
        """
        owner = type(self).__name__
        found = []
        for key in keys:
            value = batch.get(key, None)
            held = list(batch.keys())
            require(owner, "the batch", held, value is not None, f"hold {key!r}", remedy=remedy)
            found.append(value)
        return found

    def check_shape(self, batch: TensorDictBase) -> None:
        """Raise unless a batch is ``[B, L]``."""
        shape = list(batch.batch_size)
        owner = type(self).__name__
        remedy = "pack rollouts with yamame.replay.pack(rollout)"
        require(owner, "batch_size", shape, len(shape) == 2, "be [B, L]", remedy=remedy)

    def check_packed(self, batch: TensorDictBase, mask: Tensor) -> None:
        """Raise unless a batch holds right-padded trajectories, each observation once.

        Args:
            batch: ``[B, L]``.
            mask: Real timesteps, ``[B, L]`` bool.
        """
        owner = type(self).__name__
        layout = "a rollout with the observations after each step under 'next'"
        remedy = "pack it with yamame.replay.pack(rollout)"
        condition = "hold each observation once"
        require(owner, "the batch", layout, not is_rollout(batch), condition, remedy=remedy)
        # On other devices, reading the result would wait for the device.
        if mask.is_cpu:
            is_right_padded = not bool((mask[:, 1:] & ~mask[:, :-1]).any())
            condition = "be True up to the end of a trajectory, and False after it"
            remedy = "relabel before trajectories share rows"
            got = "padding before a real timestep"
            require(owner, "mask", got, is_right_padded, condition, remedy=remedy)


def gather_timesteps(batch: TensorDictBase, source: Tensor, real: Tensor) -> TensorDictBase:
    """Gather timesteps of a batch into a new batch.

    Args:
        batch: ``[B, L]``.
        source: ``[B', L']`` int64, index of each new timestep among the ``B * L`` timesteps.
        real: ``[B', L']`` bool. Other timesteps become zero, whatever ``source`` is there.
    """
    # Indices of padding may be out of range.
    source = torch.where(real, source, 0)

    def move(value: Tensor) -> Tensor:
        timesteps = value.flatten(0, 1)
        # index_select is faster than advanced indexing, also for entries with more dimensions.
        moved = timesteps.index_select(0, source.flatten()).unflatten(0, source.shape)
        return moved.masked_fill_(~expand_as_right(real, moved), 0)

    return batch.apply(move, batch_size=source.shape)


def scatter_timesteps(
    parts: TensorDictBase, batch: TensorDictBase, pieces: Pieces
) -> TensorDictBase:
    """Write timesteps back to the places from which `gather_timesteps` took them.

    Args:
        parts: ``[E, W']``; timesteps after W' become zero.
        batch: ``[B, L]`` of which they were gathered.
        pieces: Places that were gathered, ``[E, W]``.

    Returns:
        New batch ``[B, L]``.
    """
    place = pieces.source[pieces.real]
    missing = pieces.real.shape[1] - parts.shape[1]
    parts = pad(parts, [0, 0, 0, missing])

    def put(value: Tensor, part: Tensor) -> Tensor:
        flat = value.flatten(0, 1).clone()
        flat[place] = part[pieces.real].to(flat.dtype)
        return flat.unflatten(0, batch.shape)

    return batch.apply(put, parts.select(*batch.keys(True, True)), batch_size=batch.shape)


def clear_transitions(batch: TensorDictBase, timestep: Tensor) -> TensorDictBase:
    """Zero the transition out of one timestep of each trajectory, in place.

    Args:
        batch: ``[B, L]``. A transition is ``action`` and everything under ``next``.
        timestep: ``[B]`` int64.
    """
    trajectory = torch.arange(len(timestep), device=timestep.device)
    for leaf in batch.select("action", "next", strict=False).values(True, True):
        leaf[trajectory, timestep] = 0
    return batch
