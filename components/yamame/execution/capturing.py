"""Rules for code that is captured, as a CUDA graph, a compiled or an exported function, and runs
again on other data.

* No branch may depend on the data: nothing is read back, and the branch taken in the capture is
  taken in every run. So while `capturing`, the general branch is taken, unless the host knows what
  decides: `NUM_SEGMENTS`.
* A CUDA graph reads the memory that it was captured with. Every tensor that it reads is a
  parameter, a buffer, a declared input or a `Constant`, and new values are copied into it, never
  put in its place. Numbers of Python are baked in: one that changes between two runs must be a
  tensor. `yamame.testing.DeclaredReads` checks the tensors.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch import Tensor

NUM_SEGMENTS = "num_segments"
"""Beside the tensors of a batch, on the host: how many memories begin in it, so that no device is
asked.
"""

_recording = False


def capturing() -> bool:
    """Return whether the present computation is captured, compiled or exported.

    >>> with recording():
    ...     capturing()
    True
    >>> capturing()
    False
    """
    return (
        torch.compiler.is_compiling() or _recording
    )  # in this order: what is compiled does not ask twice


@contextmanager
def recording() -> Iterator[None]:
    """Everything inside is being captured, in all threads: backward passes have threads of their
    own.
    """
    global _recording
    before, _recording = _recording, True
    try:
        yield
    finally:
        _recording = before


class Constant:
    """A tensor that never changes, copied to each device once.

    A copy from the host at every use would wait for the device, and cannot be part of a CUDA graph.
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
        """The tensor on a device."""
        if device not in self._copies:
            with torch.inference_mode(False):
                self._copies[device] = self._value.to(device)
        return self._copies[device]

    @classmethod
    def tensors(cls) -> list[Tensor]:
        """All constants of the process, on all devices."""
        return [copy for constant in cls._all for copy in constant._copies.values()]

    def __reduce__(self) -> tuple[Any, ...]:
        return Constant, (self._value,)
