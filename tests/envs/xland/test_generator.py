"""Rulesets have the distribution of the original's generator, as its recorded frequencies show."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from scipy.stats import chi2_contingency
from yamame_envs.streams import fold
from yamame_envs.xland.rulesets import LEVELS, Distribution, canonical, draw_rulesets

FOLDER = Path(__file__).parent
SPEC = importlib.util.spec_from_file_location(
    "xland_reference", Path(__file__).parents[3] / "tools" / "xland_reference.py"
)
reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference)
NUM = 6000
OTHERS = {
    "trivial": Distribution(0, 0.0, 0, 4),
    "small": Distribution(1, 0.35, 2, 2),
    "medium": Distribution(2, 0.13, 3, 2),
    "high": Distribution(3, 0.1, 3, 1),
}
"""Distributions close to those of the levels."""


def least_probable(settings, level):
    """Return the smallest p-value of the hypotheses that recorded and drawn rulesets have the same
    frequencies.
    """
    recorded = json.loads((FOLDER / "generator.json").read_text())[level]
    drawn = reference.frequencies_of(reference.native_rulesets(settings, NUM))
    assert recorded.keys() == drawn.keys()
    found = []
    for name, counts in recorded.items():
        values = sorted({*counts, *drawn[name]})
        parts = (counts, drawn[name])
        table = torch.tensor([[part.get(value, 0) for value in values] for part in parts])
        # Rare values together, because the test holds for frequent ones.
        is_rare = table.sum(0) < 20
        table = torch.cat([table[:, ~is_rare], table[:, is_rare].sum(1, keepdim=True)], 1)
        table = table[:, table.sum(0) > 0]
        if table.shape[1] > 1:
            found.append(float(chi2_contingency(table.numpy()).pvalue))
    return min(found)


@pytest.mark.parametrize("level", LEVELS)
def test_rulesets_are_drawn_as_the_original_draws_them(level):
    assert least_probable(LEVELS[level], level) > 1e-4


@pytest.mark.parametrize("level", LEVELS)
def test_a_distribution_that_is_close_is_told_apart(level):
    assert least_probable(OTHERS[level], level) < 1e-6


@pytest.mark.parametrize("level", LEVELS)
def test_rulesets_are_functions_of_their_keys_and_hardly_ever_come_again(level):
    keys = fold(torch.tensor(4), torch.arange(500))
    drawn = draw_rulesets(keys, LEVELS[level])
    some = draw_rulesets(keys[100:200], LEVELS[level])
    assert all(torch.equal(drawn[name][100:200], value) for name, value in some.items())
    rows = torch.cat([value.flatten(1) for value in drawn.values()], 1)
    assert len(rows.unique(dim=0)) > 495


def test_unused_rules_and_objects_come_last():
    drawn = draw_rulesets(torch.arange(500), LEVELS["medium"])
    for name in ("rules", "objects"):
        is_used = drawn[name][..., 0] > 0
        assert not (is_used[:, 1:] & ~is_used[:, :-1]).any()
        assert 0 < (~is_used).sum() < is_used.numel()


def test_every_product_of_the_tree_is_needed():
    """Each tile of the goal lies in the room, or a rule produces it."""
    for goal, rules, objects in reference.native_rulesets(LEVELS["high"], 300):
        there = {tuple(tile) for tile in objects}
        # Rules are in the order of the tree, so those that come later produce what is consumed.
        for rule in reversed(rules):
            if all(tuple(rule[i : i + 2]) in there for i in range(1, len(rule) - 2, 2)):
                there.add(tuple(rule[-2:]))
        assert all(tuple(goal[i : i + 2]) in there for i in range(1, len(goal), 2))


def test_the_same_ruleset_written_otherwise_is_the_same():
    # A ball above a key, and a key below a ball; as a goal, and as a rule.
    goal = torch.tensor([[7, 7, 1, 3, 2], [9, 3, 2, 7, 1], [8, 3, 2, 7, 1]], dtype=torch.uint8)
    tiles = goal[:, 1:].tolist()
    one, other, third = ([kind, *tiles[i], 4, 4] for i, kind in enumerate((4, 6, 5)))
    hold = [1, 5, 3, 4, 5, 0, 0]
    rules = torch.tensor([[one, hold], [hold, other], [hold, third]], dtype=torch.uint8)
    same = canonical({"goal": goal, "rules": rules})
    for value in same.values():
        assert torch.equal(value[0], value[1])
        assert not torch.equal(value[0], value[2])


@pytest.mark.parametrize(
    ("name", "value"),
    [("depth", 4), ("depth", -1), ("prune", 1.5), ("distractor_rules", -1), ("depth", 0.5)],
)
def test_numbers_out_of_range_are_named(name, value):
    with pytest.raises(ValueError, match=f"Distribution: {name} must be"):
        Distribution(**{name: value})


def test_two_tiles_near_each_other_have_no_order():
    one, other = (3, 1), (4, 2)
    goal = torch.tensor([[4, *one, *other], [4, *other, *one]], dtype=torch.uint8)
    rules = torch.tensor([[[3, *one, *other, 5, 1]], [[3, *other, *one, 5, 1]]], dtype=torch.uint8)
    for first, second in canonical({"goal": goal, "rules": rules}).values():
        assert torch.equal(first, second)
