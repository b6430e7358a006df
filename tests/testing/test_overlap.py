"""No task of an evaluation is met in training: every native environment with a split, counted with
its relabelling.
"""

import inspect
from functools import partial

import pytest
import torch
import yamame_envs
from yamame.replay import Relabel
from yamame.testing import task_overlap
from yamame_envs import (
    BatchedEnv,
    DarkKeyDoor,
    GoalEnv,
    MazeRunner,
    MetaFrozenLake,
    PackageDelivery,
)
from yamame_envs.streams import fold

MAZE = partial(MazeRunner, size=9, num_goals=1, time_limit=30)
ROAD = partial(PackageDelivery, length=6, min_packages=1, max_packages=1, time_limit=20)
ENVS = {
    "maze": MAZE,
    "shuffled maze": partial(MAZE, randomize_actions=True),
    "maze and goals": partial(MAZE, split_by="walls_and_goals"),
    "small maze and goals": partial(MAZE, size=7, split_by="walls_and_goals"),
    "road": ROAD,
    "road and goals": partial(ROAD, split_by="roads_and_goals"),
    "room": partial(DarkKeyDoor, size=4),
    "shuffled room": partial(DarkKeyDoor, size=4, randomize_actions=True),
    "room and start": partial(DarkKeyDoor, size=4, split_by="rooms_and_starts"),
    "lake": partial(MetaFrozenLake, size=4),
    "hard lake": partial(MetaFrozenLake, size=4, hard=True),
}
NATIVE = {
    env
    for name in dir(yamame_envs)
    if inspect.isclass(env := getattr(yamame_envs, name))
    and issubclass(env, BatchedEnv)
    and not inspect.isabstract(env)
}
WITHOUT_SPLIT = {
    yamame_envs.PassiveTMaze,
    yamame_envs.ActiveTMaze,
    yamame_envs.Wind,
    yamame_envs.Bandits,
}
TRAINED, EVALUATED = fold(torch.arange(1600), 1), fold(torch.arange(256), 2)


def has_split(env):
    return "split" in inspect.signature(env.__init__).parameters


def count(make, *, trains="train", evaluates="test", rejects=True):
    torch.manual_seed(0)
    training, evaluation = make(num_envs=400, split=trains), make(split=evaluates)
    layouts = training
    if "split_by" in make.keywords:
        settings = {key: value for key, value in make.keywords.items() if key != "split_by"}
        layouts = make.func(**settings)
    relabel = None
    if isinstance(training, GoalEnv):
        relabel = Relabel("all", held_out=training.held_out_instructions if rejects else None)
    seeds = {"trained": TRAINED, "evaluated": EVALUATED}
    return task_overlap(
        training, evaluation, **seeds, relabel=relabel, num_draws=4, layout_hash=layouts.task_hash
    )


def test_every_native_environment_is_counted_or_has_no_split():
    counted = {make.func if isinstance(make, partial) else make for make in ENVS.values()}
    assert counted == {env for env in NATIVE if has_split(env)}
    assert NATIVE - counted == WITHOUT_SPLIT


@pytest.mark.parametrize("name", ENVS)
def test_no_task_of_an_evaluation_is_drawn_or_made_by_relabelling(name):
    counted = count(ENVS[name])
    assert counted.evaluated > 8
    assert counted.trained > 20
    assert counted.drawn == 0
    assert not counted.met
    # The negative control: without a split most are met.
    control = count(ENVS[name], trains="all", evaluates="all")
    assert control.drawn > 0.2
    assert control.met is None or control.met >= control.drawn


@pytest.mark.parametrize("name", ENVS)
def test_layouts_are_new_unless_their_tasks_alone_are(name):
    layouts = count(ENVS[name]).layouts
    assert (layouts > 0.5) if "and" in name else (layouts == 0)


@pytest.mark.parametrize("name", ["maze and goals", "small maze and goals", "road and goals"])
def test_relabelling_that_rejects_nothing_makes_tasks_of_the_evaluation(name):
    assert count(ENVS[name], rejects=False).met > 0.02


def test_the_sides_may_be_exchanged():
    assert count(ENVS["maze and goals"], trains="test", evaluates="train").met == 0


def test_without_tasks_or_too_few_there_is_nothing_to_count():
    training, evaluation = MAZE(num_envs=4), MAZE()
    with pytest.raises(ValueError, match=r"task_overlap: tasks must"):
        task_overlap(training, evaluation, trained=TRAINED[:0], evaluated=EVALUATED)
    with pytest.raises(
        ValueError,
        match=r"task_overlap: tasks of training must be at least 4, one for each env, got 3",
    ):
        task_overlap(
            training, evaluation, trained=TRAINED[:3], evaluated=EVALUATED, relabel=Relabel("all")
        )
