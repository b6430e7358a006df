"""Acting beside learning, on this machine or many: Ray actors play ahead of the learner, by no more
than a bound.

Every actor has envs, a policy and unfinished episodes of its own and answers with whole
trajectories. The learner asks for blocks of steps, takes the answers and alone writes to replay, so
nothing is stored twice. An actor that dies, or whose machine does, is replaced; what it had not
answered is lost. Which weights played which step depends on the load: nothing here is reproducible.
`SyncCollector` is.
"""

import copy
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from math import ceil
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from yamame.checks import UsageError, require, require_at_least
from yamame.collectors.base import Episodes, Replay, lacking
from yamame.collectors.pace import Pace
from yamame.collectors.player import Answer, Job, Player, pack, unpack
from yamame.execution.precision import Precision, check_precision
from yamame.system.messages import one_line, print_stderr
from yamame.system.signals import blocked, received, restoring_handlers

_PATIENCE = 1.0
"""Seconds after which a learner that waits for an answer looks whether it was asked to end."""
_CLOSING = 5.0
"""Seconds that actors have to finish a block and to close their environments."""
_MOST_DEATHS = 3
"""Actors that may die without an answer from any before the run ends."""
_RESOURCES = ("num_cpus", "num_gpus", "memory", "resources", "accelerator_type")
_ENVIRONMENT = {
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # its own aborts this process at SIGTERM
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # of blocks that nobody waits for any more
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the default of later versions, without a warning
}


class RayCollector:
    """Collects with Ray actors that go on acting while the learner learns.

    The actors begin at the first `collect`. At most ``max_staleness`` steps are asked for and not
    yet collected, shared out evenly; every block is played with the weights that were the newest
    when it was asked for. So the weights of an actor that is half as fast as the others are twice
    as old. Trajectories are those of `SyncCollector`. If a signal has asked the process to end
    (`yamame.system.signals`), `collect` returns what there is.

    The death of an actor or of its machine costs its unfinished episodes, which
    `Episodes.num_aborted` counts, and the blocks that it was asked for; another takes its place,
    with new seeds. An error in an actor ends the collector.

    A restored collector goes on with the saved weights and exploration schedule, but its actors
    begin new episodes, of tasks that were not given before the state was saved.

    Args:
        make_env: ``(num_envs=..., seed=...) -> environment`` with batch size ``[num_envs]``, which
            emits ``is_init``. Is pickled; actors find modules where this process does.
        policy: As for `SyncCollector`; copied, and pickled.
        replay: Receives finished trajectories ``[E, L]`` through its ``extend``, in this process.
        num_envs: Envs of all actors together, shared out evenly.
        seed: Every actor's seeds follow from it, from how often the run was resumed, the actor's
            number, and how often that was replaced.
        exploration: As for `SyncCollector`; copied into every actor, where its ``step`` counts the
            steps of all.
        num_workers: Actors, at most ``num_envs``.
        block_steps: Steps of every env between two answers of an actor.
        max_staleness: The most environment steps, over all envs, asked for and not yet collected.
        address: Of the Ray cluster to join, as ``auto`` for that of this machine. None: Ray is
            started on this machine, unless it runs in this process already, and ended with the
            collector.
        resources: What Ray sets aside for an actor: ``num_cpus``, ``num_gpus``, ``memory``,
            ``accelerator_type``, ``resources``.
        timeout: Seconds without any answer after which the actors are taken for stuck.
        greedy, autocast: As for `SyncCollector`.

    Raises:
        UsageError: Ray is not installed.
        ValueError: If a number is out of its range, ``autocast`` or a name in ``resources`` is
            unknown, or no cluster answers at ``address``.
        RuntimeError: At `collect`, if an actor failed, all are stuck, or one after the other dies;
            all are ended.
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
        max_staleness: int = 1024,
        address: str | None = None,
        resources: Mapping[str, Any] | None = None,
        timeout: float = 300.0,
        greedy: bool = False,
        autocast: Precision = None,
    ) -> None:
        owner = type(self).__name__
        require(
            owner, "num_workers", num_workers, 1 <= num_workers <= num_envs, f"be in 1..{num_envs}"
        )
        require_at_least(owner, 1, block_steps=block_steps)
        require_at_least(owner, num_envs * block_steps, max_staleness=max_staleness)
        require(owner, "timeout", timeout, timeout > 0, "be positive")
        self._resources = {"num_cpus": 1, **(resources or {})}
        known = self._resources.keys() <= set(_RESOURCES)
        require(
            owner, "resources", self._resources, known, f"have no keys but {', '.join(_RESOURCES)}"
        )
        for name in ("num_cpus", "num_gpus"):
            amount = self._resources.get(name, 0)
            is_amount = (
                isinstance(amount, int | float) and not isinstance(amount, bool) and amount >= 0
            )
            require(owner, f"resources.{name}", amount, is_amount, "be a number, at least 0")
        check_precision(
            owner, autocast, None if self._resources.get("num_gpus") else torch.device("cpu")
        )
        self._ray = import_ray(owner)
        self.replay = replay
        self.policy = copy.deepcopy(policy).cpu().requires_grad_(False).eval()
        self.exploration = copy.deepcopy(exploration)
        self._make_env, self._seed = make_env, seed
        self._envs = [
            num_envs // num_workers + (w < num_envs % num_workers) for w in range(num_workers)
        ]
        self._block_steps, self._timeout, self._address = block_steps, timeout, address
        self._most_asked = max_staleness // (num_envs * block_steps)  # blocks, of every actor
        self._acting = {"greedy": greedy, "autocast": autocast}
        self._num_restarts = 0
        self._num_begun = [0] * num_workers  # actors, in the place of each
        self._lost = Counter(actors=0, blocks=0, episodes=0, steps=0)
        self._forget()
        if address is not None:
            self._join()  # before anything is written of a run that would not begin

    def _forget(self) -> None:
        """No actor plays."""
        self._actors: list[Any] = []
        self._asked: dict[
            Any, int
        ] = {}  # the actor of every block that is not yet collected, oldest first
        self._open = [(0, 0)] * len(
            self._envs
        )  # unfinished episodes, and their steps, at the last answers
        self._version = self._num_steps = self._deaths = 0
        self._last_death = "no actor died"
        self._owns_ray = False
        self.pace = Pace(len(self._envs))

    def collect(self, num_steps: int) -> Episodes:
        """Appends what the actors answer until they took ``num_steps`` steps more; waits only for
        what is missing.
        """
        begun = time.monotonic()
        brought, num_aborted = [Episodes.none()], 0
        try:
            if not self._actors:
                self._start()
            while (
                sum(episodes.num_steps for episodes in brought) < num_steps and received() is None
            ):
                block = self._wait()
                if block is None:
                    continue
                index = self._asked.pop(block)
                answer = self._answer(block, index)
                if answer is None:
                    num_aborted += self._replace(index)
                else:
                    self._take(index, answer)
                    brought.append(answer.episodes)
                    self._ask(index)
        except BaseException:
            self.shutdown()
            raise
        episodes = Episodes.merged(brought)
        if self.exploration is not None:
            self.exploration.step(episodes.num_steps)
        self.pace.collected(time.monotonic() - begun)
        return replace(episodes, num_aborted=episodes.num_aborted + num_aborted)

    def _wait(self) -> Any:
        """A block that is answered, or whose actor is gone; None if the process is asked to end."""
        begun = time.monotonic()
        ready: list[Any] = []
        while not ready and received() is None:
            ready, _ = self._ray.wait(list(self._asked), timeout=_PATIENCE)
            waited = time.monotonic() - begun
            if not ready and waited >= self._timeout:
                raise RuntimeError(
                    f"RayCollector: timeout must allow for one block and the start of actors, got no answer in "
                    f"{self._timeout} s; every actor needs {self._resources}, the cluster has "
                    f"{self._ray.cluster_resources()}; {self._last_death}"
                )
        self.pace.waited(time.monotonic() - begun)
        return ready[0] if ready else None

    def _answer(self, block: Any, index: int) -> Answer | None:
        """What an actor answered; None if it is gone."""
        try:
            answer: Answer = self._ray.get(block)
        except self._ray.exceptions.RayTaskError as error:
            raise RuntimeError(f"RayCollector: actor {index} failed\n{error}") from None
        except self._ray.exceptions.RayError as error:
            self._deaths += 1
            self._last_death = f"the last death: {one_line(error, longest=1000)}"
            print_stderr(f"RayCollector: actor {index} is replaced: {one_line(error)}")
            if self._deaths > _MOST_DEATHS:
                raise RuntimeError(
                    f"RayCollector: actors must live, {self._deaths} died without an answer from any; "
                    f"{self._last_death}"
                ) from error
            return None
        self._deaths = 0
        return answer

    def _take(self, index: int, answer: Answer) -> None:
        if answer.trajectories is not None:
            self.replay.extend(unpack(answer.trajectories).exclude(*lacking(self.replay)))
        self._open[index] = (answer.open_episodes, answer.open_steps)
        self._num_steps += answer.episodes.num_steps
        self.pace.answered(index, answer.episodes.num_steps, self._version - answer.version)

    def _replace(self, index: int) -> int:
        """Another actor for one that is gone; returns how many unfinished episodes went with it."""
        former = [block for block, owner in self._asked.items() if owner == index]
        for block in former:
            del self._asked[block]
        episodes, steps = self._open[index]
        self._lost.update(actors=1, blocks=len(former) + 1, episodes=episodes, steps=steps)
        self._open[index] = (0, 0)
        self._ray.kill(self._actors[index])
        self._actors[index] = self._spawn(index)
        for _ in range(self._most_asked):
            self._ask(index)
        return episodes

    def _join(self) -> None:
        """Starts Ray on this machine, or joins the cluster of ``address``; raises ValueError if
        none answers there.
        """
        refused = (
            f"{type(self).__name__}: address must be that of a Ray cluster, got {self._address}"
        )
        if self._ray.is_initialized():
            joined = self._ray.get_runtime_context().gcs_address
            if (self._address or "").count(
                ":"
            ) == 1 and self._address != joined:  # and no ray://host:port
                raise ValueError(f"{refused}: this process has joined {joined}")
            return
        options: dict[str, Any] = {"address": self._address}
        if self._address is None:
            num_cpus = ceil(len(self._envs) * self._resources["num_cpus"])
            options = {"address": "local", "num_cpus": max(1, num_cpus), "include_dashboard": False}
        try:
            with (
                blocked(),
                restoring_handlers(),
            ):  # the learner's process is asked to end, and ends Ray's
                self._ray.init(log_to_driver=False, logging_level="error", **options)
        except ConnectionError as error:
            raise ValueError(f"{refused}: {one_line(error)}") from error
        self._owns_ray = True

    def _start(self) -> None:
        self._join()
        self._publish()
        self._parts = self._ray.put((self.policy, self.exploration))
        self._actors = [self._spawn(index) for index in range(len(self._envs))]
        for _ in range(self._most_asked):
            for index in range(len(self._envs)):
                self._ask(index)

    def _spawn(self, index: int) -> Any:
        seeds = actor_seeds(self._seed, self._num_restarts, index, self._num_begun[index])
        self._num_begun[index] += 1
        places = os.pathsep.join(os.path.abspath(place) for place in sys.path)
        actor = self._ray.remote(Player).options(
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": {"PYTHONPATH": places}},
            **self._resources,
        )
        return actor.remote(
            Job(self._make_env, self._envs[index], *seeds, self._acting), self._parts
        )

    def _ask(self, index: int) -> None:
        num_steps = self._block_steps * self._envs[index]
        block = self._actors[index].play.remote(
            num_steps, self._version, [self._weights], self._num_steps
        )
        self._asked[block] = index

    def metrics(self) -> dict[str, float]:
        """What of the actors can be watched.

        ``unfinished_steps``: steps of episodes that have not ended. ``open_blocks``: asked for and
        not yet collected. ``lost_*``: actors that died, blocks that they were asked for, unfinished
        episodes that went with them, and the steps of these that had been collected. Others:
        `Pace.metrics`.
        """
        return {
            "unfinished_steps": float(sum(steps for _, steps in self._open)),
            "open_blocks": float(len(self._asked)),
            **{f"lost_{name}": float(number) for name, number in self._lost.items()},
            **self.pace.metrics(),
        }

    def update_policy_weights_(self, weights: TensorDictBase) -> None:
        """Actors play with ``TensorDict.from_module(policy).data`` from the next block on that is
        asked for.
        """
        TensorDict.from_module(self.policy).data.update_(weights)
        if self._actors:
            self._version += 1
            self._publish()

    def _publish(self) -> None:
        self._weights = self._ray.put(pack(TensorDict.from_module(self.policy).data))

    def state_dict(self) -> dict[str, Any]:
        """Weights, exploration, and how often the run was resumed. Steps that are under way are not
        in it.
        """
        return {
            "policy": {name: value.clone() for name, value in self.policy.state_dict().items()},
            "exploration": None if self.exploration is None else self.exploration.state_dict(),
            "num_restarts": self._num_restarts,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned. Actors begin anew, with seeds that were not used
        before.
        """
        self.shutdown()
        self.policy.load_state_dict(state["policy"])
        if self.exploration is not None:
            self.exploration.load_state_dict(state["exploration"])
        self._num_restarts = state["num_restarts"] + 1

    def shutdown(self) -> None:
        """Ends the actors, which close their environments in time or not; a later `collect` would
        begin others.
        """
        for block in self._asked:
            self._ray.cancel(block)
        closed = [actor.close.remote() for actor in self._actors]
        if closed:
            self._ray.wait(closed, num_returns=len(closed), timeout=_CLOSING)
        for actor in self._actors:
            self._ray.kill(actor)
        if self._owns_ray:
            self._ray.shutdown()
        self._forget()


def actor_seeds(seed: int, num_restarts: int, actor: int, num_before: int) -> tuple[int, int]:
    """The seeds of an actor's environment and of its other random numbers, in the run's n-th
    session.
    """
    first, second = np.random.SeedSequence([seed, num_restarts, actor, num_before]).generate_state(
        2
    )
    return int(first) >> 1, int(second) >> 1


def import_ray(owner: str) -> Any:
    """Ray, which keeps its hands off our signals.

    Raises:
        UsageError: It is not installed.
    """
    if find_spec("ray") is None:
        raise UsageError(
            f"{owner}: the package ray must be installed, run: pip install 'yamame[ray]'"
        )
    for name, value in _ENVIRONMENT.items():  # read when it is imported
        os.environ.setdefault(name, value)
    import ray

    return ray
