"""Games with dtypes, infos and ends that are unusual, and functions that return something else."""

from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary
from yamame.checks import ArgumentError, UsageError
from yamame.system.messages import OutsideError
from yamame.system.user_code import UserCodeError
from yamame_envs import JaxEnv
from yamame_envs.adapters.extras import MissingExtra
from yamame_envs.jax_games import Game
from yamame_envs.jax_games.runtime import load_jax
from yamame_envs.testing import check_env

try:
    jax = load_jax()  # which sets what must be set before JAX is imported
except MissingExtra as error:
    pytest.skip(str(error), allow_module_level=True)
jnp = jax.numpy


class Walk:
    """Three numbers that actions move, for five steps."""

    num_actions = 3

    def observe(self, state):
        return state["place"]

    def told(self, over):
        """What a step returns after its reward."""
        return over, {}

    def reset_env(self, key, params):
        state = {"place": jax.random.uniform(key, (3,)), "time": jnp.int32(0)}
        return self.observe(state), state

    def step_env(self, key, state, action, params):
        place = state["place"] + action * jax.random.uniform(key, (3,))
        state = {"place": place, "time": state["time"] + 1}
        return self.observe(state), state, place[0], *self.told(state["time"] >= 5)


def walk(**methods) -> type:
    return type("Walk", (Walk,), methods)


def game(**functions) -> Game:
    """A game of functions, of which some are replaced."""

    def reset(key, task):
        return jnp.zeros(2), {"place": jax.random.uniform(key, (2,))}

    def step(key, state, action, task):
        return state["place"], state, 1.0, False, False, {}

    usual = {"reset": reset, "step": step, "action_space": Discrete(2), "time_limit": 4}
    return Game(**{**usual, **functions})


def test_laws_of_observations_of_every_dtype():
    def observe(self, state):
        place = state["place"]
        return {
            "int8": (20 * place - 10).astype(jnp.int8),
            "choice": (state["time"] % 3 - 1).astype(jnp.int8),
            "uint32": (9 * place).astype(jnp.uint32),
            "int4": (3 * place).astype(jnp.int4),
            "flags": place[:, None] > place,
            "flag": place[0] > 1,
            "halves": (place.astype(jnp.float16), {"brain": place.astype(jnp.bfloat16)}),
        }

    made = walk(observe=observe)
    check_env(partial(JaxEnv, id=made), num_steps=12)
    seen = JaxEnv(id=made, num_envs=5).reset()["observation"]
    assert seen["flags"].dtype == seen["flag"].dtype == torch.bool
    assert seen["flags"].shape == (5, 3, 3)
    assert seen["flag"].shape == (5, 1)
    assert seen["halves", "1", "brain"].dtype == seen["int8"].dtype == torch.float32
    assert seen["int8"].min() < 0
    assert not seen["halves", "0"].eq(seen["halves", "0"].round()).any()


def test_laws_of_states_and_tasks_of_dtypes_that_numpy_lacks():
    def reset(key, task):
        half = jax.random.uniform(key, (2,)).astype(jnp.bfloat16)
        few = {"f8": jnp.ones((3,), jnp.float8_e5m2), "i4": jnp.ones((), jnp.int4)}
        return jnp.zeros(2), (half, few, None, key, 1j * half.astype(jnp.float32))

    def step(key, state, action, task):
        half, few, _, own, turned = state
        shift = jax.random.uniform(task["key"], (2,)) + task["wind"].astype(jnp.float32)
        seen = half + shift + turned.imag + few["f8"].astype(jnp.float32).sum()
        return seen.astype(jnp.float32), (half, few, None, own, -turned), 1.0, False, False, None

    def draw_task(key):
        wind = jax.random.uniform(key, (2,)).astype(jnp.bfloat16)
        return {"wind": wind, "key": key, "bit": wind[0] > 0.5, "count": wind.astype(jnp.uint8)}

    made = game(reset=reset, step=step, draw_task=draw_task)
    check_env(partial(JaxEnv, id=made, split="train"), num_steps=12)


@pytest.mark.parametrize(
    ("told", "terminated", "truncated"),
    [
        (lambda self, over: (over, {}), True, False),
        (lambda self, over: (over, over, {}), True, False),
        (lambda self, over: (False, over, {}), False, True),
        # The info tells why an episode is done.
        (lambda self, over: (over, {"truncated": over}), False, True),
        (lambda self, over: (over, {"truncated": False}), True, False),
        (lambda self, over: (over.astype(jnp.int8), {"truncated": over[None]}), False, True),
    ],
)
def test_an_episode_that_terminates_and_is_cut_off_at_once(told, terminated, truncated):
    played = JaxEnv(id=walk(told=told), num_envs=3).rollout(5)["next"]
    assert played.shape == (3, 5)
    assert not played["done"][:, :-1].any()
    last = played[:, -1]
    assert last["done"].all()
    assert (last["terminated"] == terminated).all()
    assert (last["truncated"] == truncated).all()


@pytest.mark.parametrize("info", [None, {"name": "walk", "success": True}, {"path": [1, None]}])
def test_infos_may_be_missing_or_hold_anything(info):
    env = JaxEnv(id=walk(told=lambda self, over: (over, info)), num_envs=2)
    played = env.rollout(5)["next"]
    assert ("success" in played.keys()) == (info is not None and "success" in info)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (walk(observe=lambda self, state: 1j * state["place"]), "observation .*real.*complex64"),
        (walk(observe=lambda self, state: "here"), "observation must be an array.*got str"),
        (walk(observe=lambda self, state: {"a": 1.0, 1: 2.0}), "observation must .*keys"),
        (walk(observe=lambda self, state: None), "observation must .*NoneType"),
        (walk(told=lambda self, over: (over, [1])), "info must be a dictionary, got list"),
        (walk(told=lambda self, over: (over, {"success": None})), "success .*got NoneType"),
        (walk(told=lambda self, over: ("no", {})), "terminated must be .*got str"),
        (walk(reset_env=lambda self, key: None), r"reset_env must take \(key, params\)"),
        (walk(action_space=lambda self: Discrete(2)), r"action_space must take \(params\)"),
        (walk(num_actions=0), "num_actions must be a positive integer, got 0"),
        (walk(num_actions=16.0), "num_actions must be a positive integer, got 16.0"),
        (walk(num_actions=True), "num_actions must be a positive integer, got True"),
        (walk(max_steps=8.5), "max_steps must be a whole number of steps, .*got 8.5"),
        (walk(max_steps="8"), "max_steps must be a whole number of steps, .*got '8'"),
        (walk(num_actions=None), "num_actions"),
        (game(reset=lambda key: None), r"reset must take \(key, task\), it is reset\(key\)"),
        (game(reset=lambda key, task: (1.0, 2.0, {})), r"reset must be \(observation, state\)"),
        (game(reset=lambda key, task: jnp.zeros(2)), "reset must be .*, got "),
        (game(reset=lambda key, task: (1.0, {"name": "x"})), r"state\['name'\] must .*str"),
        (game(step=lambda key, state, action, task: (1.0,)), "step must be .*tuple of 1"),
        (game(draw_task=lambda: None), r"draw_task must take \(key\)"),
        (game(draw_task=lambda key: {"wind": 1j}), r"task\['wind'\] must hold real numbers"),
    ],
)
def test_what_a_game_returns_instead_is_named_in_a_line(made, message):
    with pytest.raises((OutsideError, UsageError), match=message) as raised:
        JaxEnv(id=made, num_envs=2)
    assert "\n" not in str(raised.value)


def test_two_numbers_of_actions_are_told(capfd):
    def action_space(self, params):
        return Discrete(7)

    made = walk(num_actions=4, action_space=action_space)
    assert JaxEnv(id=made).action_spec.n == 7
    assert "action_space has 7 choices, and num_actions is 4" in capfd.readouterr().err


def test_flags_that_are_neither_true_nor_false_are_named_with_env_and_step():
    def told(self, over):
        return jnp.where(over, jnp.nan, 0.0), {}

    with pytest.raises(OutsideError, match="terminated must be true or false, in env 0 at step 4"):
        JaxEnv(id=walk(told=told), num_envs=2).rollout(6)
    JaxEnv(id=walk(told=told), num_envs=2).rollout(4)


@pytest.mark.parametrize("number", [-1, 256, 300])
def test_pixels_out_of_range_are_named_with_env_and_step(number):
    class Pictures(Walk):
        def observation_space(self, params):
            return Box(0, 255, (8, 8, 3), np.uint8)

        def observe(self, state):
            return jnp.full((8, 8, 3), jnp.where(state["time"] == 3, number, 255))

    with pytest.raises(OutsideError, match=r"pixels in 0\.\.255, .* in env 0 at step 2 of"):
        JaxEnv(id=Pictures, num_envs=2).rollout(6)
    seen = JaxEnv(id=Pictures, num_envs=2).rollout(2)["observation"]
    assert seen.dtype == torch.uint8
    assert (seen == 255).all()


@pytest.mark.parametrize("number", [-0.1, 1.1, jnp.nan])
def test_real_pixels_out_of_range_are_named(number):
    def reset(key, task):
        return jnp.full((8, 8, 3), number), jnp.zeros(2)

    def step(key, state, action, task):
        return jnp.zeros((8, 8, 3)), state, 1.0, False, False, {}

    made = game(reset=reset, step=step, pixels_as_bytes=True)
    with pytest.raises(OutsideError, match=r"pixels in 0\.\.255, or in 0\.\.1"):
        JaxEnv(id=made, num_envs=2).reset()


def test_tasks_of_many_arrays_keep_their_order():
    def draw_task(key):
        return [jnp.float32(number) for number in range(1100)]

    def reset(key, task):
        return jnp.stack(task), task

    def step(key, state, action, task):
        return jnp.stack(task), state, 1.0, False, False, {}

    made = game(draw_task=draw_task, reset=reset, step=step)
    seen = JaxEnv(id=made, num_envs=2).reset()
    assert torch.equal(seen["observation"], torch.arange(1100.0).expand(2, -1))


def test_first_observations_that_are_not_finite_are_named_with_their_task():
    def observe(self, state):
        return jnp.where(state["time"] == 0, jnp.inf, state["place"])

    with pytest.raises(
        OutsideError, match=r"observation must be finite, in the reset of task_seed -?\d"
    ):
        JaxEnv(id=walk(observe=observe), num_envs=2).reset()


def test_observations_that_are_not_finite_are_named_with_env_and_step():
    def observe(self, state):
        return jnp.where(state["time"] == 3, jnp.nan, state["place"])

    with pytest.raises(OutsideError, match="observation must be finite, in env 0 at step 2 of"):
        JaxEnv(id=walk(observe=observe), num_envs=2).rollout(4)


def test_actions_of_spaces_with_an_offset_and_of_bits_arrive_as_the_space_has_them():
    def step(key, state, action, task):
        number = jnp.asarray(action, jnp.float32).reshape(-1)
        return number[:2], state, number.sum(), False, False, {}

    def reset(key, task):
        return jnp.zeros(2), jax.random.uniform(key)

    for space, low, high in (
        (MultiBinary(2), 0, 1),
        (Box(-3, 3, (2,), "int8"), -3, 3),
        (Box(-1, 1, (2,), "float16"), -1, 1),
    ):
        env = JaxEnv(id=game(reset=reset, step=step, action_space=space), num_envs=64)
        seen = env.rollout(1)["next", "observation"]
        assert seen.min() >= low
        assert seen.max() <= high
        assert len(seen.unique()) > 1


def test_choices_of_more_than_32_bits_are_refused():
    with pytest.raises(ArgumentError, match="action_space must have choices of 32 bits"):
        JaxEnv(id=game(action_space=Discrete(3, start=2**33)))


@pytest.mark.parametrize("task", [None, {}])
def test_a_task_without_arrays_is_refused(task):
    with pytest.raises(ArgumentError, match="task must hold an array"):
        JaxEnv(id=game(draw_task=lambda key: task))


def test_a_reference_that_a_game_keeps_is_refused():
    place = jax.new_ref(jnp.float32(1))

    def step(key, state, action, task):
        return state["place"], state, place[...], False, False, {}

    with pytest.raises(UserCodeError, match=r"failed in step: .*return it in the state"):
        JaxEnv(id=game(step=step))
