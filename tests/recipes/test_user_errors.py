"""Errors of user code: the screen has the part, the error and the line of the user's file that raised
it, whatever the type of the error and wherever it is raised.
"""

import importlib
import json
import sys
from pathlib import Path

import gymnasium
import pytest

PARTS = '''
import gymnasium
import numpy as np
import yamame
from gymnasium import spaces
from torch.optim import AdamW
from yamame.data import npz
from yamame.losses import MultiGammaREDQLoss
from yamame.timestep import MLPTimestepEncoder
from yamame.trajectory import GRUEncoder
from yamame.transforms import ContextTransform


class OwnError(Exception):
    """An error of a user's own type."""


TYPES = [
    ValueError,
    TypeError,
    ImportError,
    KeyError,
    AssertionError,
    AttributeError,
    RuntimeError,
    OSError,
    FloatingPointError,
    ZeroDivisionError,
    NotImplementedError,
    StopIteration,
    gymnasium.error.Error,
    OwnError,
]
FAULT = None
ERROR = None


class Board(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"]}
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None, level=1):
        self.render_mode = render_mode
        self.observation = np.zeros(3, np.float32)
        if FAULT == "Board.__init__":
            raise ERROR  # Board.__init__

    @property
    def observation_space(self):
        if FAULT == "Board.observation_space":
            raise ERROR  # Board.observation_space
        return spaces.Box(-1, 1, (3,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        if FAULT == "Board.reset":
            raise ERROR  # Board.reset
        return self.observation, {}

    def step(self, action):
        self.steps += 1
        if FAULT == "Board.step" and self.steps == 2:
            raise ERROR  # Board.step
        return self.observation, 1.0, self.steps == 4, False, {}

    def sample_task(self, seed):
        if FAULT == "Board.sample_task":
            raise ERROR  # Board.sample_task
        return seed

    def render(self):
        if FAULT == "Board.render":
            raise ERROR  # Board.render
        return np.zeros((4, 4, 3), np.uint8)

    def close(self):
        if FAULT == "Board.close":
            raise ERROR  # Board.close


class Encoder(GRUEncoder):
    def __init__(self, in_features, **settings):
        super().__init__(in_features, **settings)
        if FAULT == "Encoder.__init__":
            raise ERROR  # Encoder.__init__

    def forward(self, *args, **kwargs):
        if FAULT == "Encoder.forward":
            raise ERROR  # Encoder.forward
        return super().forward(*args, **kwargs)


class Loss(MultiGammaREDQLoss):
    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        if FAULT == "Loss.__init__":
            raise ERROR  # Loss.__init__

    def forward(self, batch):
        if FAULT == "Loss.forward":
            raise ERROR  # Loss.forward
        return super().forward(batch)


class Optimizer(AdamW):
    def __init__(self, params, **settings):
        if FAULT == "Optimizer.__init__":
            raise ERROR  # Optimizer.__init__
        super().__init__(params, **settings)

    def step(self, closure=None):
        if FAULT == "Optimizer.step":
            raise ERROR  # Optimizer.step
        return super().step(closure)


class Watch(yamame.Callback):
    def __init__(self):
        if FAULT == "Watch.__init__":
            raise ERROR  # Watch.__init__

    def on_collect(self, run, episodes):
        if FAULT == "Watch.on_collect":
            raise ERROR  # Watch.on_collect

    def on_end(self, run):
        if FAULT == "Watch.on_end":
            raise ERROR  # Watch.on_end


class Data:
    def __len__(self):
        return 4

    def sample(self, batch_size):
        if FAULT == "Data.sample":
            raise ERROR  # Data.sample

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def load(format, transform):
    if FAULT == "load":
        raise ERROR  # load
    return Data()


gymnasium.register("Board-v0", Board)
'''
TINY = [
    "debug=tiny",
    "logger=none",
    "run.name=a",
    "trust=[parts.]",
    "env=gym",
    "env.id=parts:Board-v0",
    "env.time_limit=4",
    "encoder=gru",
    "encoder._target_=parts.Encoder",
    "encoder.hidden_size=4",
    "encoder.num_layers=1",
    "encoder.out_features=4",
    "~encoder.max_time_constant",
    "agent.gammas=[0.9]",
    "agent.loss._target_=parts.Loss",
    "optimizer._target_=parts.Optimizer",
    "+callbacks.watch._target_=parts.Watch",
    "schedule.steps_per_iteration=16",
    "evaluation.num_episodes=2",
]
DATA = ["+data.source._target_=parts.load", "schedule.offline_updates=2"]
BEFORE = {
    "Board.__init__": "Gym('parts:Board-v0')",
    "Board.observation_space": "Gym('parts:Board-v0')",
    "Board.close": "Gym('parts:Board-v0')",
    "Encoder.__init__": "encoder (parts.Encoder)",
    "Loss.__init__": "agent.loss (parts.Loss)",
    "Optimizer.__init__": "optimizer (parts.Optimizer)",
    "Watch.__init__": "callbacks.watch (parts.Watch)",
    "load": "data.source (parts.load)",
}
"""Places before a run has begun, and the names of their parts."""
WITHIN = {
    "Board.reset": "Gym('parts:Board-v0')",
    "Board.step": "Gym('parts:Board-v0')",
    "Board.sample_task": "Gym('parts:Board-v0')",
    "Encoder.forward": "encoder (parts.Encoder.forward)",
    "Loss.forward": "agent.loss (parts.Loss.forward)",
    "Optimizer.step": "optimizer (parts.Optimizer.step)",
    "Watch.on_collect": "callbacks.watch (parts.Watch.on_collect)",
    "Data.sample": "parts.Data.sample",
}
"""Places in a run that has begun."""
MESSAGE = "it broke\nin two lines"
