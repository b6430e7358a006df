"""Moving timesteps of right-padded trajectories ``[B, L]``: what windows, packing and subsampling share."""

import torch
from tensordict import TensorDictBase
from tensordict.utils import expand_as_right
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


def clear_transitions(batch: TensorDictBase, timestep: Tensor) -> TensorDictBase:
    """Zeroes, in place, the transition that leaves a timestep of each trajectory: ``action`` and all of ``next``.

    Args:
        batch: ``[B, L]``.
        timestep: ``[B]`` int64.
    """
    trajectory = torch.arange(len(timestep), device=timestep.device)
    for leaf in batch.select("action", "next", strict=False).values(True, True):
        leaf[trajectory, timestep] = 0
    return batch
