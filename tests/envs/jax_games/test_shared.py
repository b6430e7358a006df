"""Games that a process compiles once, and games that differ in something that is hardly seen."""

import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import numpy as np
import pytest
import torch
from yamame_envs import JaxEnv

KIND = """
import jax.numpy as jnp

BONUS = 0.0

class Kind:
    num_actions = 2
    bonus = 0.0

    def __init__(self, value=1):
        self.value = value

    def reset_env(self, key, params):
        return jnp.zeros(1), jnp.int32(0)

    def step_env(self, key, state, action, params):
        value = getattr(self.value, "value", self.value)
        if isinstance(value, (frozenset, list)):
            value = next(iter(value))
        kind = [bool, int, float].index(type(value)) + 1.0
        return jnp.zeros(1), state, kind + self.bonus + BONUS, False, {}
"""


TABLE = """
import jax.numpy as jnp

class Table:
    num_actions, max_steps = 2, 3

    def __init__(self, table):
        self.total = float(jnp.asarray(table).sum())

    def reset_env(self, key, params):
        return jnp.zeros(1), jnp.int32(0)

    def step_env(self, key, state, action, params):
        return jnp.zeros(1), state, self.total, False, {}
"""


def test_settings_that_differ_in_one_number_of_an_array_are_different_games(game):
    game(TABLE)
    table = np.zeros(5000, np.float32)
    other = table.copy()
    other[2500] = 7
    for settings, total in (({"table": table}, 0.0), ({"table": other}, 7.0)):
        env = JaxEnv(id="mylab:Table", settings=settings)
        step = env.step(env.reset().set("action", torch.zeros(1, dtype=torch.int64)))
        assert step["next", "reward"].item() == total


@dataclass(frozen=True)
class Value:
    value: object


def first_reward(**options):
    env = JaxEnv(**options)
    step = env.step(env.reset().set("action", torch.zeros(1, dtype=torch.int64)))
    return step["next", "reward"].item()


def test_settings_that_compare_equal_and_are_different_are_different_games(game):
    game(KIND)
    kinds = [True, 1, 1.0]
    expected = [1.0, 2.0, 3.0]
    for wrap in (lambda value: value, Value, lambda value: frozenset({value})):
        rewards = [
            first_reward(id="mylab:Kind", settings={"value": wrap(value)}) for value in kinds
        ]
        assert rewards == expected


TABLES = """
import jax
import jax.numpy as jnp
import numpy as np

TABLE = np.ones(3, np.float32)

class Top:
    num_actions = 2

    def total(self, state):
        return (state * TABLE).sum()

    def reset_env(self, key, params):
        return jnp.zeros(1), jnp.float32(1)

    def step_env(self, key, state, action, params):
        return jnp.zeros(1), state, self.total(state), False, {}

class Inner(Top):
    def total(self, state):
        sums = jax.jit(lambda one: jax.lax.cond(one > 0, lambda: one * TABLE, lambda: TABLE))
        return sums(state).sum()
"""


CONSTANTS = """
import jax
import jax.numpy as jnp
import numpy as np

DELETED = jnp.arange(3.0)

class Constants:
    num_actions = 2

    def __init__(self, name):
        self.name = name

    def reset_env(self, key, params):
        return jnp.zeros(1), jnp.float32(1)

    def step_env(self, key, state, action, params):
        values = {
            "numpy": lambda: jnp.where(state > 0, np.float32(1), 0.0 * state),
            "python": lambda: jnp.where(state > 0, 5.0, 0.0 * state),
            "nan": lambda: jnp.signbit(jnp.where(state > 0, float("nan"), state)),
            "minus_nan": lambda: jnp.signbit(jnp.where(state > 0, -float("nan"), state)),
            "deleted": lambda: DELETED[state.astype(int) + 1],
            "after": lambda: (jnp.arange(3.0) + 1)[state.astype(int) + 1],
            "random": lambda: jax.random.uniform(jax.random.key(3), (3,)).sum(),
        }
        return jnp.zeros(1), state, 1.0 * values[self.name](), False, {}
"""


OPERATION = """
import jax
import jax.numpy as jnp

OPERATIONS = {
    "int8": lambda value: value.astype(jnp.int8),
    "int16": lambda value: value.astype(jnp.int16),
    "away": lambda value: jax.lax.round(value, jax.lax.RoundingMethod.AWAY_FROM_ZERO),
    "even": lambda value: jax.lax.round(value, jax.lax.RoundingMethod.TO_NEAREST_EVEN),
    "clipped": lambda value: jnp.arange(3.0).at[value.astype(int)].get(mode="clip"),
    "filled": lambda value: jnp.arange(3.0).at[value.astype(int)].get(mode="fill", fill_value=9),
    "two": lambda value: jnp.tile(value[None], 2).sum(),
    "three": lambda value: jnp.tile(value[None], 3).sum(),
}

class Operation:
    num_actions = 2

    def __init__(self, name):
        self.operation = OPERATIONS[name]

    def reset_env(self, key, params):
        return jnp.zeros(1), jnp.float32(200.5)

    def step_env(self, key, state, action, params):
        return jnp.zeros(1), state, self.operation(state).astype(jnp.float32), False, {}
"""


def test_operations_that_differ_in_a_parameter_alone_are_different_games(game):
    game(OPERATION)
    rewards = {"int8": 127, "int16": 200, "away": 201, "even": 200}
    rewards |= {"clipped": 2, "filled": 9, "two": 401, "three": 601.5}
    for name, reward in rewards.items():
        assert first_reward(id="mylab:Operation", settings={"name": name}) == reward, name


def test_a_game_whose_values_were_changed_is_another_game(game):
    game(KIND)
    module = import_module("mylab")
    made = partial(module.Kind)
    assert [first_reward(id=made), first_reward(id=made)] == [2.0, 2.0]
    module.Kind.bonus = 5.0
    assert first_reward(id=made) == 7.0
    module.BONUS = 10.0
    assert first_reward(id=made) == 17.0
    settings = {"value": [1.0]}
    assert first_reward(id=made, settings=settings) == 18.0


def test_a_game_that_is_changed_while_it_is_played_stays_as_it_was(game):
    game(KIND)
    module = import_module("mylab")
    env = JaxEnv(id=module.Kind)
    module.BONUS = 10.0
    step = env.step(env.reset().set("action", torch.zeros(1, dtype=torch.int64)))
    assert step["next", "reward"].item() == 2.0


def test_a_table_that_is_changed_in_place_is_another_game(game):
    game(TABLES)
    module = import_module("mylab")
    # For two envs, they are compiled after the change.
    earlier = [JaxEnv(id=made, num_envs=2) for made in (module.Top, module.Inner)]
    assert [first_reward(id=made) for made in (module.Top, module.Inner)] == [3.0, 3.0]
    module.TABLE[:] = 7
    assert [first_reward(id=made) for made in (module.Top, module.Inner)] == [21.0, 21.0]
    for env in earlier:
        step = env.step(env.reset().set("action", torch.zeros(2, dtype=torch.int64)))
        assert step["next", "reward"].flatten().tolist() == [3.0, 3.0]


def test_constants_of_other_types_are_other_games(game):
    game(CONSTANTS)
    names = ("numpy", "python", "nan", "minus_nan", "deleted", "after")
    expected = [1.0, 5.0, 0.0, 1.0, 2.0, 3.0]
    rewards = []
    for name in names:
        rewards.append(first_reward(id="mylab:Constants", settings={"name": name}))
        import_module("mylab").DELETED.delete() if name == "deleted" else None
    assert rewards == expected


def test_settings_of_jax_decide_too(game):
    game(CONSTANTS)
    jax = pytest.importorskip("jax")
    rewards = []
    for is_partitionable in (True, False):
        with jax.threefry_partitionable(is_partitionable):
            rewards.append(first_reward(id="mylab:Constants", settings={"name": "random"}))
    assert rewards[0] != rewards[1]


def test_equal_games_are_compiled_once(game, monkeypatch):
    game(KIND)
    lines = []
    monkeypatch.setattr(
        "yamame_envs.jax_games.programs.compiling", lambda line: lines.append(line) or nullcontext()
    )
    for count in range(2):
        for num_envs in (3, 4):
            JaxEnv(id="mylab:Kind", num_envs=num_envs).rollout(2)
        assert sum("for 3 envs" in line for line in lines) == 2, count


CALLING = """
import jax
import jax.numpy as jnp
import numpy as np

class Calling:
    num_actions = 2

    def __init__(self, level):
        self.level = level

    def look_up(self, state):
        return np.float32(self.level)

    def reset_env(self, key, params):
        return jnp.zeros(1), jnp.float32(1)

    def step_env(self, key, state, action, params):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        reward = jax.pure_callback(self.look_up, shape, state, vmap_method="sequential")
        return jnp.zeros(1), state, reward, False, {}

class Held(Calling):
    def __init__(self, level):
        self.table = jnp.full(20, 1.0 * level)

    def step_env(self, key, state, action, params):
        return jnp.zeros(1), state, self.table[action], False, {}

class Inner(Held):
    def step_env(self, key, state, action, params):
        reward = jax.jit(lambda one: self.table[one])(action)
        return jnp.zeros(1), state, reward, False, {}
"""


def test_games_that_call_python_are_different_games(game):
    game(CALLING)
    for level in (1, 5):
        assert first_reward(id="mylab:Calling", settings={"level": level}) == level


REWARDS = """
import torch
from yamame_envs import JaxEnv

for name in ("Held", "Inner"):
    for level in (1, 5):
        env = JaxEnv(id=f"mylab:{name}", settings={"level": level})
        step = env.step(env.reset().set("action", torch.zeros(1, dtype=torch.int64)))
        print(step["next", "reward"].item())
"""


@pytest.mark.parametrize("value", ["0", "1"])
def test_games_that_differ_in_an_array_are_different_whatever_jax_does_with_arrays(game, value):
    game(CALLING)
    # A process of its own, because JAX reads this setting when it is imported.
    paths = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, "JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS": value, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", REWARDS], env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["1.0", "5.0", "1.0", "5.0"], done.stderr
