"""The next batch on its way to a device while the device works on the present one."""

from collections.abc import Callable
from typing import Protocol

import torch
from tensordict import TensorDictBase


class Transfer(Protocol):
    """Brings batches to a device beside what the device does."""

    def begin(self, batch: TensorDictBase) -> Callable[[], TensorDictBase]:
        """Starts to copy a batch.

        Returns:
            What gives the copy, to whoever works with it next. It does not wait for the device.
        """


class CudaTransfer:
    """Copies from pinned memory on a stream of its own.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def begin(self, batch: TensorDictBase) -> Callable[[], TensorDictBase]:
        """Starts to copy a batch; see `Transfer.begin`."""
        with torch.cuda.stream(self._stream):
            copy = batch.pin_memory().to(self._stream.device, non_blocking=True)
            copied = self._stream.record_event()

        def arrived() -> TensorDictBase:
            present = torch.cuda.current_stream(self._stream.device)
            present.wait_event(copied)
            for value in copy.values(True, True):
                value.record_stream(present)  # its memory belongs to the other stream
            return copy

        return arrived


class Prefetcher:
    """Batches on a device, sampled in advance where that can hide behind the device's work.

    Whoever learns calls `fetch` when the device has been given an update and before anything is read back. There is no
    thread, and so batches are drawn in the same order as without. On a CPU there is nothing to hide behind, and
    `fetch` does nothing.

    Args:
        sample: Gives a batch, in the host's memory.
        device: Where batches are wanted.
        transfer: What copies in advance. None: on a CUDA device `CudaTransfer`, elsewhere nothing.

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
            transfer = CudaTransfer(self._device)
        self._transfer = transfer
        self._arriving: Callable[[], TensorDictBase] | None = None

    def fetch(self) -> None:
        """Samples the next batch and starts to copy it, unless that was done or brings nothing."""
        if self._transfer is not None and self._arriving is None:
            self._arriving = self._transfer.begin(self._sample())

    def take(self) -> TensorDictBase:
        """The batch that was fetched, or one that is sampled now."""
        arriving, self._arriving = self._arriving, None
        return self._sample().to(self._device) if arriving is None else arriving()
