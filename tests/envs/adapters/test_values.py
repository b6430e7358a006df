"""Rewards, flags and infos of environments: taken where their meaning is clear, else named."""

from decimal import Decimal
from fractions import Fraction

import gymnasium
import numpy as np
import own_envs
import pytest
import torch
from gymnasium import spaces
from yamame.system.messages import OutsideError
from yamame_envs import Gym, GymGoals, HostedEnv, MultiDomain, Workers


class Returning(gymnasium.Env):
    """Returns given parts of a step."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, after=None, **parts):
        self.parts = {"reward": 1.0, "terminated": False, "truncated": False, "info": {}} | parts
        self.after = after
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        parts = self.parts
        if self.after is not None and self.steps <= self.after:
            parts = {"reward": 0.0, "terminated": False, "truncated": False, "info": {}}
        return np.zeros(2, np.float32), *parts.values()


def stepped(success="success", **parts):
    env = HostedEnv(lambda: Returning(**parts), num_envs=2, success=success)
    return env.step(env.reset().set("action", torch.zeros(2, dtype=torch.int64)))["next"]


NUMBERS = [
    0.5,
    1,
    True,
    np.float64(0.5),
    np.float32(0.5),
    np.int64(3),
    np.bool_(True),
    np.array(0.5),
    np.array([0.5]),
    np.array([[2]]),
    np.array([1], object),
    torch.tensor(0.5),
    torch.tensor([0.5]),
    torch.tensor([0.5], requires_grad=True),
    [0.5],
    (0.5,),
    [[0.5]],
    Fraction(1, 2),
    Decimal("0.5"),
]


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
def test_a_reward_is_one_number_in_any_form(value):
    flat = np.ravel(value.detach() if isinstance(value, torch.Tensor) else value)[0]
    assert stepped(reward=value)["reward"].flatten().tolist() == [float(flat)] * 2


NO_NUMBERS = [
    "1.0",
    b"1",
    None,
    1j,
    np.complex128(1),
    np.array([1j]),
    np.array("1.0"),
    np.array([1.0, 2.0]),
    np.array([]),
    torch.zeros(2),
    [],
    [1.0, 2.0],
    {"reward": 1.0},
    np.ma.masked,
    np.ma.array([1.0], mask=[True]),
    object,
]
INFINITE = [np.nan, np.inf, -np.inf, 1e39, 10**400, -(10**400), np.array([np.nan])]


@pytest.mark.parametrize("value", NO_NUMBERS + INFINITE, ids=lambda value: repr(value)[:20])
def test_another_reward_is_refused_by_name_with_env_and_step(value):
    with pytest.raises(
        OutsideError, match=r"^HostedEnv: .* in env 0 at step 0 of task_seed \S+: reward must be"
    ) as caught:
        stepped(reward=value)
    assert "\n" not in str(caught.value)


FLAGS = [
    (True, True),
    (np.bool_(True), True),
    (np.False_, False),
    (1, True),
    (0, False),
    (np.int8(1), True),
    (1.0, True),
    (np.array([True]), True),
    (np.array(False), False),
    (torch.tensor([True]), True),
    (torch.tensor(0), False),
    ([True], True),
]
NO_FLAGS = [
    "no",
    "maybe",
    "",
    "False",
    None,
    np.nan,
    2,
    -1,
    0.5,
    np.array([True, False]),
    np.array("no"),
    [],
    {},
    1j,
    np.ma.masked,
    object,
]


def parts_with(name, value):
    return {"info": {"success": value}} if name == "success" else {name: value}


@pytest.mark.parametrize("name", ["terminated", "truncated", "success"])
@pytest.mark.parametrize(("value", "expected"), FLAGS, ids=repr)
def test_a_flag_is_true_or_false_in_any_form(name, value, expected):
    shown = stepped(**parts_with(name, value))
    assert shown[name].flatten().tolist() == [expected] * 2


@pytest.mark.parametrize("name", ["terminated", "truncated", "success"])
@pytest.mark.parametrize("value", NO_FLAGS, ids=repr)
def test_another_flag_is_refused_by_name_and_never_cast(name, value):
    shown = "info\\['success'\\]" if name == "success" else name
    with pytest.raises(
        OutsideError,
        match=rf"in env 0 at step 0 of task_seed \S+: {shown} must be true or false, got",
    ) as caught:
        stepped(**parts_with(name, value))
    assert ("env.success=null" in str(caught.value)) == (name == "success")
    # Nobody reads it here.
    if name == "success":
        assert not stepped(success=None, **parts_with(name, value))["done"].any()


@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_wrappers_of_this_package_cast_no_flags_either(name):
    class Strange(own_envs.PointReach):
        def step(self, action):
            shown, reward, *_ = super().step(action)
            flags = {"terminated": False, "truncated": np.array([False]), name: "no"}
            return shown, reward, *flags.values(), None

    made = {"values/Reach-v0": Strange, "values/Domain-v0": lambda: Returning(**{name: "no"})}
    for id, entry_point in made.items():
        gymnasium.register(id, entry_point=entry_point)
    for env in (GymGoals(id="values/Reach-v0"), MultiDomain(ids="values/Domain-v0")):
        with pytest.raises(OutsideError, match=f"{name} must be true or false, got 'no'"):
            env.rollout(2)
    for id in made:
        del gymnasium.registry[id]


def test_a_wrong_value_costs_an_env_its_episode_and_no_other():
    made = []

    def make():
        made.append(Returning(after=len(made), reward="2"))
        return made[-1]

    env = HostedEnv(make, num_envs=2, workers=Workers(on_error="continue", max_errors=9))
    timestep = env.reset()
    action = torch.zeros(2, dtype=torch.int64)
    first = env.step(timestep.set("action", action))["next"]
    second = env.step(first.clone().set("action", action))["next"]
    assert first["aborted"].flatten().tolist() == [False, False]
    assert second["aborted"].flatten().tolist() == [True, False]
    assert second["reward"].tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("key", ["auto", "success", None])
def test_an_info_of_none_has_no_entries(key):
    gymnasium.register("values/NoInfo-v0", entry_point=lambda: Returning(info=None))
    env = Gym(id="values/NoInfo-v0", success=key, time_limit=3)
    assert not env.rollout(3)["next"].get("success", torch.zeros(1)).any()
    del gymnasium.registry["values/NoInfo-v0"]


@pytest.mark.parametrize("info", [[], "text", 3], ids=repr)
def test_an_info_that_is_no_dictionary_is_refused_where_it_is_read(info):
    with pytest.raises(OutsideError, match="info must be a dictionary"):
        stepped(info=info)
    assert stepped(success=None, info=info)["reward"].any()


@pytest.mark.parametrize("result", [np.zeros(2, np.float32), {"a": 1, "b": 2}, None], ids=repr)
def test_a_reset_without_info_is_refused_though_it_may_unpack(result):
    class Old(Returning):
        def reset(self, *, seed=None, options=None):
            return result

    with pytest.raises(OutsideError, match=r"at the start of .*: the result of reset\(\) must be"):
        HostedEnv(Old, num_envs=1).reset()


@pytest.mark.parametrize("result", [(np.zeros(2, np.float32), 0.0, True, {}), None, np.zeros(5)])
def test_a_step_of_other_parts_is_refused_with_what_they_must_be(result):
    class Old(Returning):
        def step(self, action):
            return result

    env = HostedEnv(lambda: Old(), num_envs=1, success=None)
    condition = (
        r"the result of step\(\) must be \(observation, reward, terminated, truncated, info\)"
    )
    with pytest.raises(OutsideError, match=rf"at step 0 .*: {condition}, got"):
        env.step(env.reset().set("action", torch.zeros(1, dtype=torch.int64)))


def test_an_observation_without_an_entry_of_its_space_is_refused_with_its_key():
    class Partial(Returning):
        observation_space = spaces.Dict({"image": spaces.Box(0, 1, (2,), np.float32)})

        def reset(self, *, seed=None, options=None):
            return {"picture": np.zeros(2, np.float32)}, {}

    with pytest.raises(OutsideError, match=r"observation\['image'\] must exist"):
        HostedEnv(Partial, num_envs=1).reset()
