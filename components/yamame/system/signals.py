"""Signals that request the end of a run.

SIGTERM, SIGINT (Ctrl-C), SIGUSR1, SIGUSR2 and SIGHUP have the same effect. The first signal is
stored, and the run raises `Terminated` at points where its state is complete (`exit_if_received`).
A second signal has its default effect, at once. A signal that is ignored when the process begins,
as SIGHUP is below ``nohup``, stays ignored.

Recipes import this module before torch: it needs the standard library alone.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType

EXIT_STATUS = 75
"""Exit status of a run that can be resumed: EX_TEMPFAIL of ``sysexits.h``."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)

_Handler = Callable[[int, FrameType | None], None]
# Handlers belong to the process, and so does what they store.
_received: signal.Signals | None = None
_deferred = False


class Terminated(SystemExit):
    """The end of the process was requested.

    Args:
        code: Exit status of the process.

    Attributes:
        signal: Signal that this process received; None if another process received it.
        reported: Whether the state of the run was printed.
    """

    # A SystemExit, as it passes ``except Exception`` of libraries and prints no traceback.

    # Copies, as those of pickle, are made from the argument of the base class.
    def __init__(self, code: int = EXIT_STATUS) -> None:
        super().__init__(code)
        self.signal = _received
        self.reported = False


class _TerminatedAtOnce(Terminated):
    """Raised by a handler, wherever the signal has interrupted the program."""


def received() -> signal.Signals | None:
    """Return the signal that requested the end of this process, or None."""
    return _received


def exit_if_received() -> None:
    """Raise `Terminated` if a signal was received. Call it where the state is complete."""
    # The handler itself must not raise: libraries swallow or change an exception that is raised
    # wherever a signal happens to interrupt them.
    if _received is not None and not _deferred:
        raise Terminated


@contextmanager
def deferred() -> Iterator[None]:
    """Let `exit_if_received` do nothing in the block, where others wait for this process."""
    global _deferred
    _deferred = True
    try:
        yield
    finally:
        _deferred = False


def exit_while_loading() -> None:
    """Let a signal end the process with `EXIT_STATUS` and a line, until `handling` begins."""
    _install(_leave)


@contextmanager
def handling(*, at_once: bool) -> Iterator[None]:
    """Handle signals within the block. Outside the main thread this does nothing.

    Args:
        at_once: Raise `Terminated` at the first signal. Otherwise it is stored, and the block calls
            `exit_if_received`.
    """
    global _received
    former = _install(_raise if at_once else _store)
    try:
        yield
    except Exception as error:
        # A library that was interrupted may fail while it handles `Terminated`.
        ended = _cause(error)
        if not at_once or ended is None or ended.signal is None:
            raise
        _print_not_begun(ended.signal)
        raise ended from error
    except Terminated as ended:
        if at_once and not ended.reported and ended.signal is not None:
            _print_not_begun(ended.signal)
        raise
    finally:
        for number, handler in former.items():
            # The recipe is over: a signal that comes now must not change the exit status.
            signal.signal(number, _store if handler is _leave else handler)
        if former and _raise not in former.values():
            _received = None


@contextmanager
def blocked() -> Iterator[None]:
    """Let processes that are started within the block ignore signals."""
    # A terminal sends Ctrl-C to all processes at once, but only the run itself may decide.
    former = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        resource_tracker.ensure_running()  # its start lets some of them through again
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


@contextmanager
def restoring_handlers() -> Iterator[None]:
    """Restore the handlers at the end of the block, in which a library sets its own."""
    former = {}
    if threading.current_thread() is threading.main_thread():
        former = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            if handler is not None:
                signal.signal(number, handler)


def _install(handler: _Handler) -> dict[signal.Signals, _Handler]:
    """Set the handler of every signal that is not ignored, and return the former handlers."""
    # Python allows this in the main thread alone.
    if threading.current_thread() is not threading.main_thread():
        return {}
    former: dict[signal.Signals, _Handler] = {}
    for number in SIGNALS:
        # None is a handler that was not set from Python, which could not be restored.
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            former[number] = signal.signal(number, handler)  # type: ignore[assignment]
    return former


def _store(number: int, frame: FrameType | None) -> None:
    global _received
    _received = signal.Signals(number)
    _install(signal.SIG_DFL)  # type: ignore[arg-type]


def _raise(number: int, frame: FrameType | None) -> None:
    _store(number, frame)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            # A module that imports another may catch any error. The run checks before it begins.
            return
        frame = frame.f_back
    raise _TerminatedAtOnce


def _cause(error: BaseException) -> "_TerminatedAtOnce | None":
    """Return the exception of `_raise` during whose handling an error was raised, or None."""
    earlier: list[BaseException | None] = [error]
    seen: set[int] = set()
    while earlier:
        one = earlier.pop()
        if isinstance(one, _TerminatedAtOnce):
            return one
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            earlier += [one.__cause__, one.__context__]
    return None


def _leave(number: int, frame: FrameType | None) -> None:
    _print_not_begun(signal.Signals(number))
    # Python may be in the middle of an import, so there is nothing to close in order.
    os._exit(EXIT_STATUS)


def _print_not_begun(number: signal.Signals) -> None:
    # Not by print: a signal may have interrupted another print.
    os.write(2, f"{number.name}: ended before the run started\n".encode())
