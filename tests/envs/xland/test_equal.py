"""XLand plays the game of xminigrid 0.9.3: in transitions that it recorded, and with it where it is
installed.
"""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from scipy.stats import chisquare
from yamame.execution.capturing import recording
from yamame_envs.streams import fold
from yamame_envs.xland.cells import DOOR_COLOURS
from yamame_envs.xland.rooms import draw_layouts, make_rooms
from yamame_envs.xland.rulesets import LEVELS

FOLDER = Path(__file__).parent
SPEC = importlib.util.spec_from_file_location(
    "xland_reference", Path(__file__).parents[3] / "tools" / "xland_reference.py"
)
reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference)
CASES = [(rooms, level) for rooms in reference.GRIDS for level in LEVELS]


@pytest.mark.parametrize("captured", [False, True])
def test_recorded_transitions_are_repeated(captured):
    goals = changes = 0
    for rooms, level in CASES:
        states, wanted = reference.recorded_transitions(rooms, level)
        if captured:
            with recording():
                found = reference.native_outcomes(rooms, states)
        else:
            found = reference.native_outcomes(rooms, states)
        assert reference.differing(found, wanted) == {}, (rooms, level)
        goals += int(wanted["reached"].sum())
        by_hand = torch.isin(states["action"], torch.tensor([3, 4, 5]))
        changes += int(((wanted["grid"] != states["grid"]).any(1) & ~by_hand).sum())
    # Of forward moves, only rules change the grid.
    assert goals > 10
    assert changes > 10


@pytest.mark.parametrize("change", ["turned", "no rules", "other goal"])
def test_another_game_differs_from_the_recorded_one(change):
    names = set()
    for rooms, level in CASES:
        states, wanted = reference.recorded_transitions(rooms, level)
        if change == "turned":
            states["direction"] = (states["direction"] + 1) % 4
        elif change == "no rules":
            states["rules"] = torch.zeros_like(states["rules"])
        else:
            states["goal"] = states["goal"].roll(1, 0)
        names |= reference.differing(reference.native_outcomes(rooms, states), wanted).keys()
    expected = {"turned": "place", "no rules": "grid", "other goal": "reached"}
    assert expected[change] in names


def test_walls_and_doors_are_those_of_every_registered_grid():
    """Walls are equal; doors are where they were, and as often."""
    saved = json.loads((FOLDER / "rooms.json").read_text())
    assert len(saved["layouts"]) == 21
    for name, layout in saved["layouts"].items():
        kind, _, size = name.partition("-")
        rooms = make_rooms(kind, int(size))
        cells, codes, _ = draw_layouts(fold(torch.tensor(3), torch.arange(600)), rooms, 4)
        doors = rooms.doors.flatten().unique().tolist()
        walls = rooms.walls.flatten().nonzero().flatten().tolist()
        # A cell that always has a door is no wall of the original.
        assert {*layout["walls"]} | {int(cell) for cell in layout["doors"]} == {*walls}
        assert {int(cell) for cell in layout["doors"]} == {*doors}
        if not doors:
            continue
        count = cells[:, 4:].flatten().long().bincount(minlength=int(size) ** 2)
        drawn = torch.stack([count[doors], torch.tensor(list(layout["doors"].values()))])
        expected = drawn.sum(0) / 2
        assert chisquare(drawn[0], expected * drawn[0].sum() / expected.sum()).pvalue > 1e-5
        # All door cells of one door are equally likely, so the numbers are close to each other.
        assert chisquare(drawn[1], expected * drawn[1].sum() / expected.sum()).pvalue > 1e-5
        colours = (codes // 256).flatten().long().unique().tolist()
        assert colours == sorted(DOOR_COLOURS)
        assert [i for i, number in enumerate(layout["colours"]) if number] == colours


@pytest.mark.skipif(importlib.util.find_spec("xminigrid") is None, reason="needs xminigrid")
def test_random_transitions_equal_those_of_xminigrid():
    seen = reference.compare(100_000, seed=2)
    assert seen["transitions"] >= 100_000
    assert seen["goals reached"] > 500
