"""What a setting may be: types from annotations, smallest values."""

from collections.abc import Sequence
from typing import Annotated, Literal, NotRequired

import pytest
from yamame.checks import UsageError
from yamame.cli.validation import check_arguments, check_settings, fits, undeclared
from yamame.system.budget import Budget

SETTINGS = {
    "seed": int,
    "resume": bool,
    "device": str,
    "rate": float,
    "share": Annotated[float, 0],
    "gammas": list[float],
    "source": str | list[str],
    "greedy": bool | None,
    "run": {"name": str | None, "overwrite": bool},
    "budget": Budget,
    "changed": dict,
    "node": dict | None,
    "checkpoint": {"keep": Annotated[int, 1], "limit": Annotated[int, 1] | None},
    "envs": NotRequired[Annotated[int, range(1, 9)]],
    "maybe": NotRequired[int],
}
VALUES = {
    "seed": 0,
    "resume": False,
    "device": "cpu",
    "rate": 0.5,
    "share": 0,
    "gammas": [0.9, 0.99],
    "source": "a",
    "greedy": None,
    "run": {"name": None, "overwrite": False},
    "budget": {"minutes": 5.0},
    "changed": {},
    "node": {"_target_": "torch.nn.Linear", "in_features": 2},
    "checkpoint": {"keep": 2, "limit": None},
}


def without(name):
    return {key: value for key, value in VALUES.items() if key != name}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": "abc"}, "seed: must be an integer, got 'abc'"),
        ({"seed": True}, "seed: must be an integer, got true"),
        ({"seed": 1.5}, "seed: must be an integer, got 1.5"),
        ({"seed": None}, "seed: must be an integer, got null"),
        ({"resume": "no"}, "resume: must be true or false, got 'no'"),
        ({"resume": 0}, "resume: must be true or false, got 0"),
        ({"device": 3}, "device: must be a text, got 3"),
        ({"rate": "fast"}, "rate: must be a number, got 'fast'"),
        ({"maybe": "abc"}, "maybe: must be an integer, got 'abc'"),
        ({"seed": 10**20}, "seed: must be an integer of 64 bits, got 100000000000000000000"),
        ({"rate": float("inf")}, "rate: must be a number, got inf"),
        ({"gammas": [float("nan")]}, "gammas: must be a list of numbers, got [nan]"),
        ({"device": ""}, "device: must be a text of printable signs, got ''"),
        ({"device": "a\nb"}, "device: must be a text of printable signs, got 'a\\nb'"),
        ({"share": -1}, "share: must be a number of at least 0, got -1"),
        ({"share": float("nan")}, "share: must be a number of at least 0, got nan"),
        ({"gammas": 0.9}, "gammas: must be a list of numbers, got 0.9"),
        ({"gammas": [0.9, "x"]}, "gammas: must be a list of numbers, got [0.9, 'x']"),
        ({"source": 3}, "source: must be a text or a list, got 3"),
        ({"greedy": "off"}, "greedy: must be true or false or null, got 'off'"),
        ({"run": {"name": 5, "overwrite": False}}, "run.name: must be a text or null, got 5"),
        (
            {"run": {"name": None, "overwrite": "no"}},
            "run.overwrite: must be true or false, got 'no'",
        ),
        ({"run": "mine"}, "run: must be a mapping with name, overwrite, got 'mine'"),
        ({"budget": {"minutes": "abc"}}, "budget.minutes: must be a number or null, got 'abc'"),
        (
            {"budget": {"minutes": -1}},
            "budget: Budget: minutes must be a number greater than 0 or null, got -1",
        ),
        ({"budget": 5}, "budget: must be a mapping with env_steps, updates, minutes, clock, got 5"),
        ({"changed": None}, "changed: must be a mapping, got null"),
        ({"node": 3}, "node: must be a mapping or null, got 3"),
        (
            {"checkpoint": {"keep": 0, "limit": 1}},
            "checkpoint.keep: must be an integer of at least 1, got 0",
        ),
        (
            {"checkpoint": {"keep": 2, "limit": 0}},
            "checkpoint.limit: must be an integer of at least 1 or null, got 0",
        ),
        ({"envs": 9}, "envs: must be an integer in 1..8, got 9"),
        ({"envs": True}, "envs: must be an integer in 1..8, got true"),
        ({"checkpoint": {}}, "checkpoint.keep: must be given, got ~checkpoint.keep"),
    ],
)
def test_a_value_that_a_setting_cannot_have_is_refused_by_name(changed, message):
    with pytest.raises(UsageError) as raised:
        check_settings(SETTINGS, {**VALUES, **changed})
    assert str(raised.value) == message


def test_a_setting_that_was_taken_away_is_refused_by_name():
    with pytest.raises(UsageError, match=r"^node: must be given, got ~node$"):
        check_settings(SETTINGS, without("node"))


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"rate": 1},
        {"resume": True},
        {"greedy": True},
        {"gammas": [1]},
        {"source": ["a", "b"]},
        {"budget": {"minutes": None, "env_steps": 1e6}},
        {"changed": {"size": "what the environment takes"}},
        {"node": None},
        {"node": {"_target_": "torch.nn.ReLU"}},
        {"checkpoint": {"keep": 1, "limit": 1}},
        {"maybe": 3},
        {"more": 3},
    ],
)
def test_a_value_that_a_setting_can_have_is_not_refused(changed):
    check_settings(SETTINGS, {**VALUES, **changed})


def build(
    size: int,
    rate: float = 0.5,
    on: bool = False,
    kind: Literal["a", "b"] | None = None,
    lengths: Sequence[int] = (),
    wrong: int = None,  # noqa: RUF013 (as foreign libraries write it)
    function: object = None,
) -> None: ...


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": "big"}, "net.size: must be an integer, got 'big'"),
        ({"on": "off"}, "net.on: must be true or false, got 'off'"),
        ({"kind": "c"}, "net.kind: must be one of 'a', 'b' or null, got 'c'"),
        ({"lengths": 3}, "net.lengths: must be a list, got 3"),
        ({"wrong": "x"}, "net.wrong: must be an integer, got 'x'"),
    ],
)
def test_an_argument_of_another_type_than_its_annotation_is_refused_by_name(values, message):
    with pytest.raises(UsageError) as raised:
        check_arguments(build, values, "net")
    assert str(raised.value) == message


def test_an_argument_that_its_annotation_or_its_default_admits_is_not_refused():
    values = {"size": 3, "rate": 1, "on": True, "kind": "a", "lengths": [1, 2], "wrong": None}
    check_arguments(build, {**values, "function": "f", "unknown": 3, "_target_": "a.b"}, "net")


def test_one_is_not_true_and_true_is_not_one():
    assert [fits(1, bool), fits(True, int), fits(True, float), fits(False, bool)] == [
        False,
        False,
        False,
        True,
    ]


def test_keys_that_nothing_declares_are_found_in_groups_and_beside_them_but_not_in_free_data():
    more = {
        "run": VALUES["run"] | {"more": 1},
        "budget": {"more": 1},
        "changed": {"free": 1},
        "rest": {},
    }
    assert sorted(undeclared(VALUES | more, SETTINGS)) == ["budget.more", "rest", "run.more"]
