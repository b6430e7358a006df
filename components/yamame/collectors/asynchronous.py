"""Acting beside learning: worker processes play ahead of the learner, by no more than a bound.

Every worker has rows, a policy and unfinished episodes of its own and sends whole trajectories; only the learner's
process writes to replay. Weights lie in shared memory and are taken over between two blocks of steps. Which
weights played which step depends on the machine's load: nothing here is reproducible. `SyncCollector` is.
"""

import copy
import queue
from collections.abc import Callable, Mapping
from multiprocessing.util import Finalize
from typing import Any, Literal

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import multiprocessing
from torchrl.envs import EnvBase

from yamame.agent import InContextPolicy
from yamame.collectors.base import Episodes, Replay
from yamame.collectors.worker import Channel, Job, Message, decode, encode, work

_PATIENCE = 0.5


class AsyncCollector:
    """Collects with worker processes that go on acting while the learner learns.

    The workers begin at the first `collect`. Each plays blocks of ``block_steps`` steps of its rows and pauses
    before it would be further ahead of what was collected than its share of ``max_staleness``. What is stored is
    told by `Player`.

    A restored collector goes on with the saved weights and exploration schedule, but its workers begin new
    episodes, of tasks that were not given before the state was saved.

    Args:
        make_env: ``(num_envs=..., seed=...) -> environment`` with batch size ``[num_envs]``, which emits
            ``is_init``. Is pickled: a function or class of a module, or a `functools.partial` of one.
        policy: The policy to act with; copied.
        replay: Receives finished trajectories ``[E, L]`` through its ``extend``, in this process.
        num_envs: Rows of all workers together, shared out evenly.
        seed: Every worker's seeds follow from it, from the worker's number and from how often the run was resumed.
        exploration: As for `SyncCollector`; copied into every worker, where its ``step`` is told of the steps of all.
        num_workers: Processes, at most ``num_envs``.
        block_steps: Steps of every row between two messages of a worker.
        max_staleness: The most environment steps, over all rows, taken and not yet collected.
        timeout: Seconds without any message after which a living worker is taken for stuck.
        greedy: As for `SyncCollector`.
        autocast: As for `SyncCollector`.
        compile_policy: As for `SyncCollector`.

    Raises:
        ValueError: If a number is out of its range, or ``autocast`` is unknown.
        RuntimeError: At `collect`, if a worker failed, died or is stuck; all others are ended.
    """

    def __init__(
        self,
        make_env: Callable[..., EnvBase],
        policy: InContextPolicy,
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
        compile_policy: bool = False,
    ) -> None:
        self._require("num_workers", num_workers, 1 <= num_workers <= num_envs, f"be in 1..{num_envs}")
        self._require("block_steps", block_steps, block_steps >= 1, "be at least 1")
        self._rows = [num_envs // num_workers + (w < num_envs % num_workers) for w in range(num_workers)]
        self._num_tokens = max_staleness // (num_envs * block_steps)
        least = num_envs * block_steps
        self._require("max_staleness", max_staleness, self._num_tokens >= 1, f"be at least {least}")
        self._require("timeout", timeout, timeout > 0, "be positive")
        self._require("autocast", autocast, autocast in (None, "bfloat16"), "be None or 'bfloat16'")
        self.replay = replay
        self.exploration = copy.deepcopy(exploration)
        self.policy = copy.deepcopy(policy).cpu().requires_grad_(False).eval()
        self._make_env, self._seed = make_env, seed
        self._block_steps, self._timeout = block_steps, timeout
        self._greedy, self._autocast, self._compile_policy = greedy, autocast, compile_policy
        self._num_restarts = 0
        self._num_open = [0] * num_workers
        self._workers: _Workers | None = None

    @staticmethod
    def _require(name: str, value: object, holds: bool, condition: str) -> None:
        if not holds:
            raise ValueError(f"AsyncCollector: {name} must {condition}, got {value}")

    def collect(self, num_steps: int) -> Episodes:
        """Appends what the workers bring until they took ``num_steps`` steps more; waits only for what is missing."""
        if self._workers is None:
            self._workers = self._start()
        brought: list[Episodes] = []
        while sum(episodes.num_steps for episodes in brought) < num_steps:
            message = self._receive(self._workers)
            trajectories = message.trajectories
            if trajectories is not None:
                self.replay.extend(trajectories)
            self._num_open[message.worker] = message.num_open
            brought.append(message.episodes)
        episodes = _merged(brought)
        if self.exploration is not None:
            self.exploration.step(episodes.num_steps)
        return episodes

    def _receive(self, workers: "_Workers") -> Message:
        try:
            message = workers.receive(self._timeout)
        except BaseException:
            self.shutdown()
            raise
        if message.error is not None:
            self.shutdown()
            raise RuntimeError(f"AsyncCollector: worker {message.worker} failed\n{message.error}")
        return message

    def _start(self) -> "_Workers":
        parts = encode((self.policy, self.exploration))
        jobs = []
        for worker, num_envs in enumerate(self._rows):
            env_seed, torch_seed = worker_seeds(self._seed, self._num_restarts, worker)
            jobs.append(
                Job(
                    index=worker,
                    make_env=self._make_env,
                    num_envs=num_envs,
                    seed=env_seed,
                    torch_seed=torch_seed,
                    parts=parts,
                    block_steps=self._block_steps,
                    greedy=self._greedy,
                    autocast=self._autocast,
                    compile_policy=self._compile_policy,
                )
            )
        self._num_open = [0] * len(jobs)
        return _Workers(jobs, self.policy, num_tokens=self._num_tokens)

    def max_appended(self, num_steps: int) -> int:
        """The most timesteps that `collect` of ``num_steps`` may append: every step an episode with two of them."""
        return sum(self._num_open) + 2 * (num_steps + max(self._rows) * self._block_steps)

    def update_policy_weights_(self, weights: TensorDictBase) -> None:
        """Writes ``TensorDict.from_module(policy).data`` where every worker finds it at its next block."""
        target = TensorDict.from_module(self.policy).data
        if self._workers is None:
            target.update_(weights)
        else:
            self._workers.write(target, weights)

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
            self._workers.close()
            self._workers = None


def worker_seeds(seed: int, num_restarts: int, worker: int) -> tuple[int, int]:
    """The seeds of a worker's environment and of its other random numbers, in the run's n-th session."""
    first, second = np.random.SeedSequence([seed, num_restarts, worker]).generate_state(2)
    return int(first) >> 1, int(second) >> 1


class _Workers:
    """The processes and what they share.

    Args:
        jobs: One per process.
        policy: Its tensors are moved to shared memory.
        num_tokens: Blocks that a worker may be ahead.
    """

    def __init__(self, jobs: list[Job], policy: InContextPolicy, *, num_tokens: int) -> None:
        context = multiprocessing.get_context("spawn")
        weights = {name: value.share_memory_() for name, value in policy.share_memory().state_dict().items()}
        self.channel = Channel(
            weights=weights,
            lock=context.Lock(),
            version=context.Value("q", 0),
            num_steps=context.Value("q", 0),
            stop=context.Event(),
            results=context.Queue(),
        )
        self.tokens = [context.Semaphore(num_tokens) for _ in jobs]
        # No daemons, for environments may have processes of their own; so they are told when this one ends.
        self.processes = [
            context.Process(target=work, args=(job, self.channel, tokens), name=f"collector-{job.index}")
            for job, tokens in zip(jobs, self.tokens, strict=True)
        ]
        self._end = Finalize(self, _end, args=(self.channel, self.tokens, self.processes), exitpriority=10)
        for process in self.processes:
            process.start()

    def receive(self, timeout: float) -> Message:
        """The next message; its sender may begin another block."""
        waited = 0.0
        while True:
            dead = [process for process in self.processes if not process.is_alive()]
            try:
                message: Message = decode(self.channel.results.get(timeout=_PATIENCE))
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
            if dead and message.error is None:
                continue  # nobody goes on, but the dead one may have said why
            self.tokens[message.worker].release()
            return message

    def write(self, target: TensorDictBase, weights: TensorDictBase) -> None:
        """Changes the shared weights while no worker reads them."""
        if not self.channel.lock.acquire(timeout=60.0):
            raise RuntimeError("AsyncCollector: a worker must have died while it read weights, got no lock")
        try:
            target.update_(weights)
            self.channel.version.value += 1
        finally:
            self.channel.lock.release()

    def close(self) -> None:
        """Ends all processes."""
        self._end()


def _end(channel: Channel, tokens: list[Any], processes: list[Any]) -> None:
    channel.stop.set()
    for semaphore in tokens:
        semaphore.release()
    for process in processes:
        if process.pid is None:
            continue
        process.join(timeout=10.0)
        if process.is_alive():
            process.terminate()
            process.join()
    channel.results.close()
    channel.results.cancel_join_thread()


def _merged(brought: list[Episodes]) -> Episodes:
    success = [episodes.success for episodes in brought]
    return Episodes(
        num_steps=sum(episodes.num_steps for episodes in brought),
        returns=torch.cat([episodes.returns for episodes in brought]),
        lengths=torch.cat([episodes.lengths for episodes in brought]),
        success=None if None in success else torch.cat([s for s in success if s is not None]),
        num_aborted=sum(episodes.num_aborted for episodes in brought),
    )
