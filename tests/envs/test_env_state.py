import copy
import pickle

import pytest
import torch
from yamame.checks import ArgumentError
from yamame_envs import XLand


def test_the_present_timestep_is_the_one_shown_last(make, play, same):
    env = make(num_envs=4)
    same(env.reset(), env.present())
    for steps in (1, 7, 12):
        _, td = play(env, steps)
        same(td, env.present())


def test_a_new_environment_goes_on_from_a_saved_one(make, play, same, different):
    env = make(num_envs=4, seed=9)
    _, td = play(env, 17)
    saved, td = copy.deepcopy(env.state_dict()), td.clone()
    expected, _ = play(env, 50, td=td.clone(), start=17)
    restored = make(num_envs=4, seed=1)
    restored.load_state_dict(saved)
    same(restored.present(), td)
    continued, _ = play(restored, 50, td=td.clone(), start=17)
    for a, b in zip(expected, continued, strict=True):
        same(a, b)
    wrong, _ = play(make(num_envs=4, seed=1), 50, start=17)
    assert any(different(a, b) for a, b in zip(expected, wrong, strict=True))


def test_a_saved_state_does_not_follow_the_environment(play, maze):
    env = maze(num_envs=2)
    play(env, 3)
    saved = env.state_dict()
    before = copy.deepcopy(saved)
    play(env, 30, td=env.reset())
    assert all(torch.equal(saved[name], before[name]) for name in before)


def test_a_state_saved_before_the_first_reset_can_be_restored(play, same, corridor):
    env = corridor(num_envs=2, seed=3)
    restored = corridor(num_envs=2, seed=8)
    restored.load_state_dict(env.state_dict())
    same(torch.stack(play(env, 20)[0]), torch.stack(play(restored, 20)[0]))


def test_a_state_of_another_size_is_refused(maze):
    with pytest.raises(ValueError, match="streams must hold 2 envs, got '3 envs'"):
        maze(num_envs=2).load_state_dict(maze(num_envs=3).state_dict())
    with pytest.raises(ValueError, match="must hold streams, got"):
        maze(num_envs=2).load_state_dict({})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 7}, "draws the same tasks"),
        ({"level": "small"}, "draws the same tasks"),
        ({"split": "test"}, "draws the same tasks"),
        ({"view_size": 7}, "timestep.observation must be torch.uint8 .2, 7, 7, 2., got"),
        ({"direction": False}, "timestep must hold done, is_init"),
        ({"observable": True}, "timestep must hold direction, done, hidden"),
    ],
)
def test_a_state_of_other_settings_is_refused(settings, message, same):
    saved = XLand(num_envs=2, size=6)
    first = saved.reset()
    other = XLand(num_envs=2, **{"size": 6, **settings}, seed=5)
    before = other.reset().clone()
    with pytest.raises(ArgumentError, match=message):
        other.load_state_dict(saved.state_dict())
    same(other.present(), before)
    again = XLand(num_envs=2, size=6, seed=5)
    again.load_state_dict(saved.state_dict())
    same(again.present(), first)


def test_a_state_of_another_environment_is_refused(maze, corridor):
    env = maze(num_envs=2)
    env.reset()
    with pytest.raises(ArgumentError, match="state_dict must be of an environment that draws"):
        corridor(num_envs=2).load_state_dict(env.state_dict())


def test_a_state_of_an_earlier_version_has_no_hash_of_its_tasks(maze, same):
    env = maze(num_envs=2)
    env.reset()
    saved = env.state_dict()
    del saved["task_hash"]
    restored = maze(num_envs=2, seed=9)
    restored.load_state_dict(saved)
    same(restored.present(), env.present())


def test_copies_and_pickles_go_on_alike(make, play, same, drift):
    if make is drift:
        env = drift(num_envs=2)
        twins = [copy.deepcopy(env)]
    else:
        env = make(num_envs=2)
        twins = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    expected = torch.stack(play(env, 20)[0])
    for twin in twins:
        same(torch.stack(play(twin, 20)[0]), expected)
