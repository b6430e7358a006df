"""Whatever is wrong in what `act` is given is one ValueError that names it, and changes nothing."""

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

WRONG = [
    (
        {"observation": {"goal": GOOD["goal"]}},
        r"observation must have 'observation' \(6,\), 'goal' .* has no 'observation'",
    ),
    (
        {"observation": GOOD | {"observation": np.zeros(5)}},
        r"'observation' must have the shape \(6,\), got \(5,\)",
    ),
    (
        {"observation": GOOD | {"observation": np.zeros((1, 6))}},
        r"must have the shape \(6,\), got \(1, 6\)",
    ),
    ({"observation": GOOD | {"observation": NAN}}, r"'observation' must be finite, got nan"),
    ({"observation": GOOD | {"goal": np.full((2, 2), 1e300)}}, r"'goal' must be finite, got inf"),
    (
        {"observation": GOOD | {"goal": np.zeros((2, 2), complex)}},
        r"'goal' must be an array of numbers, got ndarray",
    ),
    ({"observation": GOOD | {"goal": "3,5"}}, r"'goal' must be an array of numbers, got '3,5'"),
    ({"observation": GOOD | {"gaol": 1}}, r"observation must have .*, got 'gaol' as well"),
    (
        {"observation": np.zeros(6)},
        r"observation must be a mapping with 'observation' \(6,\), .* got ndarray",
    ),
    (
        {"observation": GOOD, "reward": None},
        r"reward must be given to sessions that go on, got None",
    ),
    ({"observation": GOOD, "reward": np.nan}, r"reward must be finite, got nan"),
    ({"observation": GOOD, "reward": [1.0]}, r"reward must have the shape \(\), got \(1,\)"),
    ({"observation": GOOD, "reward": "much"}, r"reward must be an array of numbers, got 'much'"),
    ({"observation": GOOD, "reward": 1.0, "done": 1.0}, r"done must be true or false, got float64"),
    (
        {"observation": GOOD, "reward": 1.0, "done": [False]},
        r"done must have the shape \(\), got \(1,\)",
    ),
    (
        {"observation": GOOD, "reward": 1.0, "trial_start": 2},
        r"trial_start must be true or false, got int64",
    ),
    (
        {"observation": GOOD, "reward": 1.0, "sessions": ["b"]},
        r"sessions must have begun, with reset.*, got 'b'",
    ),
    (
        {"observation": GOOD, "reward": 1.0, "sessions": "a"},
        r"sessions must be a list with at least one name, got 'a'",
    ),
    (
        {"observation": GOOD, "reward": 1.0, "sessions": []},
        r"sessions must be a list with at least one name, got \[\]",
    ),
    (
        {"observation": GOOD, "reward": 1.0, "sessions": ["a", "a"]},
        r"sessions must be different ones",
    ),
    (
        {"observation": GOOD, "reward": 1.0, "sessions": [["a"]]},
        r"sessions must be names that hash",
    ),
    (
        {"observation": GOOD, "reward": [1.0], "sessions": ["a"]},
        r"'observation' must have the shape \(1, 6\), got \(6,\)",
    ),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_what_is_wrong_is_named_and_changes_nothing(maze, given, message):
    agent, other = (DeployedAgent(maze.saved, greedy=True) for _ in range(2))
    decided = []
    for each in (agent, other):
        each.step.register_forward_hook(lambda module, given, answer: decided.append(answer[0]))
        each.reset(sessions=["a"])
        each.act(GOOD)
    with pytest.raises(ValueError, match=message) as caught:
        agent.act(**given)
    assert "\n" not in str(caught.value)
    for each in (agent, other):
        each.act(GOOD, reward=1.0)
    assert torch.equal(decided[-2], decided[-1])


def test_the_reward_of_a_session_that_has_done_nothing_is_refused(agent):
    with pytest.raises(
        ValueError, match=r"reward must be 0 or left out where a session begins.* got 1.0"
    ):
        agent.act(GOOD, reward=1.0)
    agent.act(GOOD, reward=0.0)
    agent.act(GOOD, reward=1.0, done=True)  # what ended the last episode earned something
    agent.reset()
    with pytest.raises(ValueError, match=r"where a session begins"):
        agent.act(GOOD, reward=1.0)
    agent.reset(sessions=["a", "b"])
    pair = {key: np.stack([value] * 2) for key, value in GOOD.items()}
    agent.act(pair, sessions=["a", "b"])
    agent.reset(sessions=["b"])
    with pytest.raises(ValueError, match=r"where a session begins.* got 3.0"):
        agent.act(pair, reward=[2.0, 3.0], sessions=["a", "b"])
    agent.act(pair, reward=[2.0, 0.0], sessions=["a", "b"])


def test_whoever_was_forgotten_must_begin_again(agent):
    agent.reset(sessions=["a"])
    agent.forget(["a"])
    for call in (lambda: agent.forget(["a"]), lambda: agent.act(GOOD, sessions=["a"])):
        with pytest.raises(ValueError, match=r"sessions must have begun, .* got 'a'"):
            call()


def test_numbers_of_other_dtypes_are_taken_where_nothing_is_lost(agent):
    forms = [
        GOOD,
        {key: value.astype(np.float64) for key, value in GOOD.items()},
        {key: value.astype(np.int64)[::1] for key, value in GOOD.items()},
        {key: value.tolist() for key, value in GOOD.items()},
        {key: torch.from_numpy(value) for key, value in GOOD.items()},
        TensorDict({key: torch.from_numpy(value) for key, value in GOOD.items()}),
        GOOD
        | {"success": False, "prev_reward": 3.0, "achieved": None},  # of the format, and not read
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
        ("action_mask", np.zeros(4, bool), r"action_mask must allow an action in every row"),
    ):
        with pytest.raises(ValueError, match=message):
            agent.act(good | {key: value}, reward=0.0)
    assert agent.act(good | {"pixels": np.zeros((3, 36, 36), np.int64)}, reward=0.0) == 1
