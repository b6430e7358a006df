"""The twins of native environments: what is hidden is shown beside everything else, which stays as
it is.
"""

import pytest
import torch
import yamame_envs as envs
from torchrl.envs.utils import check_env_specs

TWINS = [
    (envs.PassiveTMaze, {"length": 5}, 1),
    (envs.ActiveTMaze, {"length": 5}, 1),
    (envs.Bandits, {"num_arms": 3, "time_limit": 9}, 3),
    (envs.Wind, {"time_limit": 9}, 2),
    (envs.DarkKeyDoor, {"size": 3, "trial_limit": 5, "time_limit": 20}, 4),
    (envs.DarkKeyDoor, {"size": 3, "time_limit": 20, "randomize_actions": True}, 29),
    (envs.MazeRunner, {"size": 5, "num_goals": 1, "time_limit": 9}, 25),
    (envs.MazeRunner, {"size": 5, "num_goals": 1, "randomize_actions": True}, 50),
    (
        envs.MazeRunner,
        {"size": 5, "num_goals": 1, "position": False, "randomize_actions": True},
        52,
    ),
    (envs.MetaFrozenLake, {"size": 3, "num_trials": 2}, 9),
    (envs.MetaFrozenLake, {"size": 3, "num_trials": 2, "hard": True}, 12),
    (envs.PackageDelivery, {"length": 10, "time_limit": 20}, 14),
    (envs.XLand, {"size": 6, "trial_limit": 9}, 65),
    (envs.XLand, {"size": 6, "trial_limit": 9, "level": "small"}, 65 + 4 * 87),
]
IDS = [f"{kind.__name__}-{size}" for kind, _, size in TWINS]


def played(env):
    torch.manual_seed(0)
    return env.rollout(25, break_when_any_done=False)


@pytest.mark.parametrize(("kind", "settings", "size"), TWINS, ids=IDS)
def test_a_twin_shows_one_entry_more_and_plays_the_same(kind, settings, size):
    env, twin = kind(num_envs=4, **settings), kind(num_envs=4, observable=True, **settings)
    assert set(twin.observation_spec.keys()) - set(env.observation_spec.keys()) == {"hidden"}
    check_env_specs(kind(observable=True, **settings))
    ours, theirs = played(env), played(twin)
    assert theirs["hidden"].shape == (4, 25, size)
    theirs = theirs.exclude("hidden", ("next", "hidden"))
    assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
    assert all(ours[key].equal(theirs[key]) for key in ours.keys(True, True))


def test_a_twin_tells_what_decides():
    maze = played(envs.PassiveTMaze(num_envs=6, length=3, observable=True))
    assert maze["hidden"][:, 0, 0].equal(maze["observation"][:, 0, 1])
    assert len(maze["hidden"].unique()) == 2
    room = played(envs.DarkKeyDoor(num_envs=4, size=3, time_limit=30, light=True, observable=True))
    assert room["hidden"].equal(room["observation"][..., 4:])
    torch.manual_seed(0)
    wind = envs.Wind(num_envs=4, time_limit=30, observable=True).rollout(20)
    moved = wind["next", "observation"] - wind["observation"] - wind["action"]
    torch.testing.assert_close(moved, 0.08 * wind["hidden"], atol=1e-5, rtol=0)


def test_the_twin_of_a_maze_without_a_position_shows_it():
    settings = {"num_envs": 4, "size": 7, "num_goals": 1}
    blind = played(envs.MazeRunner(**settings, position=False, observable=True))
    assert blind["hidden"][..., 49:].equal(
        played(envs.MazeRunner(**settings))["observation"][..., :2]
    )


def test_a_twin_in_repeated_trials_shows_it_too_and_other_environments_know_nothing_of_it():
    env = envs.RepeatedTrials(
        envs.PassiveTMaze(num_envs=2, length=3, observable=True), num_trials=2
    )
    assert played(env)["hidden"].shape == (2, 25, 1)
    with pytest.raises(TypeError, match="observable"):
        envs.RepeatedTrials(env, observable=True)
