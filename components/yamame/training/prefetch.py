"""Transfer of the next batch to a device while the device works on the present one."""

from collections.abc import Callable, Iterator

import torch
from tensordict import TensorDictBase

from yamame.execution.capturing import NUM_SEGMENTS
from yamame.trajectory import segment_starts

Transfer = Callable[[TensorDictBase], Callable[[], TensorDictBase]]
"""Function that starts to copy a batch to a device and returns a function that returns the copy.

Neither waits for the device.
"""


def cuda_transfer(device: torch.device) -> Transfer:
    """Return a transfer from pinned memory to a CUDA device, on a stream of its own."""
    stream = torch.cuda.Stream(device)

    def begin(batch: TensorDictBase) -> Callable[[], TensorDictBase]:
        with torch.cuda.stream(stream):
            copy = batch.pin_memory().to(stream.device, non_blocking=True)
            copied = stream.record_event()

        def receive() -> TensorDictBase:
            current = torch.cuda.current_stream(stream.device)
            current.wait_event(copied)
            for value in copy.values(True, True):
                # The memory belongs to the other stream, which must not reuse it yet.
                value.record_stream(current)
            return copy

        return receive

    return begin


class Prefetcher:
    """Batches on a device, sampled in advance if that can hide behind the device's work.

    The learner calls `fetch` when the device has been given an update and before anything is read
    back. There is no thread, so batches are drawn in the same order as without prefetching.

    Args:
        sample: Returns a batch in the host's memory.
        device: Device to which batches are copied.
        transfer: Function that copies in advance. None: on a CUDA device `cuda_transfer`; on others
            `fetch` does nothing, because there is no work of a device to hide behind.

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
        self._receive: Callable[[], TensorDictBase] | None = None

    def fetch(self) -> None:
        """Sample the next batch and start to copy it, unless one is on its way."""
        if self._transfer is not None and self._receive is None:
            self._receive = self._transfer(self._draw())

    def up_to(
        self, most: int, *, ends: Callable[[], bool]
    ) -> Iterator[tuple[TensorDictBase, Callable[[], None]]]:
        """Yield batches, each with a function to call while the device works on it.

        Args:
            most: Largest number of batches.
            ends: Returns whether the next batch is the last one anyway.
        """
        for left in reversed(range(most)):
            is_last = left == 0 or ends()
            # A checkpoint may follow the last batch, and would not hold a batch drawn in advance.
            meanwhile = _do_nothing if is_last else self.fetch
            yield self.take(), meanwhile
            if is_last:
                return

    def take(self) -> TensorDictBase:
        """Return the batch that was fetched, or sample one now."""
        if self._transfer is None:
            return self._draw().to(self._device)
        self.fetch()
        assert self._receive is not None
        receive = self._receive
        self._receive = None
        return receive()

    def _draw(self) -> TensorDictBase:
        batch = self._sample()
        if batch.ndim == 2 and "is_init" in batch.keys():
            # Counted on the host, where nothing has to wait for a device.
            return with_num_segments(batch)
        return batch


def _do_nothing() -> None:
    pass


def with_num_segments(batch: TensorDictBase) -> TensorDictBase:
    """Return a batch ``[B, L]`` with the number of its segments as a non-tensor entry.

    The number stays on the host when the batch is copied to a device.

    >>> from tensordict import TensorDict
    >>> is_init = torch.tensor([[1, 0, 0, 1, 0], [1, 0, 0, 0, 0]]).bool()
    >>> with_num_segments(TensorDict({"is_init": is_init}, [2, 5]))["num_segments"]
    3
    """
    is_init = batch.get("is_init", None)
    if is_init is not None:
        is_init = is_init.reshape(batch.shape)
    mask = batch.get("mask", None)
    if mask is not None:
        mask = mask.reshape(batch.shape)
    starts = segment_starts(batch.shape, is_init, mask, device=torch.device("cpu"))
    return batch.copy().set_non_tensor(NUM_SEGMENTS, int(starts.sum()))
