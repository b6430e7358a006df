"""What code must not do while it is recorded as a CUDA graph: decide anything by the data.

A recorded computation runs again on other data, and on the device alone: nothing in it is read back, and the branch
that was taken is taken for ever. So while `capturing`, arguments are not checked (the same code has checked others
like them before), and where one branch is general and the others are cheaper, the general one is taken.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_recording = False


def capturing() -> bool:
    """Whether what is computed now is being recorded.

    >>> with recording():
    ...     capturing()
    True
    >>> capturing()
    False
    """
    return _recording


@contextmanager
def recording() -> Iterator[None]:
    """Everything inside is being recorded, in all threads: backward passes have threads of their own."""
    global _recording
    before, _recording = _recording, True
    try:
        yield
    finally:
        _recording = before
