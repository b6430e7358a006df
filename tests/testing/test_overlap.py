"""Training meets no task of an evaluation, in any native environment with a split.

Tasks that relabelling creates are counted as well.
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
    "objects": partial(yamame_envs.XLand, size=6),
}
WITHOUT_SPLIT = {
    yamame_envs.PassiveTMaze,
    yamame_envs.ActiveTMaze,
    yamame_envs.Wind,
    yamame_envs.Bandits,
}
# Different folds, so that no task is drawn twice because its seed is the same.
TRAINED = fold(torch.arange(1600), 1)
EVALUATED = fold(torch.arange(256), 2)


def native_environments():
    """Return all concrete classes of natively batched environments."""
    classes = set()
    # `dir` also lists names that are imported on first use.
    for name in dir(yamame_envs):
        value = getattr(yamame_envs, name)
        if not inspect.isclass(value) or inspect.isabstract(value):
            continue
        if issubclass(value, BatchedEnv):
            classes.add(value)
    return classes


def has_split(env):
    return "split" in inspect.signature(env.__init__).parameters


def count(make, *, trains="train", evaluates="test", rejects=True):
    """Count the overlap of two splits of an environment.

    Args:
        make: Partial constructor of the environment.
        trains: Split of training.
        evaluates: Split of the evaluation.
        rejects: If False, relabelling does not reject held-out instructions.
    """
    torch.manual_seed(0)
    training = make(num_envs=400, split=trains)
    evaluation = make(split=evaluates)

    # The default split is by layout alone, so its hash is that of the layout.
    settings = dict(make.keywords)
    settings.pop("split_by", None)
    layouts = make.func(**settings)

    relabel = None
    if isinstance(training, GoalEnv):
        held_out = training.held_out_instructions if rejects else None
        relabel = Relabel("all", held_out=held_out)
    return task_overlap(
        training,
        evaluation,
        trained=TRAINED,
        evaluated=EVALUATED,
        relabel=relabel,
        num_draws=4,
        layout_hash=layouts.task_hash,
    )


def test_every_native_environment_is_counted_or_has_no_split():
    native = native_environments()
    counted = {make.func for make in ENVS.values()}
    assert counted == {env for env in native if has_split(env)}
    assert native - counted == WITHOUT_SPLIT


@pytest.mark.parametrize("name", ENVS)
def test_no_task_of_an_evaluation_is_drawn_or_made_by_relabelling(name):
    counted = count(ENVS[name])
    assert counted.evaluated > 8
    assert counted.trained > 20
    assert counted.drawn == 0
    assert not counted.met
    # Negative control: without a split, training meets many of them.
    control = count(ENVS[name], trains="all", evaluates="all")
    assert control.drawn > 0.2
    assert control.met is None or control.met >= control.drawn


@pytest.mark.parametrize("name", ENVS)
def test_layouts_are_new_unless_their_tasks_alone_are(name):
    layouts = count(ENVS[name]).layouts
    if "and" in name:
        assert layouts > 0.5
    else:
        assert layouts == 0


@pytest.mark.parametrize("name", ["maze and goals", "small maze and goals", "road and goals"])
def test_relabelling_that_rejects_nothing_makes_tasks_of_the_evaluation(name):
    assert count(ENVS[name], rejects=False).met > 0.02


def test_the_sides_may_be_exchanged():
    assert count(ENVS["maze and goals"], trains="test", evaluates="train").met == 0


def test_without_tasks_or_with_too_few_it_raises():
    training = MAZE(num_envs=4)
    evaluation = MAZE()
    with pytest.raises(ValueError, match=r"tasks .* got 0"):
        task_overlap(training, evaluation, trained=TRAINED[:0], evaluated=EVALUATED)
    relabel = Relabel("all")
    with pytest.raises(ValueError, match=r"tasks of training .* 4.* got 3"):
        task_overlap(
            training, evaluation, trained=TRAINED[:3], evaluated=EVALUATED, relabel=relabel
        )


@pytest.mark.parametrize("missing", ["walls", "colour"])
def test_entries_that_tasks_lack_are_named(missing):
    env = DarkKeyDoor(size=4)
    with pytest.raises(ValueError, match=missing):
        task_overlap(env, env, trained=TRAINED, evaluated=EVALUATED, entries=[missing])
