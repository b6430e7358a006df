"""What environments say is new in an evaluation, counted by what the words mean and not by the hash
of the split.
"""

import pytest
import torch
from yamame.testing import task_overlap
from yamame_envs import DarkKeyDoor, MazeRunner, MetaFrozenLake, PackageDelivery, XLand
from yamame_envs.streams import fold

MEANING = {
    "new mazes": ["walls"],
    "new goals in known mazes": ["walls", "instruction"],
    "new combinations of maze, goals and actions": ["walls", "instruction", "actions"],
    "new roads": ["onward"],
    "new goals on known roads": ["onward", "instruction"],
    "new combinations of road and button": ["onward", "button"],
    "new combinations of road, button and goals": ["onward", "button", "instruction"],
    "new rooms": ["key", "door"],
    "new starts in known rooms": ["key", "door", "start"],
    "new combinations of room, start and actions": ["key", "door", "start", "actions"],
    "new lakes": ["holes"],
    "new actions on known lakes": ["holes", "effects"],
    "new goals": ["goal"],
    "new rulesets": ["goal", "rules"],
}
"""Entries of a task in which, by a description, each task of an evaluation differs from all tasks
of training.
"""
MAZE = (MazeRunner, {"size": 9, "num_goals": 1})
ROAD = (PackageDelivery, {"length": 6, "min_packages": 1, "max_packages": 1})
ROOM = (DarkKeyDoor, {"size": 4})
LAKE = (MetaFrozenLake, {"size": 4})
GRID = (XLand, {"num_trials": 1})
PERMUTED, HARD = {"randomize_actions": True}, {"hard": True}
ENVS = {
    "maze": (MAZE, {}),
    "maze, permuted": (MAZE, PERMUTED),
    "maze and goals": (MAZE, {"split_by": "walls_and_goals"}),
    "maze and goals, permuted": (MAZE, {"split_by": "walls_and_goals", **PERMUTED}),
    "road": (ROAD, {}),
    "road and goals": (ROAD, {"split_by": "roads_and_goals"}),
    "room": (ROOM, {}),
    "room, permuted": (ROOM, PERMUTED),
    "room and start": (ROOM, {"split_by": "rooms_and_starts"}),
    "room and start, permuted": (ROOM, {"split_by": "rooms_and_starts", **PERMUTED}),
    "lake": (LAKE, {}),
    "hard lake": (LAKE, HARD),
    "lake and actions": (LAKE, {"split_by": "lakes_and_actions"}),
    "hard lake and actions": (LAKE, {"split_by": "lakes_and_actions", **HARD}),
    "goal without rules": (GRID, {}),
    "goal and rules": (GRID, {"level": {"depth": 1, "prune": 0.9}}),
    "goal": (GRID, {"level": "small", "split_by": "goals"}),
}
TRAINED, EVALUATED = fold(torch.arange(3000), 1), fold(torch.arange(200), 2)


def make(name, split):
    (kind, settings), more = ENVS[name]
    return kind(split=split, **settings, **more)


def share_met(training, evaluation, entries):
    """The share of tasks of an evaluation that equal one of training in these entries."""

    def rows(env, seeds):
        task = env.tasks_of(seeds)
        columns = [task[entry].reshape(len(seeds), -1).double() for entry in entries]
        return list(map(tuple, torch.cat(columns, 1).tolist()))

    known, wanted = set(rows(training, TRAINED)), rows(evaluation, EVALUATED)
    return sum(row in known for row in wanted) / len(wanted)


@pytest.mark.parametrize("name", ENVS)
def test_what_an_environment_says_is_new_is_never_met_in_training(name):
    training, evaluation = make(name, "train"), make(name, "test")
    entries = MEANING[evaluation.novelty]
    assert share_met(training, evaluation, entries) == 0
    # The negative control: without a split some are met, but for combinations of which there are
    # very many.
    drawn = share_met(make(name, "all"), make(name, "all"), entries)
    assert drawn > (0 if "actions" in entries else 0.05)


@pytest.mark.parametrize(
    ("name", "stronger"),
    [
        ("maze and goals, permuted", "new goals in known mazes"),
        ("room and start, permuted", "new starts in known rooms"),
        ("road", "new roads"),
        ("road and goals", "new goals on known roads"),
    ],
)
def test_the_count_finds_a_description_that_promises_too_much(name, stronger):
    training, evaluation = make(name, "train"), make(name, "test")
    met = share_met(training, evaluation, MEANING[stronger])
    assert met > 0.1
    counted = task_overlap(
        training, evaluation, trained=TRAINED, evaluated=EVALUATED, entries=MEANING[stronger]
    )
    assert counted.drawn == pytest.approx(met)
    by_hash = task_overlap(training, evaluation, trained=TRAINED, evaluated=EVALUATED)
    assert by_hash.drawn == 0


def test_entries_that_tasks_do_not_have_are_refused():
    training, evaluation = make("maze", "train"), make("maze", "test")
    with pytest.raises(ValueError, match=r"entries must be among .*'walls'.*, got .*'holes'"):
        task_overlap(training, evaluation, trained=TRAINED, evaluated=EVALUATED, entries=["holes"])
