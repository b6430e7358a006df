"""Signals that ask a run to end: noted when they come, acted upon where all state is whole.

SIGTERM, SIGINT (Ctrl-C), SIGUSR1, SIGUSR2 and SIGHUP mean the same. An exception that is raised
wherever a signal happens to arrive is swallowed or changed by the library that is interrupted. So a
run notes the first signal and asks at its own places whether there was one (`exit_if_received`); a
second signal has its default effect, at once. A signal that is ignored when this process begins, as
SIGHUP is below ``nohup``, stays ignored.

Recipes import this before torch: it needs the standard library alone.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType

EXIT_STATUS = 75
"""Exit status of what was asked to end and can go on later: EX_TEMPFAIL of ``sysexits.h``."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)

_Handler = Callable[[int, FrameType | None], None]
_received: signal.Signals | None = None
_deferred = False


class Terminated(SystemExit):
    """The process was asked to end. A ``SystemExit``: it passes ``except Exception`` and has no
    traceback.

    Attributes:
        signal: What asked this process; None if it was another one.
        told: Whether the user was told what has become of the run.
    """

    def __init__(self) -> None:
        super().__init__(EXIT_STATUS)
        self.signal, self.told = _received, False


def received() -> signal.Signals | None:
    """The signal that asked this process to end."""
    return _received


def exit_if_received() -> None:
    """Raises `Terminated` if a signal was noted; to be called where all state is whole."""
    if _received is not None and not _deferred:
        raise Terminated


@contextmanager
def deferred() -> Iterator[None]:
    """Within the block `exit_if_received` does nothing: others count on this process."""
    global _deferred
    _deferred = True
    try:
        yield
    finally:
        _deferred = False


def exit_while_loading() -> None:
    """Until `handling` begins, a signal ends this process with `EXIT_STATUS` and a line: nothing
    was written.
    """
    _install(_leave)


@contextmanager
def handling(*, at_once: bool) -> Iterator[None]:
    """Within the block signals end the process in order. Outside the main thread this does nothing.

    Args:
        at_once: The first signal raises `Terminated`; else it is noted, and the block calls
            `exit_if_received`.
    """
    global _received
    former = _install(_raise if at_once else _note)
    try:
        yield
    except Terminated as ended:
        if at_once and not ended.told and ended.signal is not None:
            _say_not_begun(ended.signal)
        raise
    finally:
        for number, handler in former.items():
            # The recipe is over, and its result stands: what comes now changes the status no more.
            signal.signal(number, _note if handler is _leave else handler)
        if former and _raise not in former.values():
            _received = None


@contextmanager
def blocked() -> Iterator[None]:
    """Processes that are spawned within the block never hear signals: a terminal sends them to all
    at once.
    """
    former = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        resource_tracker.ensure_running()  # its start lets some of them through again
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


@contextmanager
def restoring_handlers() -> Iterator[None]:
    """Handlers that a library sets within the block are put back at its end."""
    in_main = threading.current_thread() is threading.main_thread()
    former = {number: signal.getsignal(number) for number in SIGNALS} if in_main else {}
    try:
        yield
    finally:
        for number, handler in former.items():
            if handler is not None:
                signal.signal(number, handler)


def _install(handler: _Handler) -> dict[signal.Signals, _Handler]:
    """Sets the handler of every signal that is not ignored; returns the former ones."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    heard = [number for number in SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    return {number: signal.signal(number, handler) for number in heard}  # type: ignore[misc]


def _note(number: int, frame: FrameType | None) -> None:
    global _received
    _received = signal.Signals(number)
    _install(signal.SIG_DFL)  # type: ignore[arg-type]


def _raise(number: int, frame: FrameType | None) -> None:
    _note(number, frame)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            # whoever imports may swallow what is raised meanwhile; a run asks before it begins
            return
        frame = frame.f_back
    raise Terminated


def _leave(number: int, frame: FrameType | None) -> None:
    _say_not_begun(signal.Signals(number))
    os._exit(EXIT_STATUS)


def _say_not_begun(number: signal.Signals) -> None:
    os.write(2, f"{number.name}: ended before the run began\n".encode())
