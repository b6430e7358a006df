"""Envs played in worker processes.

Every process plays a block of consecutive envs and gets one message for each step or reset. A
process that died, or that does not answer in time, is killed and another one takes its place: the
episodes of its envs are lost, nothing else. The processes are spawned, import neither torch nor the
main script (unless the environments are defined there) and end with their owner: when it is closed
or collected, and when the main process exits or dies.
"""

import contextlib
import os
import pickle
import signal
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from types import ModuleType
from typing import Any, Literal

from yamame.checks import require, require_at_least, require_choice

from yamame_envs.adapters.in_process import EnvSpaces, Failure, InProcessEnvs, Make, Outcome
from yamame_envs.adapters.spaces import Array

_LONGEST_START = (
    120.0  # seconds that a process may take to import everything, where `timeout` is less
)
_LONGEST_TIMEOUT = 1e6  # seconds: the system counts milliseconds, in 32 bits
_LONGEST_FAREWELL = 2.0  # seconds that all processes together have to close their environments
_OF_THE_OWNER = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""Signals that ask all processes of a terminal or job to end: the main process hears them, and
closes the others.
"""


@dataclass(frozen=True)
class Workers:
    """Where envs are played, and what becomes of their failures.

    Args:
        num_processes: Worker processes, of which each plays a block of envs, so at most one per env
            is used; 0: all envs are played in this process.
        on_error: ``"raise"``: a failure is an error; ``"continue"``: it ends the episode of its
            env, which is marked as ``aborted``.
        max_errors: Failures after which it is an error all the same.
        timeout: Seconds that a process may take for one answer; only its first one, before which it
            imports everything, may take longer. A step in this process may take any time.

    Raises:
        ValueError: If a value is out of its range.
    """

    num_processes: int = 0
    on_error: Literal["raise", "continue"] = "raise"
    max_errors: int = 10
    timeout: float = 60.0

    def __post_init__(self) -> None:
        require_at_least("Workers", 0, num_processes=self.num_processes, max_errors=self.max_errors)
        require_choice("Workers", "on_error", self.on_error, ("raise", "continue"))
        holds = 0 < self.timeout <= _LONGEST_TIMEOUT
        require(
            "Workers",
            "timeout",
            self.timeout,
            holds,
            f"be above 0 and at most {_LONGEST_TIMEOUT:g}",
        )


def serve(connection: Connection, payload: bytes) -> None:
    """What a worker process does: plays the envs described by ``payload`` until the connection
    ends.
    """
    with contextlib.suppress(EOFError, OSError):
        try:
            envs = InProcessEnvs(*pickle.loads(payload))
        except Exception as error:
            connection.send_bytes(pickle.dumps((None, Failure.of(error).portable()), 5))
            return
        try:
            while True:
                number, name, arguments = pickle.loads(connection.recv_bytes())
                result = getattr(envs, name)(*arguments)
                if isinstance(result, Outcome):
                    result.failures = {
                        where: failure.portable() for where, failure in result.failures.items()
                    }
                elif isinstance(result, Failure):
                    result = result.portable()
                connection.send_bytes(pickle.dumps((number, result), 5))
        finally:
            envs.close()


@contextlib.contextmanager
def _spawning(payload: bytes) -> Iterator[None]:
    """Keeps a spawned process from importing the main script without need, and from hearing
    signals.
    """
    hides = b"__main__" not in payload
    main = sys.modules["__main__"]
    blocks = hasattr(signal, "pthread_sigmask")
    if blocks:
        resource_tracker.ensure_running()  # its own start would let some signals through again
        former = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_OWNER)
    if hides:
        sys.modules["__main__"] = ModuleType("__main__")
    shares = (
        "OMP_NUM_THREADS" not in os.environ
    )  # the machine with others of its kind: it computes with one thread
    if shares:
        os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if shares:
            del os.environ["OMP_NUM_THREADS"]
        sys.modules["__main__"] = main
        if blocks:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)


@dataclass(frozen=True)
class Failed:
    """A process cannot go on.

    Attributes:
        failure: Why.
    """

    failure: Failure


class _Worker:
    """One process, and the envs ``start`` to ``stop`` - 1 that it plays."""

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
                    return Failed(
                        Failure(f"its worker process did not answer within {allowed:g} seconds")
                    )
                number, answer = pickle.loads(self.connection.recv_bytes())
                self.has_answered = True
                if number is None:
                    return Failed(answer)
                if number == self.asked:
                    return answer
        except (EOFError, OSError):
            self.process.join(_LONGEST_FAREWELL)
            code = self.process.exitcode
            how = (
                f"was killed by signal {-code}"
                if code is not None and code < 0
                else f"exited with {code}"
            )
            return Failed(Failure(f"its worker process {how}"))


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
    """Plays envs in worker processes, with the methods of `InProcessEnvs`.

    Args:
        make: Makes the environment of one env; it must be picklable.
        num_envs: Envs.
        env_spaces: What they return and take.
        workers: How many processes, and how long they may take.
    """

    def __init__(self, make: Make, num_envs: int, env_spaces: EnvSpaces, workers: Workers) -> None:
        self.interrupted: dict[int, Failure] = {}
        self._spaces, self._timeout = env_spaces, workers.timeout
        count = min(workers.num_processes, num_envs)
        bounds = [num_envs * index // count for index in range(count + 1)]
        self._workers: list[_Worker] = []
        # At exit before multiprocessing waits for its children, which do not hear that it asks them
        # to end.
        self.close = Finalize(self, _end, args=(self._workers, os.getpid()), exitpriority=10)
        for start, stop in pairwise(bounds):
            self._workers.append(
                _Worker(pickle.dumps((make, stop - start, env_spaces), 5), start, stop)
            )

    @property
    def pids(self) -> list[int | None]:
        """The identifiers of the processes."""
        return [worker.process.pid for worker in self._workers]

    def reset(self, env_ids: Sequence[int], seeds: Sequence[int]) -> Outcome:
        """As `InProcessEnvs.reset`."""
        return self._play("reset", env_ids, seeds)

    def step(self, env_ids: Sequence[int], actions: Array) -> Outcome:
        """As `InProcessEnvs.step`."""
        return self._play("step", env_ids, actions)

    def render(self, env_id: int) -> Array | Failure:
        """As `InProcessEnvs.render`."""
        worker = next(worker for worker in self._workers if env_id < worker.stop)
        since = time.monotonic()
        worker.send("render", env_id - worker.start)
        answer: Array | Failure | Failed = worker.receive(since, self._timeout)
        if isinstance(answer, Failed):
            self._replace(worker, answer.failure, [])
            return answer.failure
        return answer

    def task_hashes(self) -> list[int | None]:
        """As `InProcessEnvs.task_hashes`."""
        since = time.monotonic()
        for worker in self._workers:
            worker.send("task_hashes")
        hashes: list[int | None] = []
        for worker in self._workers:
            answer = worker.receive(since, self._timeout)
            if isinstance(answer, Failed):
                self._replace(worker, answer.failure, [])
                answer = [None] * (worker.stop - worker.start)
            hashes += answer
        return hashes

    def _play(self, name: str, env_ids: Sequence[int], data: Sequence[int] | Array) -> Outcome:
        asked, since = [], time.monotonic()
        for worker in self._workers:
            begin, end = bisect_left(env_ids, worker.start), bisect_left(env_ids, worker.stop)
            if begin < end:
                own = [env_id - worker.start for env_id in env_ids[begin:end]]
                worker.send(name, own, data[begin:end])
                asked.append((worker, own))
        parts = [] if asked else [Outcome.nothing(self._spaces, 0, {})]
        for worker, own in asked:
            answer: Outcome | Failed = worker.receive(since, self._timeout)
            if isinstance(answer, Failed):
                self._replace(worker, answer.failure, own)
                answer = Outcome.nothing(
                    self._spaces, len(own), dict.fromkeys(range(len(own)), answer.failure)
                )
            parts.append(answer)
        return Outcome.joined(parts)

    def _replace(self, worker: _Worker, failure: Failure, asked: list[int]) -> None:
        """Puts another process in the place of one that failed while it was asked for some of its
        envs.
        """
        worker.kill()
        others = set(range(worker.stop - worker.start)) - set(asked)
        self.interrupted |= {worker.start + env_id: failure for env_id in others}
        worker.spawn()
