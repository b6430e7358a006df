import random
import sys

import numpy as np
import pytest
import torch
from yamame_envs.suites.popgym import POPGym
from yamame_envs.suites.popgym_task import POPGymTask, names

pytest.importorskip("popgym", reason="POPGym is not installed")

# name: size of the observation, actions (0: one number), longest episode
SIZES = {
    "AutoencodeEasy": (6, 4, 103),
    "AutoencodeMedium": (6, 4, 207),
    "AutoencodeHard": (6, 4, 311),
    "BattleshipEasy": (2, 64, 64),
    "BattleshipMedium": (2, 100, 100),
    "BattleshipHard": (2, 144, 144),
    "ConcentrationEasy": (156, 52, 104),
    "ConcentrationMedium": (312, 104, 208),
    "ConcentrationHard": (728, 52, 104),
    "CountRecallEasy": (4, 27, 51),
    "CountRecallMedium": (8, 27, 103),
    "CountRecallHard": (26, 17, 207),
    "HigherLowerEasy": (13, 2, 51),
    "HigherLowerMedium": (13, 2, 103),
    "HigherLowerHard": (13, 2, 155),
    "MineSweeperEasy": (3, 16, 14),
    "MineSweeperMedium": (7, 36, 30),
    "MineSweeperHard": (10, 64, 54),
    "MultiarmedBanditEasy": (2, 10, 200),
    "MultiarmedBanditMedium": (2, 20, 400),
    "MultiarmedBanditHard": (2, 30, 600),
    "NoisyPositionOnlyCartPoleEasy": (2, 2, 200),
    "NoisyPositionOnlyCartPoleMedium": (2, 2, 200),
    "NoisyPositionOnlyCartPoleHard": (2, 2, 200),
    "NoisyPositionOnlyPendulumEasy": (2, 0, 200),
    "NoisyPositionOnlyPendulumMedium": (2, 0, 200),
    "NoisyPositionOnlyPendulumHard": (2, 0, 200),
    "PositionOnlyCartPoleEasy": (2, 2, 200),
    "PositionOnlyCartPoleMedium": (2, 2, 400),
    "PositionOnlyCartPoleHard": (2, 2, 600),
    "PositionOnlyPendulumEasy": (2, 0, 200),
    "PositionOnlyPendulumMedium": (2, 0, 150),
    "PositionOnlyPendulumHard": (2, 0, 100),
    "RepeatFirstEasy": (4, 4, 51),
    "RepeatFirstMedium": (4, 4, 415),
    "RepeatFirstHard": (4, 4, 831),
    "RepeatPreviousEasy": (4, 4, 51),
    "RepeatPreviousMedium": (4, 4, 103),
    "RepeatPreviousHard": (4, 4, 155),
    "VelocityOnlyCartpoleEasy": (2, 2, 200),
    "VelocityOnlyCartpoleMedium": (2, 2, 400),
    "VelocityOnlyCartpoleHard": (2, 2, 600),
}

# name: mean and standard deviation of the return of at least 100 episodes of uniform actions
RANDOM_RETURNS = {
    "AutoencodeEasy": (-0.502, 0.117),
    "BattleshipEasy": (-0.444, 0.164),
    "ConcentrationEasy": (-0.189, 0.107),
    "ConcentrationHard": (-0.835, 0.087),
    "CountRecallEasy": (-0.925, 0.055),
    "CountRecallHard": (-0.885, 0.033),
    "HigherLowerEasy": (-0.001, 0.135),
    "HigherLowerHard": (-0.001, 0.074),
    "MineSweeperEasy": (-0.231, 0.329),
    "MineSweeperHard": (-0.435, 0.079),
    "MultiarmedBanditEasy": (0.000, 0.195),
    "NoisyPositionOnlyCartPoleEasy": (0.112, 0.061),
    "NoisyPositionOnlyPendulumHard": (0.245, 0.181),
    "PositionOnlyCartPoleEasy": (0.111, 0.059),
    "PositionOnlyCartPoleHard": (0.037, 0.020),
    "PositionOnlyPendulumHard": (0.247, 0.185),
    "RepeatFirstEasy": (-0.505, 0.123),
    "RepeatPreviousEasy": (-0.499, 0.125),
    "RepeatPreviousHard": (-0.500, 0.086),
    "VelocityOnlyCartpoleMedium": (0.056, 0.031),
}


def actions(env, seed, steps):
    env.action_space.seed(seed)
    return [env.action_space.sample() for _ in range(steps)]


def trajectory(env, seed, plan, meanwhile=lambda: None):
    """What is seen and paid, in one array; `meanwhile` is called before every step."""
    seen = [env.reset(seed=seed)[0]]
    for action in plan:
        meanwhile()
        vector, reward, terminated, truncated, _ = env.step(action)
        seen += [vector, [reward, terminated, truncated]]
        if terminated or truncated:
            break
    return np.concatenate(seen)


def episode(env, seed, act):
    """The return and length of an episode of a policy over the list of everything seen."""
    seen, total, done = [env.reset(seed=seed)[0]], 0.0, False
    while not done:
        vector, reward, terminated, truncated, _ = env.step(act(seen))
        seen.append(vector)
        total, done = total + reward, terminated or truncated
    return total, len(seen) - 1


def test_every_environment_of_popgym_is_listed():
    assert sorted(names()) == sorted(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_the_published_ones_and_episodes_last_as_long_as_said(name):
    env = POPGymTask(name)
    size, choices, longest = SIZES[name]
    assert env.observation_space.shape == (size,)
    assert (env.action_space.n if choices else 0) == choices
    if not choices:
        assert env.action_space.shape == (1,)
    assert env.longest == longest

    inner = env._env
    seen, _ = env.reset(seed=3)
    action = 0 if choices else np.zeros(1, np.float32)
    if name.startswith("MineSweeper"):  # a field without a mine, over and over
        action = int(np.flatnonzero(inner.hidden_grid.ravel() == 0)[0])
    for step in range(1, longest + 1):
        if "Cart" in name:
            inner.state = np.zeros(4)
        assert seen.dtype == np.float32
        assert env.observation_space.contains(seen)
        seen, _, terminated, truncated, _ = env.step(action)
        assert (terminated or truncated) == (step == longest)


@pytest.mark.parametrize("name", SIZES)
def test_a_seed_decides_the_whole_episode_whatever_else_is_played(name):
    fresh, used, other = POPGymTask(name), POPGymTask(name), POPGymTask(name)
    plan = actions(fresh, 0, 60)
    expected = trajectory(fresh, 7, plan)

    trajectory(used, 8, actions(used, 1, 60))
    other.reset(seed=9)
    used.reset(seed=5)
    before = random.getstate(), np.random.get_state()[1].copy()

    def meanwhile():
        if any(other.step(other.action_space.sample())[2:4]):
            other.reset(seed=9)

    assert np.array_equal(trajectory(used, 7, plan, meanwhile), expected)
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])


@pytest.mark.parametrize("name", SIZES)
def test_another_seed_is_another_episode(name):
    env = POPGymTask(name)
    plan = actions(env, 0, 60)
    assert len({trajectory(env, seed, plan).tobytes() for seed in range(8)}) > 4


@pytest.mark.parametrize("name", RANDOM_RETURNS)
def test_random_actions_return_what_others_measured(name):
    mean, deviation = RANDOM_RETURNS[name]
    env, episodes, others = POPGymTask(name), 100, 100
    env.action_space.seed(11)
    returns = [
        episode(env, 1000 + seed, lambda _: env.action_space.sample())[0]
        for seed in range(episodes)
    ]
    error = deviation * np.sqrt(1 / episodes + 1 / others)
    assert abs(np.mean(returns) - mean) < 3 * error
    assert 0.5 * deviation < np.std(returns) < 2 * deviation


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("RepeatPreviousEasy", lambda seen: seen[max(len(seen) - 4, 0)].argmax()),
        ("RepeatFirstEasy", lambda seen: seen[0].argmax()),
        ("AutoencodeEasy", lambda seen: seen[min(103 - len(seen), len(seen) - 1)][2:].argmax()),
    ],
)
def test_who_remembers_gets_everything_and_who_does_not_much_less(name, answer):
    env = POPGymTask(name)
    assert [episode(env, seed, answer)[0] for seed in range(5)] == pytest.approx([1.0] * 5)
    assert (
        np.mean([episode(env, seed, lambda seen: seen[-1][-4:].argmax())[0] for seed in range(20)])
        < 0
    )


def test_a_choice_of_several_is_one_choice_whose_last_part_changes_fastest():
    one, several = POPGymTask("BattleshipEasy"), POPGymTask("BattleshipEasy", multi_discrete=True)
    assert several.action_space.nvec.tolist() == [8, 8]
    plan = actions(several, 0, 64)
    expected = trajectory(several, 4, plan)
    assert expected[2:].reshape(-1, 5)[:, 1].sum() > 3  # some hits
    assert np.array_equal(trajectory(one, 4, [8 * row + column for row, column in plan]), expected)
    assert not np.array_equal(
        trajectory(one, 4, [8 * column + row for row, column in plan]), expected
    )


def test_both_forms_of_a_name_mean_the_same():
    long, short = POPGymTask("popgym-HigherLowerEasy-v0"), POPGymTask("HigherLowerEasy")
    assert np.array_equal(trajectory(long, 1, [0] * 51), trajectory(short, 1, [0] * 51))


def test_an_unknown_name_is_answered_with_close_ones():
    with pytest.raises(
        ValueError, match=r"id must be .*RepeatPreviousEasy.*, got 'RepeatPreviosEasy'"
    ) as error:
        POPGym(id="RepeatPreviosEasy")
    assert "\n" not in str(error.value)


def test_the_longest_episode_is_the_visible_horizon_and_terminates():
    env = POPGym(id="MultiarmedBanditEasy", num_envs=3, seed=5)
    played = env.rollout(201, break_when_any_done=False)
    assert played["observation"].shape == (3, 201, 2)
    assert played["observation"].dtype == torch.float32
    assert played["next", "terminated"].squeeze(-1).nonzero()[:, 1].tolist() == [199] * 3
    assert not played["next", "truncated"].any()
    assert played["time"][0, :200, 0].tolist() == pytest.approx([step / 200 for step in range(200)])
    assert "success" not in played.keys()


def test_a_row_plays_what_the_environment_plays():
    env = POPGym(id="CountRecallMedium", num_envs=2, seed=1)
    seeds = torch.tensor([[11], [12]])
    td = env.reset(env.reset().select().set("task_seed", seeds))
    single = POPGymTask("CountRecallMedium")
    assert torch.equal(td["observation"][1], torch.tensor(single.reset(seed=12)[0]))
    for action in actions(single, 0, 30):
        td = env.step(td.set("action", torch.tensor([0, action])))["next"]
        vector, reward, *_ = single.step(action)
        assert torch.equal(td["observation"][1], torch.tensor(vector))
        assert td["reward"][1].item() == pytest.approx(reward)


def test_who_remembers_gets_everything_in_a_batch_too():
    env = POPGym(id="RepeatPreviousEasy", num_envs=4)
    td, seen, total = env.reset(), [], torch.zeros(4, 1)
    for _ in range(51):
        seen.append(td["observation"].argmax(-1))
        td = env.step(td.set("action", seen[max(len(seen) - 4, 0)]))["next"]
        total += td["reward"]
    assert td["terminated"].all()
    assert total.flatten().tolist() == pytest.approx([1.0] * 4)


def test_several_choices_can_stay_several():
    env = POPGym(id="MineSweeperEasy", multi_discrete=True, num_envs=2)
    assert env.action_spec.shape == (2, 2)
    assert env.reset()["prev_action"].shape == (2, 8)
    assert POPGym(id="MineSweeperEasy").action_spec.n == 16


def test_without_popgym_it_is_said_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "popgym", None)
    with pytest.raises(ImportError, match=r"POPGym: .* pip install 'yamame\[popgym\]'"):
        POPGym()
