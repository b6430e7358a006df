"""Time that compilers of libraries take in this process, and a line about a long compilation."""

import threading
import time
from types import TracebackType

from yamame.system.messages import print_once

PATIENCE = 2.0
"""Seconds after which a compilation is announced."""

_spent = 0.0


def compiling_seconds() -> float:
    """Return the seconds that all blocks of `compiling` in this process have taken."""
    return _spent


class compiling:  # noqa: N801 (a function of a block, as contextlib.suppress)
    """Context manager of a block that compiles: it measures the block, and prints a line if it is
    still running after `PATIENCE` seconds.

    Args:
        line: The line, which is printed once within a run.

    >>> before = compiling_seconds()
    >>> with compiling("compiling the example"):
    ...     pass
    >>> compiling_seconds() > before
    True
    """

    def __init__(self, line: str) -> None:
        self._timer = threading.Timer(PATIENCE, print_once, [line])
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._start = time.perf_counter()
        self._timer.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _spent
        self._timer.cancel()
        _spent += time.perf_counter() - self._start
