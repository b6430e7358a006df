"""CUDA graphs: a computation is recorded once and then launched as a whole, by the device alone.

What may not be done while it is recorded stands in `yamame.capturing`.
"""

from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from yamame.keys import NUM_SEGMENTS

T = TypeVar("T")


class Recorder(Protocol):
    """Runs a computation once, or keeps it to be run again."""

    def warm(self, function: Callable[[], T]) -> T:
        """Runs what is to be recorded later, or contains it."""

    def record(
        self, function: Callable[[], dict[str, Tensor]]
    ) -> tuple[Callable[[], None], dict[str, Tensor]]:
        """Keeps a computation without running it.

        Returns:
            What runs it, and the tensors in which every run leaves its results.
        """


class CudaRecorder:
    """Records CUDA graphs that share their memory.

    They may share it because no result is read after another graph has run.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def warm(self, function: Callable[[], T]) -> T:
        """Runs on the stream of the captures, and lets the present one wait for it."""
        present = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(present)
        with torch.cuda.stream(self._stream):
            result = function()
        present.wait_stream(self._stream)
        return result

    def record(
        self, function: Callable[[], dict[str, Tensor]]
    ) -> tuple[Callable[[], None], dict[str, Tensor]]:
        """Captures a graph; see `Recorder.record`."""
        graph = torch.cuda.CUDAGraph()
        # Other threads may ask the device for its free memory meanwhile, as the monitoring of a run does.
        mode = "thread_local"
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
            results = function()
        return graph.replay, results


def cuda_recorder(device: torch.device, owner: str) -> CudaRecorder:
    """What records on a device.

    Raises:
        ValueError: If there are no CUDA graphs on it.
    """
    if device.type != "cuda":
        raise ValueError(f"{owner}: cuda_graph must be false on {device.type}, got true")
    return CudaRecorder(device)


def structure(batch: TensorDictBase) -> Hashable:
    """Keys, shapes and dtypes of a batch, and what the host knows of it: equal for batches that one recording can take.

    >>> from tensordict import TensorDict
    >>> a, b = TensorDict({"x": torch.zeros(2, 3)}, [2]), TensorDict({"x": torch.ones(2, 3)}, [2])
    >>> structure(a) == structure(b), structure(a) == structure(b.double())
    (True, False)
    """
    known = batch.get_non_tensor(NUM_SEGMENTS, default=None)
    return known, frozenset((key, value.shape, value.dtype) for key, value in batch.items(True, True))
