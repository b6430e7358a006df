"""A deployed agent takes the numbers of its environment's spaces and refuses all others."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from recorded_episodes import ACTIONS, OBSERVATIONS, PAIR, SHIFTED, Echo, act, make_env
from torchrl.envs import ObservationNorm, TransformedEnv
from yamame_envs import HostedEnv

NUMBERS = {
    "int64": (spaces.Box(-3, 4, (2,), np.int64), [[-3, 4], [0.0, 1.0]], [[9, 9], [0.5, 1], [4, 5]]),
    "float32": (
        spaces.Box(-2.0, 5.0, (2,), np.float32),
        [[-2, 5], [5.0000005, 0.5]],
        [[9, 9], [5.01, 0], [np.nan, 0], [np.inf, 0]],
    ),
    "sides": (
        spaces.Box(np.array([-1.0, -np.inf]), np.array([np.inf, 2.0]), dtype=np.float64),
        [[1e9, -1e9]],
        [[-1.5, 0], [0, 2.5], [np.inf, 0], [np.nan, 0]],
    ),
    "few_bytes": (
        spaces.Box(0, 3, (2,), np.uint8),
        [[3, 0]],
        [[4, 0], [300, 0], [-1, 0], [0.5, 1]],
    ),
    "unbounded": (spaces.Box(-np.inf, np.inf, (2,)), [[9, -1e9]], [[np.nan, 0], [np.inf, 0]]),
    "number": (spaces.Box(0.0, 1.0, ()), [1.0, 0], [1.5, np.nan]),
    "negative": (spaces.Discrete(50, start=-20), [-20, 29], [-21, 30, 2**64 - 19]),
    "discrete": (
        spaces.Discrete(4, start=1),
        [1, 4.0, np.int64(2), np.array(3)],
        [0, 5, 1.5, np.nan, "2"],
    ),
    "tuple": (
        spaces.Tuple([spaces.Discrete(3), spaces.Discrete(3)]),
        [(0, 2)],
        [(0, 3), (0, 1, 2), (0,)],
    ),
    "nested": (
        spaces.Dict({"a": spaces.Tuple([spaces.Discrete(3), spaces.Discrete(3)])}),
        [{"a": (0, 2)}],
        [{"a": (0, 2, 1)}, {"a": (0,)}, {"a": (0, 3)}, {"b": (0, 2)}],
    ),
    "flags": (spaces.MultiBinary(2), [[0, 1], [True, False]], [[0, 2], [0.5, 0], [0]]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_an_agent_takes_the_numbers_of_a_space_and_no_others(name, deployed):
    space, good, bad = NUMBERS[name]
    agent, _ = deployed(make_env(space, ACTIONS["discrete"]))
    for value in good:
        assert not isinstance(told := act(agent, value), str), (value, told)
    for value in bad:
        assert isinstance(told := act(agent, value), str), value
        assert "observation" in told
    agent.reset(sessions=["a", "b"])
    if name in ("int64", "float32", "sides", "few_bytes", "unbounded"):
        pair = np.array([good[0], bad[0]])
        with pytest.raises(ValueError, match="in row 1"):
            agent.act(pair, sessions=["a", "b"])


class Wandering(Echo):
    """Shows given values instead of samples."""

    def __init__(self, observation_space, shown):
        super().__init__(observation_space, spaces.Discrete(2))
        self.shown = shown

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.asarray(self.shown), {}

    def step(self, action):
        return np.asarray(self.shown), 0.0, False, False, {}


@pytest.mark.parametrize("name", ["int64", "float32", "sides", "few_bytes", "unbounded"])
def test_training_and_an_agent_take_the_same_numbers(name, deployed):
    space, good, bad = NUMBERS[name]
    agent, _ = deployed(make_env(space, ACTIONS["discrete"]))
    for value in [*good, *bad]:
        env = HostedEnv(lambda value=value: Wandering(space, value), num_envs=1, bounds="raise")
        refusal = ""
        try:
            env.reset()
        except Exception as error:
            refusal = str(error)
        deployed_refuses = isinstance(act(agent, np.asarray(value)), str)
        assert ("observation must" in refusal) == bool(refusal) == deployed_refuses, (
            value,
            refusal,
        )


def test_entries_that_a_transform_writes_are_not_held_to_the_bounds_of_the_environment(deployed):
    env = make_env(spaces.Box(-3, 4, (2,), np.int64), ACTIONS["discrete"])
    plain_agent, _ = deployed(env)
    scaled_agent, _ = deployed(
        TransformedEnv(env, ObservationNorm(0.0, 3.5, in_keys=["observation"]))
    )
    assert isinstance(act(plain_agent, [10.5, -10.5]), str)
    assert len(act(scaled_agent, [10.5, -10.5])) == 1


def test_a_description_of_an_earlier_version_has_no_bounds(deployed):
    def earlier(data):
        entries = [
            {key: value for key, value in entry.items() if key not in ("bounds", "whole")}
            for entry in data["spaces"]["observations"]
        ]
        return {**data, "spaces": {**data["spaces"], "observations": entries}}

    agent, _ = deployed(make_env(NUMBERS["int64"][0], ACTIONS["discrete"]), earlier)
    assert len(act(agent, [9, 9])) == 1


WRONG_ACTIONS = {
    "discrete": (spaces.Discrete(4), [4, -1, 1.5, True, np.nan, "1", None, {"a": 1}, [[1]], 1j]),
    "start": (spaces.Discrete(4, start=1), [4, -1, 0.5, True, np.inf, "1", [[1]], [0, 4]]),
    "negative": (spaces.Discrete(4, start=-2), [-2, -1, 4, np.True_]),
    "multi_discrete": (
        SHIFTED,
        [[4, 0], [0, 5], [-1, 0], [0, 0.5], [0], [0, 0, 0], 0, [True, True], [[[0, 0]]]],
    ),
    "table": (ACTIONS["table"], [[0] * 3, [0] * 5, [[0, 0], [0, 0]], [2, 0, 0, 0], [np.nan] * 4]),
    "multi_binary": (spaces.MultiBinary(2), [[0, 2], [0, 0.5], [0, -1], [0], [0, 0, 0], 1]),
    "box": (
        spaces.Box(-2.0, 5.0, (2,)),
        [[9, 0], [0, -2.1], [np.nan, 0], [np.inf, 0], [0], [0, 0, 0], 0, [True, False]],
    ),
    "single": (spaces.Box(-2.0, 5.0, (1,)), [[5.1], 1.0, [], [0, 0]]),
    "whole": (spaces.Box(-3, 4, (2,), np.int64), [[8, 0], [-1, 0], [0.5, 0], [0]]),
    "tuple": (PAIR, [[4, 0], [0, 3], [0], [0, 0, 0], (0, 0, 0), [0.5, 0]]),
    "boxes": (ACTIONS["boxes"], [[0, 0, 0, 6.0], [2.0, 0, 0, 0], [0] * 3, [0] * 5]),
}


@pytest.mark.parametrize("described", [True, False], ids=["described", "earlier"])
@pytest.mark.parametrize("name", WRONG_ACTIONS)
def test_what_is_wrong_with_an_action_of_an_agent_is_one_error(name, described, deployed):
    space, wrong = WRONG_ACTIONS[name]
    env = make_env(OBSERVATIONS["float32"], space)
    change = (lambda data: data) if described else (lambda data: {**data, "spaces": None})
    agent, _ = deployed(env, change)
    good = np.atleast_1d(env.action_spec.rand()[0].numpy())
    for action in wrong:
        with pytest.raises(ValueError, match="DeployedAgent: action must") as caught:
            agent.env_action(action)
        assert "\n" not in str(caught.value)
    good = env.action_spec.rand()[0]
    for form in (good, good.numpy(), good.tolist(), good.numpy().astype(np.float64)):
        value = agent.env_action(form)
        assert not described or space.contains(value), form
    assert len(agent.env_action(torch.stack([good] * 3))) == 3
    low = torch.zeros_like(good)
    pair = torch.stack([good, low - 5]).numpy()
    with pytest.raises(ValueError, match="in row 1"):
        agent.env_action(pair)


def test_an_action_outside_its_box_by_rounding_becomes_the_bound(deployed):
    space = spaces.Box(-2.0, 5.0, (2,))
    agent, _ = deployed(make_env(OBSERVATIONS["float32"], space))
    value = agent.env_action([5.000001, -2.000001])
    assert space.contains(value)
    assert value.tolist() == [5.0, -2.0]
    assert agent.env_action([4.999, -1.999]).tolist() == np.float32([4.999, -1.999]).tolist()
