"""What `torch.cuda` says and does where the device is emulated. It is put in place once, for the
whole process.
"""

import contextlib
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from emulated_cuda.counting import State, set_sync_debug_mode, wait, where
from emulated_cuda.graphs import CUDAGraph
from torch import Tensor, distributed, nn
from torch.utils._python_dispatch import _disable_current_modes

MEMORY = 80 * 2**30
DEVICE = torch.device("cuda", 0)


class Stream(torch.Stream):
    """A queue of the device, which is always empty."""

    def __new__(cls, device: Any = None, priority: int = 0) -> "Stream":
        """There is one device."""
        return super().__new__(cls, device=DEVICE)

    def wait_stream(self, stream: torch.Stream) -> None:
        """The other queue is empty."""

    def wait_event(self, event: "Event") -> None:
        """All events have happened."""

    def record_event(self, event: "Event | None" = None) -> "Event":
        """An event that has happened."""
        return Event() if event is None else event

    def synchronize(self) -> None:
        """The host waits."""
        wait("stream.synchronize")


class Event:
    """A point in a queue."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.time = time.perf_counter()

    def record(self, stream: Any = None) -> None:
        """It happens now."""
        self.time = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """It has happened."""

    def query(self) -> bool:
        """It has happened."""
        return True

    def synchronize(self) -> None:
        """The host waits."""
        wait("event.synchronize")

    def elapsed_time(self, other: "Event") -> float:
        """Milliseconds of the host until another event."""
        return 1e3 * (other.time - self.time)


def start() -> None:
    """Gives this process the emulated device.

    The library must have been loaded before PyTorch, and what asks at its import for a GPU must
    come after this.

    Raises:
        RuntimeError: There is no device.
    """
    _replace_module()
    _replace_guards()
    _replace_recurrent_layers()
    _replace_messages()
    if torch.zeros(1, device="cuda").item() != 0:
        raise RuntimeError("the emulated device does not compute")


def _replace_module() -> None:
    streams = {"current_stream": Stream(), "default_stream": Stream()}
    properties = SimpleNamespace(name="Emulated", total_memory=MEMORY, major=9, minor=0)
    answers: dict[str, Any] = {
        "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0,
        "get_device_name": "Emulated", "get_device_capability": (9, 0), "is_bf16_supported": True,
        "get_device_properties": properties,
        "mem_get_info": (MEMORY, MEMORY), "memory_allocated": 0, "max_memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_reserved": 0, "graph_pool_handle": (0, 0), **streams,
        "_lazy_init": None, "set_device": None, "empty_cache": None,
        "reset_peak_memory_stats": None, "init": None,
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, _always(answer))
    functions = {
        "Stream": Stream, "Event": Event, "CUDAGraph": CUDAGraph,
        "stream": lambda stream: contextlib.nullcontext(),
        "synchronize": lambda device=None: wait("torch.cuda.synchronize"),
        "is_current_stream_capturing": lambda: State.capture is not None,
        "manual_seed": _seed, "manual_seed_all": _seed, "set_sync_debug_mode": set_sync_debug_mode,
        "get_rng_state": lambda device=None: torch.default_generator.get_state(),
        "set_rng_state": lambda state, device=None: torch.default_generator.set_state(state),
        "get_rng_state_all": lambda: [torch.default_generator.get_state()],
        "set_rng_state_all": _set_rng_states,
    }  # fmt: skip
    for name, function in functions.items():
        setattr(torch.cuda, name, function)
    torch.cuda.graphs.CUDAGraph = CUDAGraph  # type: ignore[misc]


def _replace_guards() -> None:
    """What asks whether PyTorch was built with CUDA, or calls what only such a build has."""
    import torch.cuda.amp.common

    torch.backends.cuda.is_built = _always(True)
    torch.cuda.amp.common.amp_definitely_not_available = _always(False)
    torch._C._host_emptyCache = _always(None)  # type: ignore[attr-defined]
    torch._C._set_only_lift_cpu_tensors(
        True
    )  # torch.tensor(..., device="cuda") copies where it is seen
    torch.backends.cudnn.is_acceptable = _always(False)
    original = torch.UntypedStorage.clone

    def clone(storage: Any) -> Any:
        if storage.device.type != "cuda":
            return original(storage)
        memory = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cuda")
        return memory.untyped_storage().copy_(storage)

    torch.UntypedStorage.clone = clone  # type: ignore[method-assign]


def _gru_cell(x: Tensor, hidden: Tensor, *weights: Tensor) -> Tensor:
    from_input, from_state = (
        nn.functional.linear(value, *weights[i::2]) for i, value in enumerate((x, hidden))
    )
    (reset_x, keep_x, new_x), (reset_h, keep_h, new_h) = (
        from_input.chunk(3, -1),
        from_state.chunk(3, -1),
    )
    new = (new_x + (reset_x + reset_h).sigmoid() * new_h).tanh()
    return new + (keep_x + keep_h).sigmoid() * (hidden - new)


def _lstm_cell(x: Tensor, states: Sequence[Tensor], *weights: Tensor) -> tuple[Tensor, Tensor]:
    hidden, cell = states
    from_input, from_state = (
        nn.functional.linear(value, *weights[i::2]) for i, value in enumerate((x, hidden))
    )
    add, keep, new, out = (from_input + from_state).chunk(4, -1)
    cell = keep.sigmoid() * cell + add.sigmoid() * new.tanh()
    return out.sigmoid() * cell.tanh(), cell


def _gru(
    x: Tensor, hidden: Tensor, weights: Sequence[Tensor], *options: Any
) -> tuple[Tensor, Tensor]:
    outputs, (last,) = _layers(
        lambda now, states, own: (_gru_cell(now, *states, *own),), x, (hidden,), weights, *options
    )
    return outputs, last


def _lstm(
    x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    outputs, last = _layers(
        lambda now, states, own: _lstm_cell(now, states, *own), x, states, weights, *options
    )
    return outputs, *last


def _layers(
    cell: Any, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor],
    biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """Outputs of the last of several recurrent layers and the last states of all, timestep by
    timestep.
    """
    if bidirectional or (dropout and train):
        raise NotImplementedError("the emulated device has no such recurrent layers")
    last, per_layer = [], len(weights) // num_layers
    outputs = x.unbind(1 if batch_first else 0)
    for layer, present in enumerate(zip(*states, strict=True)):
        own, made = weights[layer * per_layer : (layer + 1) * per_layer], []
        for now in outputs:
            present = cell(now, present, own)
            made.append(present[0])
        outputs = made
        last.append(present)
    return torch.stack(list(outputs), 1 if batch_first else 0), [
        torch.stack(s) for s in zip(*last, strict=True)
    ]


def _replace_recurrent_layers() -> None:
    """A GPU has kernels of its own for them, and PyTorch looks for these alone."""
    library = torch.library.Library("aten", "IMPL")
    functions = {
        "gru.input": _gru,
        "lstm.input": _lstm,
        "gru_cell": _gru_cell,
        "lstm_cell": _lstm_cell,
    }
    for name, function in functions.items():
        for key in ("CUDA", "AutogradCUDA"):
            library.impl(name, function, key)
    _kept.append(library)


def _replace_messages() -> None:
    """Messages between processes that have one emulated device each: gloo sends what NCCL would."""
    begin = distributed.init_process_group
    distributed.init_process_group = lambda backend=None, **options: begin("gloo", **options)
    for name in ("all_reduce", "broadcast"):
        setattr(distributed, name, _message(name, getattr(distributed, name)))


def _message(name: str, send: Any) -> Any:
    def sent(tensor: Tensor, *args: Any, **options: Any) -> Any:
        if not tensor.is_cuda:
            return send(tensor, *args, **options)
        if State.capture is not None:
            raise RuntimeError(f"{name} in a capture, at {where()}")
        if State.counts is not None:
            State.counts.kernels[name, where()] += 1
        with _disable_current_modes():
            here = tensor.cpu()
            send(here, *args, **options)
            tensor.copy_(here)
        return None

    return sent


_kept: list[Any] = []


def _always(answer: Any) -> Any:
    return lambda *args, **kwargs: answer


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)


def _set_rng_states(states: Sequence[Tensor]) -> None:
    torch.default_generator.set_state(states[0])
