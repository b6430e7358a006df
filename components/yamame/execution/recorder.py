"""Computations that are prepared once and then run again: recorded as CUDA graphs, compiled, or
both.

A CUDA graph is launched as a whole, by the device alone. `torch.compile` writes fewer and larger
kernels. What may not be done meanwhile stands in `yamame.execution.capturing`.
"""

import importlib.util
import inspect
import os
import shutil
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, Protocol, TypeVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from yamame.checks import require
from yamame.execution.capturing import NUM_SEGMENTS, capturing
from yamame.system.messages import print_stderr

T = TypeVar("T")


class Recorder(Protocol):
    """Runs a computation once, or keeps it to be run again."""

    def warm(self, function: Callable[[], T]) -> T:
        """Runs what is to be recorded later, or contains it."""

    def record(
        self, function: Callable[[], dict[str, Tensor]], *, reads: Iterable[Tensor]
    ) -> tuple[Callable[[], None], dict[str, Tensor]]:
        """Keeps a computation without running it.

        Args:
            function: The computation.
            reads: All tensors made before that it reads or writes: parameters, buffers, static
                inputs, the state of an optimizer. Between two runs they change in place alone. It
                is a declaration: a recorder of tests checks with `yamame.testing.DeclaredReads`
                that there are no others.

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
        self, function: Callable[[], dict[str, Tensor]], *, reads: Iterable[Tensor]
    ) -> tuple[Callable[[], None], dict[str, Tensor]]:
        """Captures a graph; see `Recorder.record`."""
        graph = torch.cuda.CUDAGraph()
        # Other threads may ask the device for its free memory meanwhile, as the monitoring of a run
        # does.
        mode = "thread_local"
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
            results = function()
        return graph.replay, results


def tensors_of(*modules: nn.Module) -> list[Tensor]:
    """All parameters and buffers of modules, target networks that a TorchRL loss leaves out of them
    included.
    """
    parts = [part for module in modules for part in module.modules()]
    return [value for part in parts for value in (*part.parameters(False), *part.buffers(False))]


def cuda_recorder(device: torch.device, owner: str) -> CudaRecorder:
    """What records on a device.

    Raises:
        ValueError: If there are no CUDA graphs on it.
    """
    is_cuda = device.type == "cuda"
    require(owner, "cuda_graph", True, is_cuda, f"be false on {device.type}")
    return CudaRecorder(device)


class Compiled(Generic[T]):
    """A function of TensorDicts, compiled as a whole for every structure of them that comes again.

    The first calls of a structure are ordinary ones, for to compile takes up to minutes. Of the
    compiled ones the last ``limit`` that were used are kept. It may be captured in a CUDA graph:
    nothing is compiled meanwhile.

    Args:
        function: Decides nothing by the data, nor by anything that changes between two calls.
        name: What it is called when it is compiled first.
        backend: Of `torch.compile`.
        warmup: Ordinary calls of a structure before it is compiled.
        limit: Compiled structures kept at a time.

    >>> from tensordict import TensorDict
    >>> double = Compiled(lambda batch: 2 * batch["x"], name="a product", backend="eager", warmup=0)
    >>> double(TensorDict({"x": torch.ones(2)}, [2]))
    tensor([2., 2.])
    """

    def __init__(
        self,
        function: Callable[..., T],
        *,
        name: str,
        backend: str = "inductor",
        warmup: int = 1,
        limit: int = 16,
    ) -> None:
        self._function, self._name, self._backend = function, name, backend
        self._warmup, self._limit = warmup, limit
        self._calls: Counter[Hashable] = Counter()
        self._compiled: OrderedDict[Hashable, Callable[..., T]] = OrderedDict()  # last used, last

    def __call__(self, *inputs: TensorDictBase) -> T:
        """What the function returns."""
        key = tuple(structure(entries) for entries in inputs)
        if key in self._compiled:
            self._compiled.move_to_end(key)
        elif capturing() or self._calls[key] < self._warmup:
            self._calls[key] += 1
            return self._function(*inputs)
        else:
            self._compiled[key] = self._compile()
        return self._compiled[key](*inputs)

    def _compile(self) -> Callable[..., T]:
        if not self._compiled:
            print_stderr(f"{self._name} is compiled, which takes up to minutes for every new shape")
        while len(self._compiled) >= self._limit:
            self._compiled.popitem(last=False)
        # Every structure has a cache of its own: one of them all would end after a few.
        options: Any = {"fullgraph": True, "dynamic": False, "isolate_recompiles": True}
        return torch.compile(self._function, backend=self._backend, **options)


def missing_compiler(device: torch.device) -> str | None:
    """What is missing to compile for a device; None if nothing is."""
    names = (os.environ.get("CXX"), "g++", "clang++", "cl")
    if "isolate_recompiles" not in inspect.signature(torch.compile).parameters:
        return f"torch {torch.__version__}, it takes 2.13"
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "no package triton"
    if device.type == "cpu" and not any(shutil.which(name) for name in names if name):
        return "no C++ compiler (g++, clang++ or CXX)"
    return None


def check_compiler(device: torch.device, owner: str) -> None:
    """Raises a ``ValueError`` where something is missing to compile for a device."""
    missing = missing_compiler(device)
    require(owner, "compile", True, missing is None, f"be false with {missing}")


def structure(batch: TensorDictBase) -> Hashable:
    """Keys, shapes and dtypes of a batch, and what the host knows of it: equal for batches that one
    recording can take.

    >>> from tensordict import TensorDict
    >>> a, b = TensorDict({"x": torch.zeros(2, 3)}, [2]), TensorDict({"x": torch.ones(2, 3)}, [2])
    >>> structure(a) == structure(b), structure(a) == structure(b.double())
    (True, False)
    """
    known = batch.get_non_tensor(NUM_SEGMENTS, default=None)
    return known, frozenset(
        (key, value.shape, value.dtype) for key, value in batch.items(True, True)
    )
