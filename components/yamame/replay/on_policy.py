"""Trajectories of the present policy, held in memory until they are used once."""

from collections.abc import Iterator

import torch
from tensordict import TensorDict, TensorDictBase

from yamame.replay.packing import join, pack
from yamame.rollouts import is_rollout


class OnPolicyBuffer:
    """Collects right-padded trajectories ``[E, L]`` and returns them once, as one batch.

    Collectors call its ``extend``. A checkpoint made while the buffer is empty needs no state of
    it.

    >>> buffer = OnPolicyBuffer()
    >>> for length in (2, 3):
    ...     mask = torch.ones(1, length, 1, dtype=torch.bool)
    ...     buffer.extend(TensorDict({"mask": mask}, [1, length]))
    >>> buffer.take()["mask"].int().squeeze(-1), len(buffer)
    (tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32), 0)
    """

    def __init__(self) -> None:
        self._held: list[TensorDictBase] = []

    def __len__(self) -> int:
        return sum(len(trajectories) for trajectories in self._held)

    def extend(self, data: TensorDictBase) -> None:
        """Append right-padded trajectories ``[E, L]`` with ``mask``, or rollouts ``[*, T]``."""
        self._held.append(pack(data) if is_rollout(data) else data)

    def take(self) -> TensorDict:
        """Remove and return all trajectories ``[E, L]``, in order.

        Raises:
            RuntimeError: The buffer is empty.
        """
        if not self._held:
            raise RuntimeError("OnPolicyBuffer: the buffer is empty; extend it before take()")
        batch = join(self._held)
        self._held = []
        return batch


def minibatches(
    batch: TensorDictBase, *, size: int, generator: torch.Generator | None = None
) -> Iterator[TensorDictBase]:
    """Split a batch ``[E, L]`` at random into minibatches that cover each trajectory once.

    Columns that no trajectory of a minibatch reaches are cut off.

    Args:
        batch: Right padded, with ``mask``.
        size: Trajectories per minibatch; the last one may have fewer.
        generator: Generator of the order; None: torch's global one.
    """
    mask = batch.get("mask").reshape(batch.shape)
    # Relabelled trajectories that share a row may leave padding between them.
    after = torch.arange(1, batch.shape[1] + 1, device=mask.device)
    lengths = (mask * after).amax(-1)
    # Drawn on the CPU, so that a seed has the same order on every device.
    order = torch.randperm(len(lengths), generator=generator).to(lengths.device)
    for chosen in order.split(size):
        longest = int(lengths[chosen].max())
        yield batch[chosen, :longest]
