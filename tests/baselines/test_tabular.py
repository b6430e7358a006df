"""Tabular Q-learning while acting: what it learns, when it forgets, and that it improves."""

import pytest
import torch
from torchrl.data import Bounded, Categorical
from yamame.actions import ActionSpace
from yamame.baselines import TabularQLearning, learning_histories
from yamame_envs import DarkKeyDoor

STEPS, TRIAL = 300, 8


def play(num_envs=4, steps=STEPS, seed=0, **settings):
    torch.manual_seed(seed)
    env = DarkKeyDoor(num_envs=num_envs, size=3, trial_limit=TRIAL, time_limit=steps, seed=seed)
    learner = TabularQLearning(ActionSpace(Categorical(5)), **settings)
    return learner, learning_histories(env, learner, max_steps=steps)


def table_by_loop(history, *, learning_rate, gamma, initial_value):
    """What Q-learning knows after one history, updated one step after the other."""
    table: dict = {}
    state = [tuple((row[:3] * 16).round().int().tolist()) for row in history["observation"]]
    actions = history["action"].tolist()
    for t in range(STEPS - 1):  # the last step is never seen to end
        best = max(table.get((state[t + 1], a), initial_value) for a in range(5))
        ends = bool(history["trial_start"][t + 1])
        target = float(history["next", "reward"][t]) + (0.0 if ends else gamma * best)
        old = table.get((state[t], actions[t]), initial_value)
        table[state[t], actions[t]] = old + learning_rate * (target - old)
    return table


def test_its_table_is_that_of_a_plain_loop():
    settings = {"learning_rate": 0.3, "gamma": 0.8, "initial_value": 0.4}
    learner, histories = play(epsilon=0.3, **settings)
    for env_index, history in enumerate(histories):
        expected = table_by_loop(history, **settings)
        table = learner._memory["table"][env_index]
        for (state, action), value in expected.items():
            number = (state[0] * 17 + state[1]) * 17 + state[2]
            assert float(table[number, action]) == pytest.approx(
                value, abs=1e-5
            )  # float32 here, float64 there
        untouched = table.numel() - len(expected)
        assert int((table == 0.4).sum()) >= untouched
        other = table_by_loop(history, **{**settings, "gamma": 0.5})
        assert max(abs(other[key] - expected[key]) for key in expected) > 1e-3


def reward(histories, steps):
    return float(histories["next", "reward"].flatten(1)[:, steps].mean())


def test_it_improves_within_its_history_and_does_not_without_learning_from_it():
    first, last = slice(0, 60), slice(STEPS - 100, STEPS)
    _, histories = play(num_envs=64)
    assert reward(histories, last) > 1.5 * reward(histories, first)
    _, histories = play(num_envs=64, epsilon=1.0)
    assert reward(histories, last) < 1.2 * reward(histories, first)


def test_a_new_episode_and_a_reset_begin_with_an_empty_table():
    learner, _ = play()
    assert (learner._memory["table"] != 0.5).any()
    env = DarkKeyDoor(num_envs=4, size=3, trial_limit=TRIAL, time_limit=STEPS)
    learner(env.reset())
    assert (learner._memory["table"] == 0.5).all()
    learner.reset_memory()
    assert learner._memory is None


def test_the_same_seed_gives_the_same_history_and_another_seed_another():
    assert (play(seed=1)[1] == play(seed=1)[1]).all()
    assert not (play(seed=1)[1] == play(seed=2)[1]).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dims": [-1]}, r"dims must not be negative, got \[-1\]"),
        ({"num_bins": 0}, "num_bins must be at least 1, got 0"),
        ({"learning_rate": 0.0}, r"learning_rate must be in \(0, 1\], got 0\.0"),
        ({"gamma": 1.1}, r"gamma must be in \[0, 1\], got 1\.1"),
        ({"epsilon": -0.1}, r"epsilon must be in \[0, 1\], got -0\.1"),
    ],
)
def test_numbers_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"TabularQLearning: {message}"):
        TabularQLearning(ActionSpace(Categorical(2)), **settings)


def test_what_it_cannot_tabulate_is_refused():
    with pytest.raises(
        ValueError, match="TabularQLearning: action_space must be discrete, got 'box'"
    ):
        TabularQLearning(ActionSpace(Bounded(torch.zeros(1), torch.ones(1))))
    with pytest.raises(ValueError, match=r"TabularQLearning: dims must be below 4, got \[0, 7\]"):
        play(dims=[0, 7])
