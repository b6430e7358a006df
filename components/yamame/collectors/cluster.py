"""Acting beside learning, on one machine or many, with Ray actors.

Every actor has envs, a policy and unfinished episodes of its own and returns whole trajectories.
The learner requests blocks of steps, receives the results and is the only one that writes to
replay, so nothing is stored twice. The weights that play a step depend on the load, so results are
not reproducible; those of `SyncCollector` are.
"""

import copy
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import ceil
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from yamame.checks import (
    ArgumentError,
    PositiveFloat,
    PositiveInt,
    UsageError,
    check_bounds,
    require,
    require_at_least,
)
from yamame.collectors.base import Episodes, Replay
from yamame.collectors.entries import lacking
from yamame.collectors.throughput import Throughput
from yamame.collectors.worker import BlockResult, RolloutWorker, WorkerConfig, pack, unpack
from yamame.execution.precision import Precision, check_precision
from yamame.system.messages import OutsideError, described, one_line, print_stderr
from yamame.system.signals import blocked, received, restoring_handlers

_POLL_INTERVAL = 1.0
"""Seconds between two checks for a signal while the learner waits for a block."""
_CLOSING = 5.0
"""Seconds that actors have to finish a block and to close their environments."""
_MOST_DEATHS = 3
"""Times that one actor may die without a result from any before the run ends.

It is counted for each, because all actors of a machine die with it.
"""
_RESOURCES = ("num_cpus", "num_gpus", "memory", "resources", "accelerator_type")
_ENVIRONMENT = {
    # Ray's handler aborts this process at SIGTERM.
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Errors of blocks whose result is no longer used.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    # The default of later versions, without a warning.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass
class _Actor:
    """An actor that is playing."""

    handle: Any
    num_open_episodes: int = 0  # at its last result
    num_open_steps: int = 0


class RayCollector:
    """Collects with Ray actors that keep acting while the learner learns.

    Ray is started, or joined, at once, and the actors begin at the first `collect`. At most
    ``max_staleness`` steps are requested and not yet collected, divided evenly. Every block is
    played with the weights that were the newest when it was requested, so the weights of an actor
    that is half as fast as the others are twice as old. Trajectories are those of `SyncCollector`.
    After a signal (`yamame.system.signals`), `collect` returns the episodes so far.

    The death of an actor or of its machine costs its unfinished episodes, which
    `Episodes.num_aborted` counts, and the blocks that were requested from it. Another actor
    replaces it, with new seeds. An error in an actor ends the collector.

    A restored collector continues with the saved weights and exploration schedule, but its actors
    begin new episodes, of tasks that were not used before the state was saved.

    Args:
        make_env: ``(num_envs=..., seed=...) -> environment`` with batch size ``[num_envs]``, which
            emits ``is_init``. It is pickled; actors find modules on the same paths as this
            process.
        policy: As for `SyncCollector`; copied, and pickled.
        replay: Receives finished trajectories ``[E, L]`` through its ``extend``, in this process.
        num_envs: Number of envs of all actors together, divided evenly.
        seed: Seed of the run. The seeds of an actor also depend on its number, on how often it was
            replaced and on how often the run was resumed.
        exploration: As for `SyncCollector`; copied into every actor, where its ``step`` counts the
            steps of all.
        num_workers: Number of actors, at most ``num_envs``.
        block_steps: Steps of every env in a block.
        max_staleness: Largest number of environment steps, over all envs, that are requested and
            not yet collected.
        address: Address of the Ray cluster to join, such as ``auto`` for the one of this machine.
            None: Ray is started on this machine, unless it runs in this process already, and ended
            with the collector.
        resources: Resources that Ray reserves for an actor: ``num_cpus``, ``num_gpus``, ``memory``,
            ``accelerator_type``, ``resources``.
        timeout: Seconds without any result after which the actors are considered stuck.
        greedy, autocast: As for `yamame.collectors.SyncCollector`.

    Raises:
        UsageError: Ray is not installed.
        OutsideError: Ray does not start, twice.
        ArgumentError: A number is out of its range, ``autocast`` or a name in ``resources`` is
            unknown, or no cluster answers at ``address``.
        OutsideError: At `collect`, an actor failed, all are stuck, or one dies a fourth time before
            any has answered; all are ended. A `UserCodeError` if user code raised the error.
    """

    @check_bounds
    def __init__(
        self,
        make_env: Callable[..., EnvBase],
        policy: TensorDictModuleBase,
        replay: Replay,
        *,
        num_envs: int,
        seed: int,
        exploration: TensorDictModuleBase | None = None,
        num_workers: PositiveInt = 1,
        block_steps: PositiveInt = 16,
        max_staleness: PositiveInt = 1024,
        address: str | None = None,
        resources: Mapping[str, Any] | None = None,
        timeout: PositiveFloat = 300.0,
        greedy: bool = False,
        autocast: Precision = None,
    ) -> None:
        owner = type(self).__name__
        has_envs = num_workers <= num_envs
        require(owner, "num_workers", num_workers, has_envs, f"be at most num_envs={num_envs}")
        # One block of every actor.
        require_at_least(owner, num_envs * block_steps, max_staleness=max_staleness)
        self._resources = _checked_resources(owner, resources)
        # The device of an actor with a GPU is not known here.
        device = None if self._resources.get("num_gpus") else torch.device("cpu")
        check_precision(owner, autocast, device)
        self._ray = import_ray(owner)
        self.replay = replay
        self.policy = copy.deepcopy(policy).cpu().requires_grad_(False).eval()
        self.exploration = copy.deepcopy(exploration)
        self._make_env = make_env
        self._seed = seed
        self._block_steps = block_steps
        self._timeout = timeout
        self._address = address
        self._acting = {"greedy": greedy, "autocast": autocast}
        # Envs of each actor; the first ones take the remainder.
        self._num_envs = [num_envs // num_workers] * num_workers
        for index in range(num_envs % num_workers):
            self._num_envs[index] += 1
        self._blocks_per_actor = max_staleness // (num_envs * block_steps)
        self._num_restarts = 0
        self._num_spawned = [0] * num_workers
        self._lost = Counter(actors=0, blocks=0, episodes=0, steps=0)
        self._reset()
        # Now, before anything of a run is written that would not begin.
        self._join()

    def _reset(self) -> None:
        """Set the state of a collector without actors."""
        self._actors: list[_Actor] = []
        # The actor of every block that is not yet collected, oldest first.
        self._requested: dict[Any, int] = {}
        self._version = 0
        self._num_steps = 0
        # Deaths of every actor since the last result from any.
        self._num_deaths: Counter[int] = Counter()
        self._last_death = "no actor died"
        self._owns_ray = False
        self.throughput = Throughput(len(self._num_envs))

    def collect(self, num_steps: int) -> Episodes:
        """Store the trajectories of at least ``num_steps`` more steps; wait if some are missing."""
        begin = time.monotonic()
        collected = [Episodes.none()]
        missing = num_steps
        num_lost_episodes = 0
        try:
            if not self._actors:
                self._start()
            while missing > 0 and received() is None:
                block = self._wait()
                if block is None:
                    continue
                index = self._requested.pop(block)
                result = self._result(block, index)
                if result is None:
                    num_lost_episodes += self._replace(index)
                    continue
                self._take(index, result)
                collected.append(result.episodes)
                missing -= result.episodes.num_steps
                self._request(index)
        except BaseException:
            # Actors would outlive this process.
            self.shutdown()
            raise
        episodes = Episodes.merged(collected)
        if self.exploration is not None:
            self.exploration.step(episodes.num_steps)
        self.throughput.add_collecting(time.monotonic() - begin)
        return replace(episodes, num_aborted=episodes.num_aborted + num_lost_episodes)

    def _wait(self) -> Any:
        """Return a block that is finished or whose actor is gone; None after a signal."""
        begin = time.monotonic()
        ready: list[Any] = []
        while not ready and received() is None:
            ready, _ = self._ray.wait(list(self._requested), timeout=_POLL_INTERVAL)
            if not ready and time.monotonic() - begin >= self._timeout:
                raise OutsideError(
                    "RayCollector: timeout must allow for one block and the start of actors, got "
                    f"no answer in {self._timeout} s; every actor needs {self._resources}, the "
                    f"cluster has {self._ray.cluster_resources()}; {self._last_death}"
                )
        self.throughput.add_waiting(time.monotonic() - begin)
        return ready[0] if ready else None

    def _result(self, block: Any, index: int) -> BlockResult | None:
        """Return the result of a block, None if its actor is gone."""
        try:
            result: BlockResult = self._ray.get(block)
        except self._ray.exceptions.RayTaskError as error:
            from yamame.system.user_code import UserCodeError

            what = f"RayCollector: actor {index} failed"
            cause = getattr(error, "cause", None)
            if isinstance(cause, UserCodeError):
                failure = UserCodeError(f"{what}: {cause.what}", *cause.args[1:])
                raise failure from error
            reason = one_line(error if cause is None else cause)
            raise OutsideError(f"{what}: {reason}") from error
        except self._ray.exceptions.RayError as error:
            self._num_deaths[index] += 1
            self._last_death = f"the last death: {one_line(error, longest=1000)}"
            print_stderr(f"RayCollector: actor {index} is replaced: {one_line(error)}")
            if self._num_deaths[index] > _MOST_DEATHS:
                raise OutsideError(
                    f"RayCollector: actors must live, actor {index} died "
                    f"{self._num_deaths[index]} times without an answer from any; "
                    f"{self._last_death}"
                ) from error
            return None
        self._num_deaths.clear()
        return result

    def _take(self, index: int, result: BlockResult) -> None:
        """Store the trajectories of a block, and count it."""
        if result.trajectories is not None:
            trajectories = unpack(result.trajectories)
            self.replay.extend(trajectories.exclude(*lacking(self.replay)))
        actor = self._actors[index]
        actor.num_open_episodes = result.num_open_episodes
        actor.num_open_steps = result.num_open_steps
        num_steps = result.episodes.num_steps
        self._num_steps += num_steps
        self.throughput.add_block(index, num_steps, self._version - result.version)

    def _replace(self, index: int) -> int:
        """Replace an actor that is gone; return the number of unfinished episodes it had."""
        lost_blocks = [block for block, owner in self._requested.items() if owner == index]
        for block in lost_blocks:
            del self._requested[block]
        former = self._actors[index]
        self._lost["actors"] += 1
        self._lost["blocks"] += len(lost_blocks) + 1
        self._lost["episodes"] += former.num_open_episodes
        self._lost["steps"] += former.num_open_steps
        self._ray.kill(former.handle)
        self._actors[index] = self._spawn(index)
        for _ in range(self._blocks_per_actor):
            self._request(index)
        return former.num_open_episodes

    def _join(self) -> None:
        """Start Ray on this machine, or join the cluster of ``address``.

        Raises:
            ArgumentError: No cluster answers at ``address``, or the process has joined a different
                one.
            OutsideError: Ray does not start, twice.
        """
        owner = type(self).__name__
        condition = "be that of a Ray cluster"
        if self._ray.is_initialized():
            if self._owns_ray:
                return
            joined = self._ray.get_runtime_context().gcs_address
            # Only host:port can be compared; ray://host:port and names such as auto cannot.
            is_host_and_port = self._address is not None and self._address.count(":") == 1
            if is_host_and_port and self._address != joined:
                remedy = f"this process has joined {joined}"
                raise ArgumentError(owner, "address", self._address, condition, remedy=remedy)
            return

        options: dict[str, Any] = {"address": self._address}
        if self._address is None:
            num_cpus = ceil(len(self._num_envs) * self._resources["num_cpus"])
            options = {"address": "local", "num_cpus": max(1, num_cpus), "include_dashboard": False}
        try:
            self._init(options)
        except ConnectionError as error:
            failure = ArgumentError(
                owner, "address", self._address, condition, remedy=one_line(error)
            )
            raise failure from error
        except Exception as error:  # Ray raises many kinds, such as one for a slow machine
            raise OutsideError(
                f"{owner}: Ray does not start, also the second time: {described(error)}; it takes "
                "longest where other processes use all cores"
            ) from error
        self._owns_ray = True

    def _init(self, options: Mapping[str, Any]) -> None:
        """Start or join Ray; once more if it fails for another reason than the address."""
        for is_last in (False, True):
            try:
                # Ray's processes inherit blocked signals: the learner shuts its actors down.
                with blocked(), restoring_handlers():
                    self._ray.init(log_to_driver=False, logging_level="error", **options)
                return
            except ConnectionError:
                raise
            except Exception as error:
                # Processes that have started would be in the way of the next ones.
                self._ray.shutdown()
                if is_last:
                    raise
                print_stderr(f"RayCollector: Ray does not start, once more: {described(error)}")

    def _start(self) -> None:
        """Start all actors and request the first blocks."""
        self._join()
        self._publish()
        self._modules = self._ray.put((self.policy, self.exploration))
        indices = range(len(self._num_envs))
        self._actors = [self._spawn(index) for index in indices]
        for _ in range(self._blocks_per_actor):
            for index in indices:
                self._request(index)

    def _spawn(self, index: int) -> _Actor:
        """Start an actor."""
        seed, torch_seed = actor_seeds(
            self._seed, self._num_restarts, index, self._num_spawned[index]
        )
        self._num_spawned[index] += 1
        config = WorkerConfig(
            make_env=self._make_env,
            num_envs=self._num_envs[index],
            seed=seed,
            torch_seed=torch_seed,
            acting=self._acting,
        )
        # Relative entries would be resolved in the folder of the actor's process.
        path = os.pathsep.join(os.path.abspath(place) for place in sys.path)
        worker = self._ray.remote(RolloutWorker).options(
            # A restarted actor would play with former seeds: the collector replaces it instead.
            max_restarts=0,
            max_task_retries=0,
            # By default Ray fills the learner's machine to one half first.
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {"PYTHONPATH": path}},
            **self._resources,
        )
        return _Actor(worker.remote(config, self._modules))

    def _request(self, index: int) -> None:
        """Request a block from an actor."""
        num_steps = self._block_steps * self._num_envs[index]
        spent = getattr(self.exploration, "spent", None)
        block = self._actors[index].handle.play.remote(
            num_steps,
            self._version,
            [self._weights],
            self._num_steps,
            None if spent is None else float(spent),
        )
        self._requested[block] = index

    def metrics(self) -> dict[str, float]:
        """Return metrics of the actors.

        ``unfinished_steps``: steps of episodes that have not ended. ``open_blocks``: blocks that
        are requested and not yet collected. ``lost_*``: actors that died, blocks that were
        requested from them, their unfinished episodes, and the steps of these that had been
        collected. Others: `Throughput.metrics`.
        """
        unfinished_steps = sum(actor.num_open_steps for actor in self._actors)
        figures = {
            "unfinished_steps": float(unfinished_steps),
            "open_blocks": float(len(self._requested)),
        }
        for name, number in self._lost.items():
            figures[f"lost_{name}"] = float(number)
        return figures | self.throughput.metrics()

    def update_policy_weights_(self, weights: TensorDictBase) -> None:
        """Use ``TensorDict.from_module(policy).data`` for all blocks that are requested later."""
        TensorDict.from_module(self.policy).data.update_(weights)
        if self._actors:
            self._version += 1
            self._publish()

    def _publish(self) -> None:
        """Make the present weights available to actors."""
        self._weights = self._ray.put(pack(TensorDict.from_module(self.policy).data))

    def state_dict(self) -> dict[str, Any]:
        """Return weights, exploration and the number of restarts; unfinished episodes are lost."""
        # Copies, because updates change the tensors of the policy in place.
        policy = {name: value.clone() for name, value in self.policy.state_dict().items()}
        return {
            "policy": policy,
            "exploration": None if self.exploration is None else self.exploration.state_dict(),
            "num_restarts": self._num_restarts,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`. Actors begin anew, with seeds not used before."""
        if self._actors:
            self.shutdown()
        self.policy.load_state_dict(state["policy"])
        if self.exploration is not None:
            self.exploration.load_state_dict(state["exploration"])
        self._num_restarts = state["num_restarts"] + 1

    def shutdown(self) -> None:
        """End the actors; a later `collect` starts new ones.

        Actors that do not close their environments in time are killed.
        """
        for block in self._requested:
            self._ray.cancel(block)
        closed = [actor.handle.close.remote() for actor in self._actors]
        if closed:
            self._ray.wait(closed, num_returns=len(closed), timeout=_CLOSING)
        for actor in self._actors:
            self._ray.kill(actor.handle)
        if self._owns_ray:
            self._ray.shutdown()
        self._reset()


def _checked_resources(owner: str, resources: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the resources of an actor, with the default, after a check."""
    reserved = {"num_cpus": 1, **(resources or {})}
    are_known = reserved.keys() <= set(_RESOURCES)
    names = ", ".join(_RESOURCES)
    require(owner, "resources", reserved, are_known, f"have no keys but {names}")
    for name in ("num_cpus", "num_gpus"):
        amount = reserved.get(name, 0)
        is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
        is_amount = is_number and amount >= 0
        require(owner, f"resources.{name}", amount, is_amount, "be a number, at least 0")
    return reserved


def actor_seeds(seed: int, num_restarts: int, actor: int, num_before: int) -> tuple[int, int]:
    """Return the seeds of an actor's environment and of its other random numbers.

    Args:
        seed: Seed of the run.
        num_restarts: Number of times that the run was resumed.
        actor: Number of the actor.
        num_before: Actors with this number that were started before.
    """
    sequence = np.random.SeedSequence([seed, num_restarts, actor, num_before])
    first, second = sequence.generate_state(2)
    # 31 bits, so that they are not negative as 32-bit integers.
    return int(first) >> 1, int(second) >> 1


def import_ray(owner: str) -> Any:
    """Import Ray so that it leaves signals to this process.

    Raises:
        UsageError: It is not installed.
    """
    if find_spec("ray") is None:
        remedy = "run: pip install 'yamame[ray]'"
        raise UsageError(f"{owner}: the package ray must be installed", remedy=remedy)
    # Ray reads the environment when it is imported.
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    return ray
