"""Moving timesteps of right-padded trajectories ``[B, L]``: what windows, packing and subsampling share."""

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey, expand_as_right
from torch import Tensor


def gather_timesteps(batch: TensorDictBase, source: Tensor, real: Tensor) -> TensorDictBase:
    """A new batch of timesteps of another.

    Args:
        batch: ``[B, L]``.
        source: ``[B', L']`` int64, which of the ``B * L`` timesteps each one is.
        real: ``[B', L']`` bool; all others become zero.
    """
    source = torch.where(real, source, 0)

    def move(value: Tensor) -> Tensor:
        moved = value.flatten(0, 1).index_select(0, source.flatten()).unflatten(0, source.shape)
        return moved.masked_fill_(~expand_as_right(real, moved), 0)

    return batch.apply(move, batch_size=source.shape)


def clear_transitions(batch: TensorDictBase, timestep: Tensor, keys: Sequence[NestedKey]) -> TensorDictBase:
    """Zeroes, in place, the transition that leaves a timestep ``[B]`` of each trajectory.

    Args:
        batch: ``[B, L]``.
        timestep: ``[B]`` int64.
        keys: Entries, or groups of entries, that describe transitions; those that there are.
    """
    trajectory = torch.arange(len(timestep), device=timestep.device)
    for key in keys:
        entry = batch.get(key, None)
        leaves = entry.values(True, True) if isinstance(entry, TensorDictBase) else [entry]
        for leaf in leaves:
            if leaf is not None:
                leaf[trajectory, timestep] = 0
    return batch
