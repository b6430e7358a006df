import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import yamame_envs
from gymnasium.utils.env_checker import check_env
from yamame.checks import ArgumentError
from yamame_envs import MazeRunner, PassiveTMaze, XLand
from yamame_envs.gymnasium_env import GymnasiumEnv
from yamame_envs.registration import _TARGETS
from yamame_envs.rendering import CELL

IDS = ["yamame/MazeRunner-v0", "yamame/PassiveTMaze-v0"]


@pytest.mark.parametrize("name", IDS)
def test_gymnasiums_checker_accepts_the_environments(name):
    check_env(gymnasium.make(name, render_mode="rgb_array").unwrapped)


def test_settings_reach_the_environment():
    env = gymnasium.make("yamame/MazeRunner-v0", size=11, num_goals=3, render_mode="rgb_array")
    observation, info = env.reset(seed=3)
    assert observation["goal"].shape == (3, 2)
    assert info["success"] is False
    assert info["achieved"].tolist() == [[9, 5]]
    assert env.render().shape == (11 * CELL, 11 * CELL, 3)


def test_an_unknown_setting_is_refused():
    with pytest.raises(TypeError, match="sizes"):
        gymnasium.make("yamame/MazeRunner-v0", sizes=11)


def test_it_plays_what_the_batched_environment_plays():
    env = gymnasium.make("yamame/PassiveTMaze-v0", length=3)
    observation, _ = env.reset(seed=8)
    side = observation[1]
    batched = PassiveTMaze(length=3, seed=8)
    assert batched.reset()["observation"][0].tolist() == observation.tolist()
    rewards = []
    for action in (0, 3, 0, 1):
        observation, reward, terminated, truncated, info = env.step(np.int64(action))
        rewards.append(reward)
        assert not truncated
    assert rewards == pytest.approx([0, -1 / 3, 0, 0])
    assert terminated
    assert info == {"success": False}
    assert side in (-1, 1)


def test_success_is_told():
    env = gymnasium.make("yamame/PassiveTMaze-v0", length=1)
    observation, _ = env.reset(seed=0)
    env.step(0)
    _, reward, terminated, _, info = env.step(1 if observation[1] > 0 else 3)
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_a_task_can_be_asked_for():
    env = gymnasium.make("yamame/MazeRunner-v0")
    first, _ = env.reset(options={"task_seed": 5})
    env.reset()
    again, _ = env.reset(options={"task_seed": 5})
    other, _ = env.reset(options={"task_seed": 6})
    assert np.array_equal(first["goal"], again["goal"])
    assert not np.array_equal(first["goal"], other["goal"])


def test_more_rows_than_one_and_unknown_render_modes_are_refused():
    with pytest.raises(ValueError, match="GymnasiumEnv: num_envs must be 1, got 2"):
        GymnasiumEnv(MazeRunner(num_envs=2))
    with pytest.raises(
        ValueError,
        match=r"GymnasiumEnv: render_mode must be one of \(None, 'rgb_array'\), got 'human'",
    ):
        GymnasiumEnv(MazeRunner(), render_mode="human")


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_importing_the_package_imports_no_torch_and_registers():
    code = """
import sys, yamame_envs
print("torch" in sys.modules, "torchrl" in sys.modules)
import gymnasium
names = ("yamame/MazeRunner-v0", "yamame/PassiveTMaze-v0")
print(all(name in gymnasium.registry for name in names))
"""
    assert run_python(code).split() == ["False", "False", "True"]


def test_gymnasium_makes_the_environments_by_their_full_name():
    assert isinstance(gymnasium.make("yamame_envs:yamame/MazeRunner-v0").unwrapped, GymnasiumEnv)


def test_names_of_the_package_are_found_and_others_are_not():
    assert {"BatchedEnv", "GoalEnv", "MazeRunner", "PassiveTMaze", "register"} <= set(
        dir(yamame_envs)
    )
    assert yamame_envs.MazeRunner is MazeRunner
    with pytest.raises(AttributeError, match="Labyrinth"):
        yamame_envs.Labyrinth  # noqa: B018


def all_observed(**settings):
    return gymnasium.make("yamame/XLand-v0", size=6, num_trials=2, trial_limit=5, **settings)


@pytest.mark.parametrize("name", sorted(_TARGETS))
@pytest.mark.parametrize("settings", [{}, {"observable": True}])
def test_observations_of_every_environment_are_in_their_space(name, settings):
    env = gymnasium.make(name, **settings)
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    observation, *_ = env.step(env.action_space.sample())
    assert observation in env.observation_space
    envs = gymnasium.make_vec(name, num_envs=2, vectorization_mode="sync", **settings)
    envs.reset(seed=0)
    observation, *_ = envs.step(envs.action_space.sample())
    assert observation in envs.observation_space


def test_all_own_entries_are_observed():
    batched = XLand(size=6, num_trials=2, trial_limit=5, observable=True, seed=4)
    expected = batched.reset()
    observation, info = all_observed(observable=True).reset(seed=4)
    assert set(observation) == {"observation", "direction", "hidden"}
    for name, value in observation.items():
        assert np.array_equal(value, expected[name][0].numpy()), name
    assert info == {"success": False}


def test_reached_goals_are_told_and_not_observed():
    ways = {"reward": "success", "trial_end": "reset_step", "achieved": True}
    env = all_observed(**ways)
    observation, info = env.reset(seed=4)
    assert set(observation) == {"observation", "direction"}
    assert info["achieved"].shape == (12,)


@pytest.mark.parametrize("action", [1.5, "a", 6, -1, [1, 2], None])
def test_an_action_outside_of_the_space_is_refused(action):
    env = all_observed().unwrapped
    env.reset(seed=0)
    with pytest.raises(ArgumentError, match=r"GymnasiumEnv: action must be in Discrete\(6\), got"):
        env.step(action)


def test_seeds_must_be_whole_numbers():
    env = all_observed().unwrapped
    first, _ = env.reset(options={"task_seed": np.int32(3)})
    again, _ = env.reset(options={"task_seed": 3})
    assert np.array_equal(first["observation"], again["observation"])
    for task_seed in (2**63, 1.5, "a", None):
        with pytest.raises(ArgumentError, match="must be an integer from"):
            env.reset(options={"task_seed": task_seed})
    with pytest.raises(ArgumentError, match="seed must be an integer from 0 to"):
        env.reset(seed=2**63)
