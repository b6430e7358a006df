"""An environment whose observations leave their space, in a module that worker processes import."""

from functools import partial

import gymnasium
import numpy as np
from gymnasium import spaces


class Straying(gymnasium.Env):
    """Shows the same observation at every step, in its space or not."""

    action_space = spaces.Discrete(2)

    def __init__(self, observation_space, shown):
        self.observation_space, self.shown = observation_space, shown

    @classmethod
    def maker(cls, observation_space, shown):
        """What makes it in any process."""
        if not isinstance(shown, dict):
            shown = np.asarray(shown, observation_space.dtype)
        return partial(cls, observation_space, shown)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.shown, {}

    def step(self, action):
        return self.shown, 0.0, False, False, {}
