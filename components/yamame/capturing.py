"""What code must not do while it is captured: decide anything by the data.

A captured computation (a CUDA graph, a compiled or an exported function) runs again on other data: nothing in it is
read back, and the branch that was taken is taken for ever. So while `capturing`, the general branch is taken, unless
the host knows what decides: `NUM_SEGMENTS`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

NUM_SEGMENTS = "num_segments"
"""Beside the tensors of a batch, on the host: how many memories begin in it, so that no device is asked."""

_recording = False


def capturing() -> bool:
    """Whether what is computed now is being captured, compiled or exported.

    >>> with recording():
    ...     capturing()
    True
    >>> capturing()
    False
    """
    return torch.compiler.is_compiling() or _recording  # in this order: what is compiled does not ask twice


@contextmanager
def recording() -> Iterator[None]:
    """Everything inside is being captured, in all threads: backward passes have threads of their own."""
    global _recording
    before, _recording = _recording, True
    try:
        yield
    finally:
        _recording = before
