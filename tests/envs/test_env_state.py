import copy
import pickle

import pytest
import torch
from yamame.checks import ArgumentError
from yamame_envs import MazeRunner, XLand


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
    with pytest.raises(
        ValueError, match=r"streams must be torch.int64 \[2\], got 'torch.int64 \[3\]'"
    ):
        maze(num_envs=2).load_state_dict(maze(num_envs=3).state_dict())
    with pytest.raises(ValueError, match="must hold episodes, streams, task_hash, got"):
        maze(num_envs=2).load_state_dict({})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 7}, "the same tasks"),
        ({"level": "small"}, "the same tasks"),
        ({"split": "test"}, "the same tasks"),
        ({"trial_limit": 20}, "the same tasks and time limit"),
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
    with pytest.raises(
        ArgumentError, match="state_dict must be of an environment with the same tasks"
    ):
        corridor(num_envs=2).load_state_dict(env.state_dict())


@pytest.mark.parametrize("num_goals", [1, 3])
def test_a_state_of_another_number_of_goals_is_refused(num_goals):
    saved = MazeRunner(num_envs=2, num_goals=2, time_limit=20)
    saved.reset()
    other = MazeRunner(num_envs=2, num_goals=num_goals, time_limit=20)
    with pytest.raises(ArgumentError, match=r"task\.instruction must be"):
        other.load_state_dict(saved.state_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: {**state, "streams": state["streams"].float()}, "streams must be"),
        (lambda state: {**state, "streams": [1, 2]}, "streams must be a tensor, got 'list'"),
        (lambda state: {**state, "state.place": [1, 2]}, r"state\.place must be a tensor"),
        (lambda state: 5, "state_dict must be a mapping, got 'int'"),
        (lambda state: {**state, "other": state["streams"]}, "must hold episodes, streams"),
        (lambda state: {**state, "task.other": state["streams"]}, "task must hold"),
        (lambda state: {**state, "state.other": state["streams"]}, "state must hold"),
        (
            lambda state: {name: state[name] for name in state if name != "task.task_seed"},
            "task must hold task_seed",
        ),
    ],
)
def test_a_damaged_state_is_refused(change, message, corridor, same):
    env = corridor(num_envs=2)
    env.reset()
    other = corridor(num_envs=2, seed=5)
    before = other.reset().clone()
    with pytest.raises(ArgumentError, match=message):
        other.load_state_dict(change(env.state_dict()))
    same(other.present(), before)


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
