"""The next batch on its way to a device while the device works on the present one."""

from collections.abc import Callable, Iterator

import torch
from tensordict import TensorDictBase

from yamame.execution.capturing import NUM_SEGMENTS
from yamame.trajectory import segment_starts

Transfer = Callable[[TensorDictBase], Callable[[], TensorDictBase]]
"""Starts to copy a batch to a device, and returns what gives the copy. Neither waits for the
device.
"""


def cuda_transfer(device: torch.device) -> Transfer:
    """A transfer from pinned memory to a CUDA device, on a stream of its own."""
    stream = torch.cuda.Stream(device)

    def begin(batch: TensorDictBase) -> Callable[[], TensorDictBase]:
        with torch.cuda.stream(stream):
            copy = batch.pin_memory().to(stream.device, non_blocking=True)
            copied = stream.record_event()

        def arrived() -> TensorDictBase:
            present = torch.cuda.current_stream(stream.device)
            present.wait_event(copied)
            for value in copy.values(True, True):
                value.record_stream(present)  # its memory belongs to the other stream
            return copy

        return arrived

    return begin


class Prefetcher:
    """Batches on a device, sampled in advance where that can hide behind the device's work.

    The learner calls `fetch` when the device has been given an update and before anything is read
    back. There is no thread, and so batches are drawn in the same order as without. On a CPU there
    is nothing to hide behind, and `fetch` does nothing.

    Args:
        sample: Gives a batch, in the host's memory.
        device: Where batches are wanted.
        transfer: What copies in advance. None: on a CUDA device `cuda_transfer`, elsewhere nothing.

    >>> from itertools import count
    >>> from tensordict import TensorDict
    >>> drawn = count()
    >>> batches = Prefetcher(lambda: TensorDict({"x": torch.tensor([next(drawn)])}, [1]), "cpu")
    >>> batches.fetch()
    >>> batches.take()["x"]
    tensor([0])
    """

    def __init__(
        self,
        sample: Callable[[], TensorDictBase],
        device: torch.device | str,
        *,
        transfer: Transfer | None = None,
    ) -> None:
        self._sample = sample
        self._device = torch.device(device)
        if transfer is None and self._device.type == "cuda":
            transfer = cuda_transfer(self._device)
        self._transfer = transfer
        self._arriving: Callable[[], TensorDictBase] | None = None

    def fetch(self) -> None:
        """Samples the next batch and starts to copy it, unless that was done or brings nothing."""
        if self._transfer is not None and self._arriving is None:
            self._arriving = self._transfer(self._draw())

    def up_to(
        self, most: int, *, ends: Callable[[], bool]
    ) -> Iterator[tuple[TensorDictBase, Callable[[], None]]]:
        """Batches, each with what to call while the device works on it.

        One that is fetched ahead must be learned from before anything else happens, so none is
        beside the last.

        Args:
            most: Number of batches, unless it ends before.
            ends: Whether the next batch is the last one anyway.
        """
        for left in reversed(range(most)):
            last = left == 0 or ends()
            yield self.take(), (lambda: None) if last else self.fetch
            if last:
                return

    def take(self) -> TensorDictBase:
        """The batch that was fetched, or one that is sampled now."""
        if self._transfer is None:
            return self._draw().to(self._device)
        self.fetch()
        arriving, self._arriving = self._arriving, None
        assert arriving is not None
        return arriving()

    def _draw(self) -> TensorDictBase:
        """A batch, and beside its tensors what a device would have to be asked for, where there is
        something.
        """
        batch = self._sample()
        return with_num_segments(batch) if batch.ndim == 2 and "is_init" in batch.keys() else batch


def with_num_segments(batch: TensorDictBase) -> TensorDictBase:
    """A batch ``[B, L]`` of the host, with the number of its segments beside its tensors: they go
    along to a device.

    >>> from tensordict import TensorDict
    >>> is_init = torch.tensor([[1, 0, 0, 1, 0], [1, 0, 0, 0, 0]]).bool()
    >>> with_num_segments(TensorDict({"is_init": is_init}, [2, 5]))["num_segments"]
    3
    """
    is_init, mask = (
        None if value is None else value.reshape(batch.shape)
        for value in (batch.get(key, None) for key in ("is_init", "mask"))
    )
    starts = segment_starts(batch.shape, is_init, mask, device=torch.device("cpu"))
    return batch.copy().set_non_tensor(NUM_SEGMENTS, int(starts.sum()))
