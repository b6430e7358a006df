"""Recorders of CUDA graphs, and functions that are compiled.

A CUDA graph is launched as a whole, by the device alone. `torch.compile` writes fewer and larger
kernels. Rules for code that is treated in one of these ways stand in `yamame.execution.capturing`.
"""

import gc
import importlib.util
import inspect
import os
import shutil
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from yamame.checks import ArgumentError
from yamame.distributed import divided_by
from yamame.execution.capturing import NUM_SEGMENTS, capturing
from yamame.system.messages import print_stderr

T = TypeVar("T")


class Recorder(Protocol):
    """Executes a computation once, or records it to be run again."""

    def warm(self, function: Callable[[], T]) -> T:
        """Run a computation that will be recorded later, or that contains one."""

    def record(
        self, function: Callable[[], dict[str, Tensor]], *, reads: Iterable[Tensor]
    ) -> tuple[Callable[[], None], dict[str, Tensor]]:
        """Record a computation without running it.

        Args:
            function: The computation.
            reads: All tensors made before that it reads or writes: parameters, buffers, static
                inputs, the state of an optimizer. Between two runs they change in place alone.
                CUDA does not need the list. Recorders of tests use it: they check with
                `yamame.testing.DeclaredReads` that nothing else is read.

        Returns:
            A function that runs the recording, and the tensors to which every run writes its
            results.
        """

    def wait(self) -> None:
        """Wait until all runs have ended; called before recordings are dropped."""


class CudaRecorder:
    """Records CUDA graphs that share one memory pool.

    A computation is one graph, or several with calls of the host between them, see
    `yamame.distributed.between_graphs`.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        # Graphs may share memory because no result is read after another graph has run.
        self._pool = torch.cuda.graph_pool_handle()

    def warm(self, function: Callable[[], T]) -> T:
        """Run a computation on the stream of the captures; the current stream waits for it."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = function()
        current.wait_stream(self._stream)
        return result

    def record(
        self, function: Callable[[], dict[str, Tensor]], *, reads: Iterable[Tensor]
    ) -> tuple[Callable[[], None], dict[str, Tensor]]:
        """Capture a graph; see `Recorder.record`."""
        pieces = _Pieces(self._stream, self._pool)
        with _without_collector():
            pieces.begin()
            try:
                with divided_by(pieces.divide):
                    results = function()
            finally:
                pieces.end()
        return pieces.run(), results

    def wait(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self._stream.device)


class _Pieces:
    """CUDA graphs of one computation, and the calls of the host between them, in order.

    Tensors that are alive when a graph ends keep their memory, so the next graph reads them there.

    Args:
        stream: Stream of the captures.
        pool: Memory pool of the graphs.
    """

    def __init__(self, stream: torch.cuda.Stream, pool: Any) -> None:
        self._stream = stream
        self._pool = pool
        self._capture: torch.cuda.graph | None = None
        self._calls: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Begin to capture a graph."""
        graph = torch.cuda.CUDAGraph()
        # Other threads may ask the device for its free memory during the capture, as the monitoring
        # of a run does.
        mode = "thread_local"
        capture = torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode=mode
        )
        capture.__enter__()
        self._capture = capture
        self._calls.append(graph.replay)

    def end(self) -> None:
        """End the graph that is captured, if there is one."""
        capture = self._capture
        self._capture = None
        if capture is not None:
            capture.__exit__(None, None, None)

    def divide(self, call: Callable[[], None]) -> None:
        """End a graph, append a call of the host, and begin the next graph."""
        self.end()
        self._calls.append(call)
        self.begin()

    def run(self) -> Callable[[], None]:
        """Return a function that launches the graphs and executes the calls."""
        calls = self._calls
        if len(calls) == 1:
            return calls[0]

        def run() -> None:
            for call in calls:
                call()

        return run


@contextmanager
def _without_collector() -> Iterator[None]:
    """Suspend Python's garbage collector.

    It might free pinned memory or events of other parts, and a capture refuses the calls that this
    takes.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def cuda_recorder(device: torch.device, owner: str) -> CudaRecorder:
    """Return a recorder for a device.

    Args:
        device: Device of the tensors.
        owner: Class that is configured, for messages.

    Raises:
        ValueError: The device has no CUDA graphs.
    """
    if device.type != "cuda":
        raise ArgumentError(owner, "cuda_graph", True, f"be false on {device.type}")
    return CudaRecorder(device)


def tensors_of(*modules: nn.Module) -> list[Tensor]:
    """Return all parameters and buffers of modules."""
    tensors: list[Tensor] = []
    for module in modules:
        for part in module.modules():
            # Module by module: `parameters()` of a TorchRL loss leaves its target networks out.
            tensors.extend(part.parameters(recurse=False))
            tensors.extend(part.buffers(recurse=False))
    return tensors


def structure(batch: TensorDictBase) -> Hashable:
    """Return a key that is equal for batches that one recording can take.

    It holds keys, shapes and dtypes of the tensors, and the number of segments if it is known.

    >>> from tensordict import TensorDict
    >>> a, b = TensorDict({"x": torch.zeros(2, 3)}, [2]), TensorDict({"x": torch.ones(2, 3)}, [2])
    >>> structure(a) == structure(b), structure(a) == structure(b.double())
    (True, False)
    """
    num_segments = batch.get_non_tensor(NUM_SEGMENTS, default=None)
    forms = frozenset((key, value.shape, value.dtype) for key, value in batch.items(True, True))
    return num_segments, forms


class Compiled(Generic[T]):
    """A function of TensorDicts, compiled as a whole for every structure of them that comes again.

    A compiled call may be captured in a CUDA graph. Nothing is compiled during a capture.

    Args:
        function: Function whose branches depend neither on the data nor on anything that changes
            between two calls.
        name: Name of the function in the message that is printed when it is first compiled.
        backend: Backend of `torch.compile`.
        warmup: Ordinary calls with a structure before the function is compiled for it.
        limit: Largest number of compiled structures; the one that was used longest ago is dropped.

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
        self._function = function
        self._name = name
        self._backend = backend
        self._warmup = warmup
        self._limit = limit
        self._calls: Counter[Hashable] = Counter()
        # The structure that was used last is the last one.
        self._compiled: OrderedDict[Hashable, Callable[..., T]] = OrderedDict()

    def __call__(self, *inputs: TensorDictBase) -> T:
        """Return the result of the function."""
        key = tuple(structure(entries) for entries in inputs)
        if key in self._compiled:
            self._compiled.move_to_end(key)
            return self._compiled[key](*inputs)

        # To compile takes up to minutes: a structure that never comes again is not worth it.
        if capturing() or self._calls[key] < self._warmup:
            self._calls[key] += 1
            return self._function(*inputs)

        compiled = self._compile()
        self._compiled[key] = compiled
        return compiled(*inputs)

    def _compile(self) -> Callable[..., T]:
        if not self._compiled:
            print_stderr(f"{self._name} is compiled, which takes up to minutes for every new shape")
        while len(self._compiled) >= self._limit:
            self._compiled.popitem(last=False)
        options: Any = {
            "fullgraph": True,
            "dynamic": False,
            # Every structure gets a cache of its own: PyTorch gives up on a common cache after a
            # few recompilations.
            "isolate_recompiles": True,
        }
        return torch.compile(self._function, backend=self._backend, **options)


def missing_compiler(device: torch.device) -> str | None:
    """Return the reason why nothing can be compiled for a device, None if it can."""
    if "isolate_recompiles" not in inspect.signature(torch.compile).parameters:
        return f"torch {torch.__version__}, it takes 2.13"
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "no package triton"
    if device.type == "cpu":
        names = (os.environ.get("CXX"), "g++", "clang++", "cl")
        if not any(shutil.which(name) for name in names if name):
            return "no C++ compiler (g++, clang++ or CXX)"
    return None


def check_compiler(device: torch.device, owner: str) -> None:
    """Raise a ValueError if nothing can be compiled for a device.

    Args:
        device: Device of the tensors.
        owner: Class that is configured, for messages.
    """
    missing = missing_compiler(device)
    if missing is not None:
        raise ArgumentError(owner, "compile", True, f"be false with {missing}")
