"""What transforms of right-padded trajectories ``[B, L]`` share: the entries they need, and moving
timesteps.
"""

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey, expand_as_right
from torch import Tensor
from torchrl.envs.transforms import Transform

from yamame.checks import require


class BatchTransform(Transform):
    """A transform of what is sampled from a replay buffer; in a `TransformedEnv` it does
    nothing.
    """

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def entries(
        self, batch: TensorDictBase, keys: Sequence[NestedKey], remedy: str = ""
    ) -> list[Tensor]:
        """The entries of these names; ``ValueError`` names the first that the batch lacks, and the
        remedy.
        """
        for key in keys:
            holds = batch.get(key, None) is not None
            require(
                type(self).__name__, "the batch", list(batch.keys()), holds, f"hold {key!r}{remedy}"
            )
        return [batch.get(key) for key in keys]


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
    """Zeroes, in place, the transition that leaves a timestep of each trajectory: ``action`` and
    all of ``next``.

    Args:
        batch: ``[B, L]``.
        timestep: ``[B]`` int64.
    """
    trajectory = torch.arange(len(timestep), device=timestep.device)
    for leaf in batch.select("action", "next", strict=False).values(True, True):
        leaf[trajectory, timestep] = 0
    return batch
