"""Environments that fail on demand, in a module that worker processes can import."""

import os
import random
import signal
import sys
import time

import gymnasium
import numpy as np
from gymnasium import spaces

FINE, END, CUT, RAISE, NAN, ENDLESS, SHAPE, KILL, EXIT, HANG = range(10)


class Walk(gymnasium.Env):
    """A random walk drawn from the seed; the action says what happens.

    Observation ``[4]``: the walk, steps taken, the action on the way, a number of the task. The
    reward is the walk.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        *,
        good_resets=None,
        bad_reset=FINE,
        noise=False,
        render_mode="rgb_array",
        slow=0.0,
        num_actions=10,
    ):
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = spaces.Discrete(num_actions)
        self.render_mode = render_mode
        self._good_resets, self._noise, self._slow = good_resets, noise, slow
        self._bad_reset = bad_reset

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self._good_resets is not None and not self._good_resets(seed):
            _end_process(self._bad_reset)
            raise ValueError(f"no reset with seed {seed}")
        self.state = np.array([0.0, 0.0, -1.0, self.np_random.random()], np.float32)
        return self.state.copy(), {}

    def step(self, action):
        if self._slow:
            time.sleep(self._slow)
        drift = random.random() if self._noise else 0.0
        self.state += np.array([self.np_random.normal() + drift, 1.0, 0.0, 0.0], np.float32)
        self.state[2] = action
        seen, reward = self.state.copy(), float(self.state[0])
        if action == RAISE:
            raise ZeroDivisionError("broken on purpose")
        if action == NAN:
            seen[1] = np.nan
        if action == ENDLESS:
            reward = np.inf
        if action == SHAPE:
            seen = seen[:3]
        _end_process(action)
        return seen, reward, bool(action == END), bool(action == CUT), {"success": action == END}

    def render(self):
        return np.full((2, 3, 3), int(self.state[1]), np.uint8)


def _end_process(how):
    if how == KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == EXIT:
        os._exit(3)
    if how == HANG:
        time.sleep(1000)


def is_even(seed):
    return seed % 2 == 0


def never(seed):
    return False


def make_unimportable():
    raise ModuleNotFoundError("No module named 'nothing'")


class Echo(gymnasium.Env):
    """Returns values of an observation space, drawn with the seed, and remembers the actions."""

    def __init__(self, observation_space, action_space=None):
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(2) if action_space is None else action_space
        self.seen, self.done = [], []

    def _look(self):
        self.seen.append(self.observation_space.sample())
        return self.seen[-1]

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return self._look(), {}

    def step(self, action):
        self.done.append(action)
        return self._look(), 0.0, False, False, {}


class Modules(gymnasium.Env):
    """Tells whether torch was imported into its process."""

    observation_space = spaces.Box(0, 1, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.array([float("torch" in sys.modules)], np.float32), {}
