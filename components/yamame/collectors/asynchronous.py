"""Acting beside learning: worker processes play ahead of the learner, by no more than a bound.

Every worker has envs, a policy and unfinished episodes of its own and sends whole trajectories; only the learner's
process writes to replay. Weights lie in shared memory and are taken over between two blocks of steps. Which
weights played which step depends on the machine's load: nothing here is reproducible. `SyncCollector` is.
"""

import copy
import queue
from collections.abc import Callable, Mapping
from multiprocessing.util import Finalize
from typing import Any, Literal

import numpy as np
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import multiprocessing
from torchrl.envs import EnvBase

from yamame.checks import require, require_at_least, require_choice
from yamame.collectors.base import Episodes, Replay
from yamame.collectors.worker import Channel, Failure, Job, Message, decode, encode, work
from yamame.signals import unheard

_PATIENCE = 0.5
"""Seconds after which the learner's process, waiting for a message, checks whether all workers are alive."""


class AsyncCollector:
    """Collects with worker processes that go on acting while the learner learns.

    The workers begin at the first `collect`. Each plays blocks of ``block_steps`` steps of its envs and pauses
    before it would be further ahead of what was collected than its share of ``max_staleness``. Trajectories are those
    of `SyncCollector`.

    A restored collector goes on with the saved weights and exploration schedule, but its workers begin new
    episodes, of tasks that were not given before the state was saved.

    Args:
        make_env: ``(num_envs=..., seed=...) -> environment`` with batch size ``[num_envs]``, which emits
            ``is_init``. Is pickled: a function or class of a module, or a `functools.partial` of one.
        policy: As for `SyncCollector`; copied, and pickled.
        replay: Receives finished trajectories ``[E, L]`` through its ``extend``, in this process.
        num_envs: Envs of all workers together, shared out evenly.
        seed: Every worker's seeds follow from it, from the worker's number and from how often the run was resumed.
        exploration: As for `SyncCollector`; copied into every worker, where its ``step`` counts the steps of all.
        num_workers: Processes, at most ``num_envs``.
        block_steps: Steps of every env between two messages of a worker.
        max_staleness: The most environment steps, over all envs, taken and not yet collected.
        timeout: Seconds without any message after which a living worker is taken for stuck.
        greedy, autocast: As for `SyncCollector`.

    Raises:
        ValueError: If a number is out of its range, or ``autocast`` is unknown.
        RuntimeError: At `collect`, if a worker failed, died or is stuck; all others are ended.
    """

    def __init__(
        self,
        make_env: Callable[..., EnvBase],
        policy: TensorDictModuleBase,
        replay: Replay,
        *,
        num_envs: int,
        seed: int,
        exploration: TensorDictModuleBase | None = None,
        num_workers: int = 1,
        block_steps: int = 16,
        max_staleness: int = 4096,
        timeout: float = 300.0,
        greedy: bool = False,
        autocast: Literal["bfloat16"] | None = None,
    ) -> None:
        owner = type(self).__name__
        require(owner, "num_workers", num_workers, 1 <= num_workers <= num_envs, f"be in 1..{num_envs}")
        require_at_least(owner, 1, block_steps=block_steps)
        require_at_least(owner, num_envs * block_steps, max_staleness=max_staleness)
        require(owner, "timeout", timeout, timeout > 0, "be positive")
        require_choice(owner, "autocast", autocast, (None, "bfloat16"))
        self.replay = replay
        self.policy = copy.deepcopy(policy).cpu().requires_grad_(False).eval()
        self.exploration = copy.deepcopy(exploration)
        self._make_env, self._seed = make_env, seed
        self._envs = [num_envs // num_workers + (w < num_envs % num_workers) for w in range(num_workers)]
        self._block_steps, self._timeout = block_steps, timeout
        self._num_tokens = max_staleness // (num_envs * block_steps)
        self._acting = {"greedy": greedy, "autocast": autocast}
        self._num_restarts = 0
        self._workers: _Workers | None = None

    def collect(self, num_steps: int) -> Episodes:
        """Appends what the workers bring until they took ``num_steps`` steps more; waits only for what is missing."""
        if self._workers is None:
            parts, jobs = encode((self.policy, self.exploration)), []
            for worker, num_envs in enumerate(self._envs):
                seeds = worker_seeds(self._seed, self._num_restarts, worker)
                jobs.append(
                    Job(worker, self._make_env, num_envs, *seeds, parts, self._block_steps, self._acting)
                )
            self._workers = _Workers(jobs, self.policy, num_tokens=self._num_tokens)
        brought: list[Episodes] = []
        while sum(episodes.num_steps for episodes in brought) < num_steps:
            try:
                message = self._workers.receive(self._timeout)
            except BaseException:
                self.shutdown()
                raise
            if message.trajectories is not None:
                self.replay.extend(message.trajectories)
            brought.append(message.episodes)
        episodes = Episodes.merged(brought)
        if self.exploration is not None:
            self.exploration.step(episodes.num_steps)
        return episodes

    def metrics(self) -> dict[str, float]:
        """``unfinished_steps``: of episodes that have not ended; ``steps_ahead``: taken and not yet collected."""
        workers = self._workers
        if workers is None:
            return {"unfinished_steps": 0.0, "steps_ahead": 0.0}
        ahead = workers.channel.num_steps.value - workers.num_received
        return {"unfinished_steps": float(sum(workers.num_open)), "steps_ahead": float(ahead)}

    def update_policy_weights_(self, weights: TensorDictBase) -> None:
        """Writes ``TensorDict.from_module(policy).data`` where every worker finds it at its next block."""
        if self._workers is None:
            TensorDict.from_module(self.policy).data.update_(weights)
        else:
            self._workers.write(weights)

    def state_dict(self) -> dict[str, Any]:
        """Weights, exploration, and how often the run was resumed. Steps that are under way are not in it."""
        return {
            "policy": {name: value.clone() for name, value in self.policy.state_dict().items()},
            "exploration": None if self.exploration is None else self.exploration.state_dict(),
            "num_restarts": self._num_restarts,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned. Workers begin anew, with seeds that were not used before."""
        self.shutdown()
        self.policy.load_state_dict(state["policy"])
        if self.exploration is not None:
            self.exploration.load_state_dict(state["exploration"])
        self._num_restarts = state["num_restarts"] + 1

    def shutdown(self) -> None:
        """Ends the workers; a later `collect` would begin others."""
        if self._workers is not None:
            self._workers.end()
            self._workers = None


def worker_seeds(seed: int, num_restarts: int, worker: int) -> tuple[int, int]:
    """The seeds of a worker's environment and of its other random numbers, in the run's n-th session."""
    first, second = np.random.SeedSequence([seed, num_restarts, worker]).generate_state(2)
    return int(first) >> 1, int(second) >> 1


class _Workers:
    """The processes, one per job, and what they share; a worker may be ``num_tokens`` blocks ahead."""

    def __init__(self, jobs: list[Job], policy: TensorDictModuleBase, *, num_tokens: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.channel = Channel(
            weights=TensorDict.from_module(policy.share_memory()).data,
            lock=context.Lock(),
            version=context.Value("q", 0),
            num_steps=context.Value("q", 0),
            stop=context.Event(),
            results=context.Queue(),
        )
        self.num_open = [0] * len(jobs)  # steps of unfinished episodes, of every worker at its last message
        self.num_received = 0  # environment steps of all messages
        self.tokens = [context.Semaphore(num_tokens) for _ in jobs]
        # No daemons, for environments may have processes of their own; so `_end` stops them when this process ends.
        self.processes = [
            context.Process(target=work, args=(job, self.channel, tokens), name=f"collector-{job.index}")
            for job, tokens in zip(jobs, self.tokens, strict=True)
        ]
        self.end = Finalize(self, _end, args=(self.channel, self.tokens, self.processes), exitpriority=10)
        with unheard():  # the learner's process is asked to end, and ends these
            for process in self.processes:
                process.start()

    def receive(self, timeout: float) -> Message:
        """The next message; its sender may begin another block."""
        waited = 0.0
        while True:
            dead = [process for process in self.processes if not process.is_alive()]
            try:
                message: Message | Failure = decode(self.channel.results.get(timeout=_PATIENCE))
            except queue.Empty:
                waited += _PATIENCE
                if dead:
                    number, code = self.processes.index(dead[0]), dead[0].exitcode
                    raise RuntimeError(
                        f"AsyncCollector: worker {number} died with exit code {code}"
                    ) from None
                if waited >= timeout:
                    raise RuntimeError(
                        f"AsyncCollector: timeout must allow for one block, got no message in {timeout} s"
                    ) from None
                continue
            if isinstance(message, Failure):
                raise RuntimeError(f"AsyncCollector: worker {message.worker} failed\n{message.error}")
            if dead:
                continue  # nobody goes on, but the dead one may have sent its error
            self.tokens[message.worker].release()
            self.num_open[message.worker] = message.num_open
            self.num_received += message.episodes.num_steps
            return message

    def write(self, weights: TensorDictBase) -> None:
        """Changes the shared weights while no worker reads them."""
        if not self.channel.lock.acquire(timeout=60.0):
            raise RuntimeError("AsyncCollector: a worker must have died while it read weights, got no lock")
        try:
            self.channel.weights.update_(weights)
            self.channel.version.value += 1
        finally:
            self.channel.lock.release()


def _end(channel: Channel, tokens: list[Any], processes: list[Any]) -> None:
    channel.stop.set()
    for semaphore in tokens:
        semaphore.release()
    for process in processes:
        if process.pid is None:
            continue
        process.join(timeout=10.0)
        if process.is_alive():
            process.kill()
            process.join()
    channel.results.close()
    channel.results.cancel_join_thread()
