"""Actions in files count from where their space starts, or from 0."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from recorded_episodes import (
    ACTIONS,
    LENGTH,
    OBSERVATIONS,
    PAIR,
    SHIFTED,
    changed,
    hot,
    make_env,
    play,
    read,
)
from yamame.data import TrajectoryFormat, torchrl


def test_actions_that_count_from_0_in_a_file_are_read_so_if_asked_and_told_otherwise(
    tmp_path, capsys
):
    episode = play(OBSERVATIONS["start"], ACTIONS["start"])
    exported = changed(episode, actions=episode.stored["action"][:-1].numpy())
    capsys.readouterr()
    read(exported, tmp_path)
    told = capsys.readouterr().err
    assert "count from 1" in told
    assert "+data.source.indices=true" in told
    assert read(exported, tmp_path, indices=True) == []
    assert read(episode, tmp_path) == []
    plain_episode = play(OBSERVATIONS["start"], ACTIONS["discrete"])
    capsys.readouterr()
    assert read(plain_episode, tmp_path) == read(plain_episode, tmp_path, indices=True) == []
    assert capsys.readouterr().err == ""


COUNTED = {
    "tuple": PAIR,
    "dict": spaces.Dict(
        {"a": spaces.Discrete(20, start=-3), "b": spaces.MultiDiscrete([3, 4], start=[5, 0])}
    ),
    "nested": spaces.Tuple(
        [spaces.MultiBinary(2), spaces.Dict({"c": spaces.Box(-3, 30, (2,), np.int16)})]
    ),
    "table": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [-1, 7]])),
}


def from_zero(space, value):
    """The value of a space that starts at 0 everywhere."""
    if isinstance(space, spaces.Dict):
        return {key: from_zero(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(
            from_zero(part, inner) for part, inner in zip(space.spaces, value, strict=True)
        )
    start = space.low if isinstance(space, spaces.Box) else getattr(space, "start", 0)
    return value - start


@pytest.mark.parametrize("name", COUNTED)
def test_actions_of_every_structure_may_count_from_0_and_the_line_says_how_they_were_read(
    name, tmp_path, capsys
):
    episode = play(OBSERVATIONS["float32"], COUNTED[name])
    counted = changed(episode, actions=from_zero(COUNTED[name], episode.recorded["actions"]))
    capsys.readouterr()
    assert read(counted, tmp_path, indices=True) == []
    assert "count from 0;" in capsys.readouterr().err
    assert read(episode, tmp_path) == []
    assert "as in their space;" in capsys.readouterr().err
    assert read(counted, tmp_path) != []  # a negative control
    assert read(episode, tmp_path, indices=True) != []


@pytest.mark.parametrize(
    "space", [spaces.Discrete(20, start=1), SHIFTED, PAIR], ids=["one", "two", "tuple"]
)
def test_one_hots_mean_the_same_either_way_and_no_line_says_otherwise(space, tmp_path, capsys):
    episode = play(OBSERVATIONS["float32"], space)
    actions = episode.recorded["actions"]
    if space is PAIR:
        given = tuple(hot(part, values) for part, values in zip(space.spaces, actions, strict=True))
    else:
        given = hot(space, actions)
    capsys.readouterr()
    for indices in (False, True):
        assert read(changed(episode, actions=given), tmp_path, indices=indices) == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("space", [spaces.Discrete(4, start=1), PAIR], ids=["discrete", "tuple"])
def test_actions_that_only_the_other_convention_takes_are_refused_with_the_setting(space, tmp_path):
    def numbers(first):
        column = np.arange(LENGTH) % 4 + first
        return column if space is not PAIR else (column, np.arange(LENGTH) % 3)

    episode = play(OBSERVATIONS["float32"], space)
    assert "+data.source.indices=true" in read(changed(episode, actions=numbers(0)), tmp_path)
    assert "+data.source.indices=false" in read(
        changed(episode, actions=numbers(1)), tmp_path, indices=True
    )
    for indices in (False, True):  # no convention takes these
        told = read(changed(episode, actions=numbers(9)), tmp_path, indices=indices)
        assert "must be" in told
        assert "indices" not in told


def test_an_action_with_more_parts_than_its_space_is_refused(tmp_path):
    episode = play(OBSERVATIONS["float32"], PAIR)
    told = read(
        changed(episode, actions=(*episode.recorded["actions"], np.zeros(LENGTH))), tmp_path
    )
    assert "'2'" in str(told)


def test_rollouts_of_torchrl_hold_actions_as_the_environment_takes_them():
    env = make_env(OBSERVATIONS["start"], ACTIONS["start"])
    steps = env.rollout(LENGTH)[0]
    read_steps = torchrl(steps, format=TrajectoryFormat(env)).stores[0].get([0])[0]
    assert torch.equal(read_steps["action"][:-1], steps["action"])
    own = steps.clone().set("action", steps["action"] + 1)
    read_own = torchrl(own, format=TrajectoryFormat(env), indices=False).stores[0].get([0])[0]
    assert torch.equal(read_own["action"], read_steps["action"])


def test_columns_side_by_side_of_a_space_that_does_not_count_from_0_are_refused(tmp_path):
    episode = play(OBSERVATIONS["float32"], ACTIONS["tuple"])
    flat = np.stack(episode.recorded["actions"], 1)
    assert "entry 'action' must have the shape" in read(changed(episode, actions=flat), tmp_path)
    assert read(changed(episode, actions=flat - [3, 0]), tmp_path, indices=True) == []
    counted = play(OBSERVATIONS["float32"], spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)]))
    flat = np.stack(counted.recorded["actions"], 1)
    assert read(changed(counted, actions=flat), tmp_path) == []
