"""Trajectories of the present policy, in memory, until they were learned from."""

from collections.abc import Iterator

import torch
from tensordict import TensorDict, TensorDictBase

from yamame.replay.packing import join


class OnPolicyBuffer:
    """Gathers right-padded trajectories ``[E, L]`` and gives them out once, as one batch.

    It has the ``extend`` that collectors call. Nothing of it belongs into a checkpoint made when it
    is empty.

    >>> buffer = OnPolicyBuffer()
    >>> for length in (2, 3):
    ...     buffer.extend(TensorDict({"mask": torch.ones(1, length, 1, dtype=torch.bool)}, [1, length]))
    >>> buffer.take()["mask"].int().squeeze(-1), len(buffer)
    (tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32), 0)
    """

    def __init__(self) -> None:
        self._held: list[TensorDictBase] = []

    def __len__(self) -> int:
        return sum(len(trajectories) for trajectories in self._held)

    def extend(self, data: TensorDictBase) -> None:
        """Takes trajectories ``[E, L]``, right padded, with ``mask``."""
        self._held.append(data)

    def take(self) -> TensorDict:
        """All trajectories held ``[E, L]``, in order; none are held afterwards.

        Raises:
            RuntimeError: None are held.
        """
        if not self._held:
            raise RuntimeError("OnPolicyBuffer: take must find trajectories, got none")
        held, self._held = self._held, []
        return join(held)


def minibatches(
    batch: TensorDictBase, *, size: int, generator: torch.Generator | None = None
) -> Iterator[TensorDictBase]:
    """Every trajectory of ``[E, L]`` once, in random order, ``size`` at a time (the last time what
    is left).

    Columns that no trajectory of a part reaches are cut off.

    Args:
        batch: Right padded, with ``mask``.
        size: Trajectories of a part.
        generator: Source of the order; torch's own if None.
    """
    lengths = batch.get("mask").reshape(batch.shape).sum(-1)
    order = torch.randperm(len(lengths), generator=generator).to(lengths.device)
    for chosen in order.split(size):
        yield batch[chosen, : int(lengths[chosen].max())]
