"""Wrong arguments of `act` raise a ValueError that names them, and change nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, Categorical, Composite
from yamame.deploy import DeployedAgent, Interface
from yamame.deploy.build import build_agent
from yamame.transforms.context import context_specs

GOOD = {"observation": np.zeros(6, np.float32), "goal": np.zeros((2, 2), np.float32)}
NAN = np.array([0, 0, np.nan, 0, 0, 0], np.float32)

REWARDED = {"observation": GOOD, "reward": 1.0}
WRONG = [
    # Arguments of a call, name of the wrong one, and its value in the message.
    ({"observation": {"goal": GOOD["goal"]}}, "observation", "'observation' of shape (6,)"),
    ({"observation": GOOD | {"observation": np.zeros(5)}}, "'observation'", "(5,)"),
    ({"observation": GOOD | {"observation": np.zeros((1, 6))}}, "'observation'", "(1, 6)"),
    ({"observation": GOOD | {"observation": NAN}}, "'observation'", "nan"),
    ({"observation": GOOD | {"goal": np.full((2, 2), 1e300)}}, "'goal'", "inf"),
    ({"observation": GOOD | {"goal": np.zeros((2, 2), complex)}}, "'goal'", "ndarray"),
    ({"observation": GOOD | {"goal": "3,5"}}, "'goal'", "'3,5'"),
    ({"observation": GOOD | {"goal": [[1], [2, 3]]}}, "'goal'", "list"),
    ({"observation": GOOD | {"gaol": 1}}, "observation", "'gaol'"),
    ({"observation": np.zeros(6)}, "observation", "ndarray"),
    ({"observation": (GOOD, {})}, "observation", "env.reset()"),
    ({"observation": (GOOD, 0.0, False, False, {})}, "observation", "env.reset()"),
    ({"observation": GOOD | {"goal": "3,5"}}, "'goal'", "(2, 2) and dtype float32"),
    ({"observation": GOOD | {"goal": {"x": 1}}}, "observation", "'goal' of shape (2, 2)"),
    ({"observation": GOOD | {"observation": np.zeros(5)}}, "'observation'", "float32"),
    ({"observation": GOOD, "reward": None}, "reward", "call reset()"),
    ({"observation": GOOD, "reward": np.nan}, "reward", "nan"),
    ({"observation": GOOD, "reward": [1.0]}, "reward", "(1,)"),
    ({"observation": GOOD, "reward": "much"}, "reward", "'much'"),
    (REWARDED | {"done": 1.0}, "done", "float64"),
    (REWARDED | {"done": [False]}, "done", "(1,)"),
    (REWARDED | {"trial_start": 2}, "trial_start", "int64"),
    (REWARDED | {"sessions": ["b"]}, "sessions", "'b'; start them with reset("),
    (REWARDED | {"sessions": "a"}, "sessions", "'a'"),
    (REWARDED | {"sessions": []}, "sessions", "[]"),
    (REWARDED | {"sessions": ["a", "a"]}, "sessions", "['a', 'a']"),
    (REWARDED | {"sessions": [["a"]]}, "sessions", "[['a']]"),
    ({"observation": GOOD, "reward": [1.0], "sessions": ["a"]}, "'observation'", "(6,)"),
    ({"observation": [GOOD] * 2, "reward": [1.0], "sessions": ["a"]}, "observation", "1 session"),
    ({"observation": [{}], "reward": [1.0], "sessions": ["a"]}, "observation[0]", "'observation'"),
]


@pytest.mark.parametrize(("given", "name", "value"), WRONG)
def test_a_wrong_argument_is_named_and_changes_nothing(maze, given, name, value):
    agent, other = (DeployedAgent(maze.saved, greedy=True) for _ in range(2))
    decided = []
    for each in (agent, other):
        each.step.register_forward_hook(lambda module, inputs, output: decided.append(output[0]))
        each.reset(sessions=["a"])
        each.act(GOOD)
    with pytest.raises(ValueError, match=r"^DeployedAgent: .*\S$") as caught:
        agent.act(**given)
    message = str(caught.value)
    assert f"{name} must " in message
    assert value in message
    assert "\n" not in message
    for each in (agent, other):
        each.act(GOOD, reward=1.0)
    assert torch.equal(decided[-2], decided[-1])


def test_a_reward_at_the_first_timestep_of_a_session_is_refused(agent):
    with pytest.raises(ValueError, match=r"reward must be 0 .* got 1.0"):
        agent.act(GOOD, reward=1.0)
    agent.act(GOOD, reward=0.0)
    agent.act(GOOD, reward=1.0, done=True)  # the reward of the last action of an episode
    agent.reset()
    with pytest.raises(ValueError, match=r"reward must be 0 .* got 1.0"):
        agent.act(GOOD, reward=1.0)
    agent.reset(sessions=["a", "b"])
    pair = {key: np.stack([value] * 2) for key, value in GOOD.items()}
    agent.act(pair, sessions=["a", "b"])
    agent.reset(sessions=["b"])
    with pytest.raises(ValueError, match=r"reward must be 0 .* got 3.0"):
        agent.act(pair, reward=[2.0, 3.0], sessions=["a", "b"])
    agent.act(pair, reward=[2.0, 0.0], sessions=["a", "b"])


def test_observations_of_several_sessions_may_be_a_list(agent):
    other = GOOD | {"observation": np.linspace(-1, 1, 6)}
    stacked = {key: np.stack([GOOD[key], other[key]]) for key in GOOD}
    actions = []
    for both in (stacked, [GOOD, other], (other, GOOD)[::-1]):
        agent.reset(sessions=["a", "b"])
        actions.append(agent.act(both, sessions=["a", "b"]).tolist())
    assert actions == [actions[0]] * 3


def test_an_observation_as_it_is_stored_is_read_again(agent):
    action = agent.act(GOOD)
    stored = agent.read_observation(GOOD)
    assert stored.batch_size == (1,)
    assert {key: value.shape[1:] for key, value in stored.items()} == {
        key: spec.shape for key, spec in agent.observation_spec.items()
    }
    agent.reset(sessions=["a"])
    assert agent.act(stored, sessions=["a"]).tolist() == [action]
    with pytest.raises(ValueError, match=r"\(6,\), got \(5,\)"):
        agent.read_observation(GOOD | {"observation": np.zeros(5)})


def test_a_session_that_has_ended_must_begin_again(agent):
    agent.reset(sessions=["a"])
    agent.forget(["a"])
    for call in (lambda: agent.forget(["a"]), lambda: agent.act(GOOD, sessions=["a"])):
        with pytest.raises(ValueError, match=r"sessions must have started, got 'a'"):
            call()


def test_numbers_of_other_dtypes_are_accepted_if_nothing_is_lost(agent):
    forms = [
        GOOD,
        {key: value.astype(np.float64) for key, value in GOOD.items()},
        {key: value.astype(np.int64)[::1] for key, value in GOOD.items()},
        {key: value.tolist() for key, value in GOOD.items()},
        {key: torch.from_numpy(value) for key, value in GOOD.items()},
        TensorDict({key: torch.from_numpy(value) for key, value in GOOD.items()}),
        # Entries of a timestep that the policy does not read.
        GOOD | {"success": False, "prev_reward": 3.0, "achieved": None},
    ]
    actions = set()
    for form in forms:
        agent.reset()
        actions.add(int(agent.act(form)))
    assert len(actions) == 1


def test_pictures_and_masks_have_their_dtype_and_a_mask_must_allow_something(maze):
    entries = {
        "pixels": Bounded(0, 255, shape=(3, 36, 36), dtype=torch.uint8),
        "action_mask": Binary(4, shape=(4,), dtype=torch.bool),
        **context_specs((), encoded_size=4, horizon=None),
    }
    interface = Interface(Composite(entries), Categorical(4, shape=()), None)
    weights = build_agent(maze.saved.config, interface).state_dict()
    agent = DeployedAgent(replace(maze.saved, interface=interface, weights=weights), greedy=True)
    assert sorted(agent.observation_spec.keys()) == ["action_mask", "pixels"]
    good = {
        "pixels": np.zeros((3, 36, 36), np.uint8),
        "action_mask": np.array([False, True, False, False]),
    }
    assert agent.act(good) == 1
    for key, value, message in (
        ("pixels", np.full((3, 36, 36), 300), r"'pixels' must be in 0..255, got 300"),
        ("pixels", np.zeros((3, 36, 36)), r"'pixels' must be uint8, got float64"),
        ("action_mask", np.ones(4), r"'action_mask' must be bool, got float64"),
        ("action_mask", np.zeros(4, bool), r"action_mask must allow an action"),
    ):
        with pytest.raises(ValueError, match=message):
            agent.act(good | {key: value}, reward=0.0)
    assert agent.act(good | {"pixels": np.zeros((3, 36, 36), np.int64)}, reward=0.0) == 1
