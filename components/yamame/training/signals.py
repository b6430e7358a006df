"""SIGTERM as an exception, so that a run that is stopped can say so."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Terminated(SystemExit):
    """The process was asked to stop. A ``SystemExit``: it passes ``except Exception`` and ends it."""


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated(128 + number)


@contextmanager
def terminate_on_signal() -> Iterator[None]:
    """Within the block SIGTERM raises `Terminated`; Ctrl-C raises ``KeyboardInterrupt`` as ever.

    Outside the main thread, where Python allows no signal handlers, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
