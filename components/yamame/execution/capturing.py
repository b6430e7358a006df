"""Rules for code that is captured and later runs again on other data.

A captured computation is a CUDA graph, a compiled function or an exported function.

* No branch may depend on the data: nothing is read back, and the branch taken in the capture is
  taken in every run. While `capturing`, code takes the general branch, unless the host knows what
  decides (`NUM_SEGMENTS`).
* A CUDA graph reads the memory that it was captured with. Every tensor that it reads is a
  parameter, a buffer, a declared input or a `Constant`, and new values are copied into it. Python
  numbers are constants of the graph: a number that changes between runs must be a tensor.
  `yamame.testing.DeclaredReads` checks the tensors.
* Messages to other processes are calls of the host, see `yamame.distributed.between_graphs`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch import Tensor

NUM_SEGMENTS = "num_segments"
"""Non-tensor entry of a batch: number of its segments, so that no device has to be read."""

# State of the module, because neither an argument nor a context variable would reach the threads in
# which autograd runs the backward pass of a captured update.
_recording = False


def capturing() -> bool:
    """Return whether the present computation is captured, compiled or exported.

    >>> with recording():
    ...     capturing()
    True
    >>> capturing()
    False
    """
    # In this order: the compiler replaces the first call by a constant and never reads the global,
    # on which it would place a guard.
    return torch.compiler.is_compiling() or _recording


@contextmanager
def recording() -> Iterator[None]:
    """Mark everything inside of the context as captured, in all threads."""
    global _recording
    before = _recording
    _recording = True
    try:
        yield
    finally:
        _recording = before


class Constant:
    """A tensor that never changes, copied to each device once.

    Pickles and copies of the object hold the tensor as it was given.

    Args:
        value: Any shape; no code may change it.

    >>> Constant(torch.tensor([1, 2])).on(torch.device("cpu"))
    tensor([1, 2])
    """

    _all: ClassVar[WeakSet["Constant"]] = WeakSet()

    def __init__(self, value: Tensor) -> None:
        self._value = value
        self._copies = {value.device: value}
        self._all.add(self)

    def on(self, device: torch.device) -> Tensor:
        """Return the tensor on a device."""
        # A copy from the host at every use would wait for the device, and a CUDA graph cannot
        # contain one.
        if device not in self._copies:
            # An inference tensor could not be saved for a later backward pass.
            with torch.inference_mode(False):
                self._copies[device] = self._value.to(device)
        return self._copies[device]

    @classmethod
    def tensors(cls) -> list[Tensor]:
        """Return all constants of the process, on all devices."""
        tensors: list[Tensor] = []
        for constant in cls._all:
            tensors.extend(constant._copies.values())
        return tensors

    def __reduce__(self) -> tuple[Any, ...]:
        return Constant, (self._value,)
