"""Environments as people write them for Gymnasium: goals in dictionaries, success in the info,
tasks of their own.
"""

import gymnasium
import numpy as np
from gymnasium import spaces


class PointReach(gymnasium.Env):
    """A point in the plane is to be moved to a goal; the reward is sparse, and the episode goes on
    behind it.
    """

    distance_threshold = 0.1

    def __init__(self, *, sparse=True, told=True):
        place = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.observation_space = spaces.Dict(
            {"observation": place, "achieved_goal": place, "desired_goal": place}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.sparse = sparse
        if not told:
            self.distance_threshold = None

    def compute_reward(self, achieved_goal, desired_goal, info):
        distance = np.linalg.norm(np.asarray(achieved_goal) - desired_goal, axis=-1)
        return -(distance > 0.1).astype(np.float64) if self.sparse else -distance

    def _look(self):
        return {
            "observation": self.place.copy(),
            "achieved_goal": self.place.copy(),
            "desired_goal": self.goal.copy(),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = np.zeros(2)
        self.goal = self.np_random.uniform(-1.0, 1.0, 2)
        return self._look(), {}

    def step(self, action):
        self.place = np.clip(self.place + 0.15 * np.asarray(action, np.float64), -1.0, 1.0)
        reward = float(self.compute_reward(self.place, self.goal, {}))
        return self._look(), reward, False, False, {"is_success": reward == 0.0}


class PaidByInfo(PointReach):
    """The reward depends on more than the goals."""

    def compute_reward(self, achieved_goal, desired_goal, info):
        return super().compute_reward(achieved_goal, desired_goal, info) + info["bonus"]


class Slot(gymnasium.Env):
    """A lever pays what its task says, with noise that the task does not say; success from the
    third step on.
    """

    def __init__(self, *, takes="options", key="success"):
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.takes, self.key, self.task = takes, key, None
        if takes == "set_task":
            self.set_task = self._set_task

    def sample_task(self, seed):
        return float(np.random.default_rng(seed).uniform(-1.0, 1.0))

    def _set_task(self, task):
        self.task = task

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.takes == "options" and options is not None:
            self.task = options["task"]
        self.t = 0
        return np.array([self.task or 0.0], np.float32), {}

    def step(self, action):
        self.t += 1
        noise = float(self.np_random.normal())
        told = {self.key: self.t >= 3}
        return np.array([noise], np.float32), (self.task or 0.0) + noise, False, self.t >= 4, told


class Numbered(gymnasium.Env):
    """A task is a number below five, which is seen and paid."""

    observation_space = spaces.Box(0.0, 5.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def sample_task(self, seed):
        return int(np.random.default_rng(seed).integers(5))

    def task_hash(self, task):
        return task

    def set_task(self, task):
        self.task = task

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([self.task], np.float32), {}

    def step(self, action):
        return np.array([self.task], np.float32), float(self.task), True, False, {}


if "own/Slot-v0" not in gymnasium.registry:  # who collects tests may import this under another name
    gymnasium.register("own/Numbered-v0", Numbered)
    gymnasium.register("own/PointReach-v0", PointReach, max_episode_steps=20)
    gymnasium.register("own/Slot-v0", Slot)
