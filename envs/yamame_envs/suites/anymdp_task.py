"""AnyMDP: random Markov decision processes, one per task, to be explored by trial.

Tasks are those of the package xenoverse: transitions, rewards and their noise are tables, drawn so
that a good policy is far from a random one. Its environment draws from NumPy's global generator,
which it seeds by the clock; the same tables are played here with a generator of the env's own,
number for number.
"""

import hashlib
from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from yamame_envs.adapters.extras import import_extra
from yamame_envs.suites.global_random import GlobalRandom

Task = dict[str, Any]


def _sampler() -> Any:
    return import_extra("xenoverse.anymdp", extra="anymdp", owner="AnyMDP").AnyMDPTaskSampler


# Shared by the envs of a process: drawing a task takes far longer than playing it.
@lru_cache(maxsize=4096)
def _drawn(num_states: int, num_actions: int, seed: int) -> Task:
    # The sampler seeds NumPy's global generator.
    with GlobalRandom(seed):
        task: Task = _sampler()(num_states, num_actions, seed=seed)
    return task


class AnyMDPTask(gymnasium.Env[np.int64, np.int64]):
    """Markov decision process whose tables are the task.

    An episode ends in a terminal state of the task, or at the step limit of the task.

    Args:
        num_states: Number of states, all of which are observed, at least 8.
        num_actions: Number of actions, at least 2.
        num_tasks: Number of tasks; None: one for each seed.

    Raises:
        ImportError: Xenoverse is not installed.
    """

    def __init__(
        self, *, num_states: int = 16, num_actions: int = 5, num_tasks: int | None = None
    ) -> None:
        _sampler()
        self._sizes, self._num_tasks = (num_states, num_actions), num_tasks
        self.observation_space = spaces.Discrete(num_states)
        self.action_space = spaces.Discrete(num_actions)

    def sample_task(self, seed: int) -> Task:
        """Draw a task."""
        return _drawn(*self._sizes, seed if self._num_tasks is None else seed % self._num_tasks)

    def task_hash(self, task: Task) -> int:
        """Return an integer that equal tasks share."""
        tables = b"".join(
            np.asarray(task[name]).tobytes() for name in ("state_mapping", "transition", "reward")
        )
        return int.from_bytes(hashlib.blake2b(tables, digest_size=8).digest(), "little")

    def set_task(self, task: Task) -> None:
        """Play this task from the next reset on."""
        self.task = task

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Begin an attempt at the current task."""
        super().reset(seed=seed)
        self._stream = np.random.RandomState(seed)
        self._steps = 0
        self.state = self._stream.choice(self.task["s_0"], p=self.task["s_0_prob"])
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Step the environment."""
        task, before = self.task, (self.state, int(action))
        self.state = self._stream.choice(len(task["transition"]), p=task["transition"][before])
        self._steps += 1
        reward = self._stream.normal(
            task["reward"][before][self.state], task["reward_noise"][before][self.state]
        )
        return (
            self._seen(),
            float(reward),
            self.state in task["s_e"],
            self._steps >= task["max_steps"],
            {},
        )

    def _seen(self) -> np.int64:
        return np.int64(self.task["state_mapping"][self.state])
