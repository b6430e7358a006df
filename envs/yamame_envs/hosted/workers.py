"""Rows played in worker processes.

Every process plays a block of consecutive rows and gets one message for each step or reset. A process that died,
or that does not answer in time, is killed and another one takes its place: the episodes of its rows are lost,
nothing else. The processes are spawned, import neither torch nor the main script (unless the environments are
defined there) and end with their owner: when it is closed or collected, and when the main process exits or dies.
"""

import contextlib
import os
import pickle
import signal
import sys
import time
import weakref
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any, Literal

from yamame_envs.hosted.rows import Fault, Layout, Make, Outcome, Rows
from yamame_envs.hosted.spaces import Array

_LONGEST_START = 120.0  # seconds that a process may take to import everything, where `timeout` is less
_LONGEST_FAREWELL = 2.0  # seconds that all processes together have to close their environments


@dataclass(frozen=True)
class Workers:
    """Where rows are played, and what becomes of their failures.

    Args:
        num_processes: Worker processes, of which each plays a block of rows, so at most one per row is used;
            0: all rows are played in this process.
        on_error: ``"raise"``: a failure is an error; ``"continue"``: it ends the episode of its row, which is
            marked as ``aborted``.
        max_errors: Failures after which it is an error all the same.
        timeout: Seconds that a process may take for one answer; only its first one, before which it imports
            everything, may take longer. A step in this process may take any time.

    Raises:
        ValueError: If a value is out of its range.
    """

    num_processes: int = 0
    on_error: Literal["raise", "continue"] = "raise"
    max_errors: int = 10
    timeout: float = 60.0

    def __post_init__(self) -> None:
        conditions = {
            "num_processes": (self.num_processes >= 0, "be at least 0"),
            "on_error": (self.on_error in ("raise", "continue"), "be 'raise' or 'continue'"),
            "max_errors": (self.max_errors >= 0, "be at least 0"),
            "timeout": (self.timeout > 0, "be above 0"),
        }
        for name, (holds, condition) in conditions.items():
            if not holds:
                raise ValueError(f"Workers: {name} must {condition}, got {getattr(self, name)!r}")


def serve(connection: Connection, payload: bytes) -> None:
    """What a worker process does: plays the rows described by ``payload`` until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process is interrupted, and closes this one
    with contextlib.suppress(EOFError, OSError):
        try:
            rows = Rows(*pickle.loads(payload))
        except Exception as error:
            connection.send_bytes(pickle.dumps((None, Fault.of(error).portable()), 5))
            return
        try:
            while True:
                number, name, arguments = pickle.loads(connection.recv_bytes())
                result = getattr(rows, name)(*arguments)
                if isinstance(result, Outcome):
                    result.faults = {where: fault.portable() for where, fault in result.faults.items()}
                elif isinstance(result, Fault):
                    result = result.portable()
                connection.send_bytes(pickle.dumps((number, result), 5))
        finally:
            rows.close()


@contextlib.contextmanager
def _spawning(payload: bytes) -> Iterator[None]:
    """Keeps a spawned process from importing the main script without need, and from being interrupted."""
    hides = b"__main__" not in payload
    main = sys.modules["__main__"]
    blocks = hasattr(signal, "pthread_sigmask")
    if blocks:
        resource_tracker.ensure_running()  # its own start would allow interrupts again
        former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    if hides:
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if blocks:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)


@dataclass(frozen=True)
class Failed:
    """A process cannot go on.

    Attributes:
        fault: Why.
    """

    fault: Fault


class _Worker:
    """One process, and the rows ``start`` to ``stop`` - 1 that it plays."""

    process: BaseProcess
    connection: Connection

    def __init__(self, payload: bytes, start: int, stop: int) -> None:
        self.payload, self.start, self.stop = payload, start, stop
        self.asked = 0  # number of questions
        self.spawn()

    def spawn(self) -> None:
        """Starts the process, without waiting for it."""
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, self.payload), daemon=True)
        with _spawning(self.payload):
            self.process.start()
        theirs.close()
        self.has_answered = False

    def kill(self) -> None:
        """Ends the process at once."""
        self.connection.close()
        self.process.kill()
        self.process.join()
        self.process.close()

    def send(self, name: str, *arguments: Any) -> None:
        """Asks for something; whether that worked is seen when the answer is awaited."""
        self.asked += 1
        with contextlib.suppress(OSError):
            self.connection.send_bytes(pickle.dumps((self.asked, name, arguments), 5))

    def receive(self, since: float, timeout: float) -> Any:
        """The answer to what was asked last, at a time; `Failed` if the process cannot go on."""
        allowed = timeout if self.has_answered else max(timeout, _LONGEST_START)
        try:
            while True:  # an answer that nobody waited for, because of an interrupt, may come first
                if not self.connection.poll(max(0.0, since + allowed - time.monotonic())):
                    return Failed(Fault(f"its worker process did not answer within {allowed:g} seconds"))
                number, answer = pickle.loads(self.connection.recv_bytes())
                self.has_answered = True
                if number is None:
                    return Failed(answer)
                if number == self.asked:
                    return answer
        except (EOFError, OSError):
            self.process.join(_LONGEST_FAREWELL)
            code = self.process.exitcode
            how = f"was killed by signal {-code}" if code is not None and code < 0 else f"exited with {code}"
            return Failed(Fault(f"its worker process {how}"))


def _end(workers: list[_Worker], owner: int) -> None:
    """Ends all processes, which have a moment to close their environments."""
    if os.getpid() != owner:  # a forked copy of the main process: they are not its children
        return
    for worker in workers:
        worker.connection.close()
    until = time.monotonic() + _LONGEST_FAREWELL
    for worker in workers:
        with contextlib.suppress(ValueError):  # it ended before, and no other one could be started
            worker.process.join(max(0.0, until - time.monotonic()))
            worker.kill()
    workers.clear()


class Pool:
    """Plays rows in worker processes, with the methods of `Rows`.

    Args:
        make: Makes the environment of one row; it must be picklable.
        num_rows: Rows.
        layout: What they return and take.
        workers: How many processes, and how long they may take.
    """

    def __init__(self, make: Make, num_rows: int, layout: Layout, workers: Workers) -> None:
        self.lost: dict[int, Fault] = {}
        self._layout, self._timeout = layout, workers.timeout
        count = min(workers.num_processes, num_rows)
        bounds = [num_rows * index // count for index in range(count + 1)]
        self._workers: list[_Worker] = []
        self.close = weakref.finalize(self, _end, self._workers, os.getpid())
        for start, stop in pairwise(bounds):
            self._workers.append(_Worker(pickle.dumps((make, stop - start, layout), 5), start, stop))

    @property
    def pids(self) -> list[int | None]:
        """The identifiers of the processes."""
        return [worker.process.pid for worker in self._workers]

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> Outcome:
        """As `Rows.reset`."""
        return self._play("reset", rows, seeds)

    def step(self, rows: Sequence[int], actions: Array) -> Outcome:
        """As `Rows.step`."""
        return self._play("step", rows, actions)

    def render(self, row: int) -> Array | Fault:
        """As `Rows.render`."""
        worker = next(worker for worker in self._workers if row < worker.stop)
        since = time.monotonic()
        worker.send("render", row - worker.start)
        answer: Array | Fault | Failed = worker.receive(since, self._timeout)
        if isinstance(answer, Failed):
            self._replace(worker, answer.fault, [])
            return answer.fault
        return answer

    def _play(self, name: str, rows: Sequence[int], data: Sequence[int] | Array) -> Outcome:
        asked, since = [], time.monotonic()
        for worker in self._workers:
            begin, end = bisect_left(rows, worker.start), bisect_left(rows, worker.stop)
            if begin < end:
                own = [row - worker.start for row in rows[begin:end]]
                worker.send(name, own, data[begin:end])
                asked.append((worker, own))
        parts = [] if asked else [Outcome.nothing(self._layout, 0, {})]
        for worker, own in asked:
            answer: Outcome | Failed = worker.receive(since, self._timeout)
            if isinstance(answer, Failed):
                self._replace(worker, answer.fault, own)
                answer = Outcome.nothing(self._layout, len(own), dict.fromkeys(range(len(own)), answer.fault))
            parts.append(answer)
        return Outcome.joined(parts)

    def _replace(self, worker: _Worker, fault: Fault, asked: list[int]) -> None:
        """Puts another process in the place of one that failed while it was asked for some of its rows."""
        worker.kill()
        others = set(range(worker.stop - worker.start)) - set(asked)
        self.lost |= {worker.start + row: fault for row in others}
        worker.spawn()
