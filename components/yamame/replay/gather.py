"""Shared parts of transforms of right-padded trajectories ``[B, L]``."""

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey, expand_as_right
from torch import Tensor
from torchrl.envs.transforms import Transform

from yamame.checks import require


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
