"""Games of users, as the files that they write."""

RECALL = """
import jax
import jax.numpy as jnp


class Recall:
    num_actions = 3

    def reset_env(self, key, params):
        cue = jax.random.randint(key, (), 0, 3)
        return jax.nn.one_hot(cue, 3), {"cue": cue, "time": 0, "key": key}

    def step_env(self, key, state, action, params):
        time, won = state["time"] + 1, (action == state["cue"]) & (state["time"] == 3)
        seen = jax.random.uniform(state["key"], (3,)) + jax.random.uniform(key, (3,))
        return seen, {**state, "time": time}, 1.0 * won, time == 4, {"success": won}
"""
"""A game of ten lines with a key in its state and no truncation."""

CATCH = '''
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Box:
    def __init__(self, low, high, shape, dtype=np.float32):
        self.low, self.high, self.shape, self.dtype = low, high, shape, dtype


class State(NamedTuple):
    place: jax.Array
    time: jax.Array


class Params(NamedTuple):
    wind: float = 0.0
    max_steps_in_episode: int = 6


class Catch:
    """Continuous actions, a dictionary with a picture and a flag, and truncation."""

    default_params = Params()

    def __init__(self, width=9):
        self.width = width

    def action_space(self, params):
        return Box(-2.0, 3.0, (2, 1))

    def sample_task(self, key):
        return {"wind": jax.random.randint(key, (), 0, 16) / 4.0}

    def observe(self, state):
        cells = jnp.arange(self.width * self.width).reshape(self.width, self.width, 1)
        picture = jnp.where(cells == state.time, 255, 0).astype(jnp.uint8)
        numbers = {"place": state.place, "time": state.time}
        return {"picture": jnp.tile(picture, 3), "late": state.time > 3, "numbers": numbers}

    def reset_env(self, key, params):
        state = State(jax.random.uniform(key, (2,)), jnp.int32(0))
        return self.observe(state), state

    def step_env(self, key, state, action, params):
        noise = jax.random.normal(key, (2,)) / 10
        state = State(state.place + action[:, 0] + params.wind + noise, state.time + 1)
        return self.observe(state), state, -abs(state.place).sum(), state.time > 20, {}

    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode
'''
