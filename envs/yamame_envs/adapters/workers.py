"""Envs that are played in worker processes.

Every process plays a block of consecutive envs and receives one message per step or reset. A
process that died, or that does not answer in time, is killed and replaced: the episodes of its envs
are lost, nothing else. (Gymnasium's AsyncVectorEnv has one process per env, and cannot go on after
a process has failed.)

The processes are spawned. They import neither torch nor the main script, unless the environments
need it (`yamame_envs.adapters.shipping`), and end with their owner: when it is closed or collected,
and when the main process exits or dies.
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
from typing import Annotated, Any, Literal

from yamame.checks import Bounds, NonNegativeInt, require, require_at_least, require_choice

from yamame_envs.adapters.in_process import EnvSpaces, Failure, InProcessEnvs, Make, Outcome
from yamame_envs.adapters.shipping import pack, pack_registry, register_packed
from yamame_envs.adapters.spaces import Array

# Seconds. The first answer of a process takes longer: it imports everything before.
_START_TIMEOUT = 120.0
# The system counts milliseconds in 32 bits.
_MAX_TIMEOUT = 1e6
# All processes together have this long to close their environments.
_CLOSE_TIMEOUT = 2.0
_PICKLE_PROTOCOL = 5

# Sent to all processes of a terminal or a job. The main process handles them, and closes the
# workers itself.
_OWNER_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


@dataclass(frozen=True)
class Workers:
    """Number of worker processes, and the handling of failures.

    Args:
        num_processes: Worker processes, among which the environments are divided, one each at
            least. 0: they are played in this process.
        on_error: ``raise``: an error of an environment ends the run. ``continue``: it ends the
            episode, which is dropped from training.
        max_errors: Number of errors that ``continue`` tolerates; one more ends the run.
        timeout: Seconds that a process may take for an answer, in (0, 1e6]. Its first one may take
            120 s, because it imports everything before. A step in this process may take any time.

    Raises:
        ArgumentError: A value is out of its range.
    """

    num_processes: NonNegativeInt = 0
    on_error: Literal["raise", "continue"] = "raise"
    max_errors: NonNegativeInt = 10
    timeout: Annotated[float, Bounds(above=0, most=_MAX_TIMEOUT)] = 60.0

    def __post_init__(self) -> None:
        require_at_least("Workers", 0, num_processes=self.num_processes, max_errors=self.max_errors)
        require_choice("Workers", "on_error", self.on_error, ("raise", "continue"))
        in_range = 0 < self.timeout <= _MAX_TIMEOUT
        condition = f"be above 0 and at most {_MAX_TIMEOUT:g}"
        require("Workers", "timeout", self.timeout, in_range, condition)


def serve(connection: Connection, payload: bytes) -> None:
    """Play the envs described by ``payload`` in a worker process, until the connection ends."""
    with contextlib.suppress(EOFError, OSError):
        try:
            registry, arguments = pickle.loads(payload)
            register_packed(registry)
            envs = InProcessEnvs(*pickle.loads(arguments))
        except Exception as error:
            message = (None, Failure.of(error).portable())
            connection.send_bytes(pickle.dumps(message, _PICKLE_PROTOCOL))
            return
        try:
            while True:
                number, name, arguments = pickle.loads(connection.recv_bytes())
                result = getattr(envs, name)(*arguments)
                if isinstance(result, Outcome):
                    for position, failure in result.failures.items():
                        result.failures[position] = failure.portable()
                elif isinstance(result, Failure):
                    result = result.portable()
                connection.send_bytes(pickle.dumps((number, result), _PICKLE_PROTOCOL))
        finally:
            envs.close()


@contextlib.contextmanager
def _spawning(*, needs_main: bool) -> Iterator[None]:
    """Prepare this process for spawning others, which inherit its settings.

    Args:
        needs_main: Whether they import the main script.
    """
    main = sys.modules["__main__"]
    blocks_signals = hasattr(signal, "pthread_sigmask")
    if blocks_signals:
        # Starting the tracker later would unblock some signals again.
        resource_tracker.ensure_running()
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _OWNER_SIGNALS)
    # A spawned process imports the main script that it finds here, which may be slow.
    if not needs_main:
        sys.modules["__main__"] = ModuleType("__main__")
    # The processes share the machine, so each computes with one thread.
    sets_threads = "OMP_NUM_THREADS" not in os.environ
    if sets_threads:
        os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if sets_threads:
            del os.environ["OMP_NUM_THREADS"]
        sys.modules["__main__"] = main
        if blocks_signals:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


@dataclass(frozen=True)
class Failed:
    """Answer of a process that cannot continue.

    Attributes:
        failure: Reason.
    """

    failure: Failure


class _Worker:
    """One process, which plays the envs ``start`` to ``stop`` - 1.

    Args:
        payload: Arguments of `serve`.
        needs_main: Whether the process must import the main script.
        start, stop: Envs.
    """

    process: BaseProcess
    connection: Connection

    def __init__(self, payload: bytes, needs_main: bool, start: int, stop: int) -> None:
        self.payload = payload
        self.needs_main = needs_main
        self.start = start
        self.stop = stop
        self.num_requests = 0
        self.spawn()

    def spawn(self) -> None:
        """Start the process, without waiting for it."""
        context = get_context("spawn")
        self.connection, remote = context.Pipe()
        arguments = (remote, self.payload)
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        with _spawning(needs_main=self.needs_main):
            self.process.start()
        # Only the child keeps this end, so its death closes the connection.
        remote.close()
        self.has_answered = False

    def kill(self) -> None:
        """Kill the process."""
        self.connection.close()
        self.process.kill()
        self.process.join()
        self.process.close()

    def send(self, name: str, *arguments: Any) -> None:
        """Send a request. A broken connection is noticed by `receive`."""
        self.num_requests += 1
        message = (self.num_requests, name, arguments)
        with contextlib.suppress(OSError):
            self.connection.send_bytes(pickle.dumps(message, _PICKLE_PROTOCOL))

    def receive(self, since: float, timeout: float) -> Any:
        """Return the answer to the last request, or `Failed`.

        Args:
            since: Time of the request, by ``time.monotonic``.
            timeout: Seconds after which the process has failed.
        """
        if not self.has_answered:
            timeout = max(timeout, _START_TIMEOUT)
        try:
            while True:
                remaining = max(0.0, since + timeout - time.monotonic())
                if not self.connection.poll(remaining):
                    reason = f"its worker process did not answer within {timeout:g} seconds"
                    return Failed(Failure(reason))
                number, answer = pickle.loads(self.connection.recv_bytes())
                self.has_answered = True
                if number is None:
                    return Failed(answer)
                # The answer to a request that was interrupted may come first.
                if number == self.num_requests:
                    return answer
        except (EOFError, OSError):
            return Failed(Failure(f"its worker process {self._describe_exit()}"))

    def _describe_exit(self) -> str:
        self.process.join(_CLOSE_TIMEOUT)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"was killed by signal {-code}"
        return f"exited with {code}"


def _end(workers: list[_Worker], owner_pid: int) -> None:
    """End all processes, after a moment to close their environments."""
    if os.getpid() != owner_pid:
        # In a forked copy of the main process they are not its children.
        return
    # The end of its connection tells a process to close its environments.
    for worker in workers:
        # One whose descriptor is gone must not keep the other processes alive.
        with contextlib.suppress(OSError):
            worker.connection.close()
    until = time.monotonic() + _CLOSE_TIMEOUT
    for worker in workers:
        # A process may have ended before, where no other could be started.
        with contextlib.suppress(ValueError):
            worker.process.join(max(0.0, until - time.monotonic()))
            worker.kill()
    workers.clear()


class Pool:
    """Plays envs in worker processes, with the methods of `InProcessEnvs`.

    Args:
        make: Makes the environment of one env. It must be picklable.
        num_envs: Number of envs.
        env_spaces: Observations and actions of all envs.
        workers: Number of processes, and the timeout of their answers.

    Attributes:
        interrupted: Failures of envs that lost their episode without being stepped, because their
            process failed over another env. The caller clears it.
    """

    def __init__(self, make: Make, num_envs: int, env_spaces: EnvSpaces, workers: Workers) -> None:
        self.interrupted: dict[int, Failure] = {}
        self._spaces = env_spaces
        self._timeout = workers.timeout
        self._workers: list[_Worker] = []
        # At exit, this must come before multiprocessing waits for its children: they block the
        # signal by which it would end them.
        self.close = Finalize(self, _end, args=(self._workers, os.getpid()), exitpriority=10)

        count = min(workers.num_processes, num_envs)
        bounds = [num_envs * index // count for index in range(count + 1)]
        registry = pack_registry()
        for start, stop in pairwise(bounds):
            arguments, needs_main = pack((make, stop - start, env_spaces))
            payload = pickle.dumps((registry, arguments), _PICKLE_PROTOCOL)
            self._workers.append(_Worker(payload, needs_main, start, stop))

    @property
    def pids(self) -> list[int | None]:
        """Process ids."""
        return [worker.process.pid for worker in self._workers]

    def reset(self, env_ids: Sequence[int], seeds: Sequence[int]) -> Outcome:
        """Begin an episode in some envs, see `InProcessEnvs.reset`."""
        return self._play("reset", env_ids, seeds)

    def step(self, env_ids: Sequence[int], actions: Array) -> Outcome:
        """Step some envs, see `InProcessEnvs.step`."""
        return self._play("step", env_ids, actions)

    def render(self, env_id: int) -> Array | Failure:
        """Return the picture of an env, see `InProcessEnvs.render`."""
        number = bisect_left([worker.stop for worker in self._workers], env_id + 1)
        worker = self._workers[number]
        since = time.monotonic()
        worker.send("render", env_id - worker.start)
        answer: Array | Failure | Failed = worker.receive(since, self._timeout)
        if isinstance(answer, Failed):
            self._replace(worker, answer.failure, [])
            return answer.failure
        return answer

    def task_hashes(self) -> list[int | None]:
        """Return the hash of each env's task, see `InProcessEnvs.task_hashes`."""
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
        # All requests are sent before the first answer is awaited, so the processes run together.
        since = time.monotonic()
        requests = []
        for worker in self._workers:
            begin = bisect_left(env_ids, worker.start)
            end = bisect_left(env_ids, worker.stop)
            if begin < end:
                own = [env_id - worker.start for env_id in env_ids[begin:end]]
                worker.send(name, own, data[begin:end])
                requests.append((worker, own))
        if not requests:
            return Outcome.zeros(self._spaces, 0, {})

        parts = []
        for worker, own in requests:
            answer: Outcome | Failed = worker.receive(since, self._timeout)
            if isinstance(answer, Failed):
                self._replace(worker, answer.failure, own)
                failures = dict.fromkeys(range(len(own)), answer.failure)
                answer = Outcome.zeros(self._spaces, len(own), failures)
            parts.append(answer)
        return Outcome.concatenate(parts)

    def _replace(self, worker: _Worker, failure: Failure, stepped: Sequence[int]) -> None:
        """Replace a process that failed, and record the envs that were not stepped."""
        # A process that did not answer in time is still running.
        worker.kill()
        for env_id in range(worker.stop - worker.start):
            if env_id not in stepped:
                self.interrupted[worker.start + env_id] = failure
        worker.spawn()
