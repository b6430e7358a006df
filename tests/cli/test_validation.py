"""Settings are checked by models, arguments of classes by signatures, and all mistakes are
reported.
"""

import copy
import pickle
import sys
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import pytest
from pydantic import ValidationError, model_validator
from yamame.checks import Bounds, UnitInterval, UsageError
from yamame.cli.command_line import keys_of
from yamame.cli.nodes import plain
from yamame.cli.sections import Config, Count, Node, Section, Side, Target, Text, refuse
from yamame.cli.validation import SettingsError, argument_problems, validated


class Run(Section):
    name: Text | None
    overwrite: bool


class Limits(Section):
    minutes: Annotated[float, Bounds(above=0)] | None
    updates: Count | None

    @model_validator(mode="after")
    def _one_is_given(self) -> Self:
        if self.minutes is None and self.updates is None:
            raise refuse("have minutes or updates")
        return self


class Example(Config):
    seed: Annotated[int, Bounds(least=-9)]
    large: Count
    resume: bool
    mode: Literal["auto"] | bool | None
    device: Text
    rate: float
    share: UnitInterval
    gammas: list[float]
    source: Text | list[Text]
    greedy: bool | None
    run: Run
    limits: Limits
    changed: Node
    node: Target | None
    envs: Side = 1
    maybe: Count | None = None


VALUES = {
    "seed": 0,
    "large": 1,
    "resume": False,
    "mode": "auto",
    "device": "cpu",
    "rate": 0.5,
    "share": 0,
    "gammas": [0.9, 0.99],
    "source": "a",
    "greedy": None,
    "run": {"name": None, "overwrite": False},
    "limits": {"minutes": 5.0, "updates": None},
    "changed": {},
    "node": {"_target_": "torch.nn.Linear", "in_features": 2},
}
REFUSED = [
    ({"seed": "abc"}, "seed", "'abc'"),
    ({"seed": True}, "seed", "true"),
    ({"seed": 1.5}, "seed", "1.5"),
    ({"seed": None}, "seed", "null"),
    ({"seed": -10}, "seed", "-10"),
    ({"large": 10**20}, "large", "100000000000000000000"),
    ({"resume": "no"}, "resume", "'no'"),
    ({"resume": 0}, "resume", "0"),
    ({"mode": 1}, "mode", "1"),
    ({"mode": "later"}, "mode", "'later'"),
    ({"device": 3}, "device", "3"),
    ({"device": ""}, "device", "''"),
    ({"device": "a\nb"}, "device", "'a\\nb'"),
    ({"rate": "fast"}, "rate", "'fast'"),
    ({"rate": True}, "rate", "true"),
    ({"rate": float("inf")}, "rate", "inf"),
    ({"gammas": [float("nan")]}, "gammas", "[nan]"),
    ({"gammas": 0.9}, "gammas", "0.9"),
    ({"gammas": [0.9, "x"]}, "gammas", "[0.9, 'x']"),
    ({"share": -1}, "share", "-1"),
    ({"share": 1.5}, "share", "1.5"),
    ({"share": float("nan")}, "share", "nan"),
    ({"source": 3}, "source", "3"),
    ({"source": ["a", 3]}, "source", "['a', 3]"),
    ({"greedy": "off"}, "greedy", "'off'"),
    ({"run": {"name": 5, "overwrite": False}}, "run.name", "5"),
    ({"run": {"name": None, "overwrite": "no"}}, "run.overwrite", "'no'"),
    ({"run": "mine"}, "run", "'mine'"),
    ({"run": {"name": None}}, "run.overwrite", "~run.overwrite"),
    ({"limits": {"minutes": 0, "updates": None}}, "limits.minutes", "0"),
    (
        {"limits": {"minutes": None, "updates": None}},
        "limits",
        "{'minutes': None, 'updates': None}",
    ),
    ({"limits": 5}, "limits", "5"),
    ({"changed": None}, "changed", "null"),
    ({"changed": [1]}, "changed", "[1]"),
    ({"node": 3}, "node", "3"),
    ({"node": {"in_features": 2}}, "node", "{'in_features': 2}"),
    ({"envs": 1_000_001}, "envs", "1000001"),
    ({"envs": True}, "envs", "true"),
    ({"maybe": "abc"}, "maybe", "'abc'"),
]


@pytest.mark.parametrize(("changed", "key", "value"), REFUSED)
def test_a_value_that_a_setting_cannot_have_is_refused_by_key_and_value(changed, key, value):
    with pytest.raises(UsageError) as raised:
        validated(Example, {**VALUES, **changed})
    message = str(raised.value)
    assert message.startswith(f"{key}: must ")
    assert message.endswith(f", got {value}")


def test_all_wrong_values_are_reported_at_once():
    changed = {
        "seed": "abc",
        "run": {"name": 5, "overwrite": "no"},
        "limits": {"minutes": -1, "updates": -1},
        "surprise": 1,
    }
    values = {**VALUES, **changed}
    del values["node"]
    with pytest.raises(SettingsError) as raised:
        validated(Example, values, overridden=["surprise"])
    keys = [str(problem).partition(":")[0] for problem in raised.value.problems]
    assert sorted(keys) == [
        "limits.minutes",
        "limits.updates",
        "node",
        "run.name",
        "run.overwrite",
        "seed",
        "surprise",
    ]
    assert str(raised.value).splitlines() == [str(problem) for problem in raised.value.problems]
    copied = pickle.loads(pickle.dumps(raised.value))  # as a sweep in other processes has it
    assert str(copied) == str(raised.value)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"rate": 1},
        {"resume": True},
        {"mode": True},
        {"greedy": True},
        {"gammas": [1]},
        {"source": ["a", "b"]},
        {"limits": {"minutes": None, "updates": 3}},
        {"changed": {"size": "an argument of the environment"}},
        {"node": None},
        {"node": {"_target_": "torch.nn.ReLU"}},
        {"maybe": 3},
    ],
)
def test_a_value_that_a_setting_can_have_is_accepted(changed):
    assert plain(validated(Example, {**VALUES, **changed})) == {**VALUES, **changed}


def test_a_key_without_a_field_is_refused_if_the_command_line_has_set_it_and_dropped_otherwise():
    values = {**VALUES, "more": 3, "run": {**VALUES["run"], "other": 1}}
    assert not hasattr(validated(Example, values), "more")
    for key in ("more", "run.other"):
        with pytest.raises(UsageError, match=rf"^{key}: must be a setting"):
            validated(Example, values, overridden=[key, "seed"])


def test_a_key_below_an_unknown_section_is_refused_if_the_command_line_has_set_it():
    unknown = {"limit": {"minutes": 5, "other": {"deep": 1}}, "envz": {"a": 1}}
    values = {**VALUES, **unknown, "run": {**VALUES["run"], "nmae": {"x": 1}}}
    for key, hint in (
        ("limit.minutes", "; did you mean limits.minutes"),
        ("limit.other.deep", ""),
        ("run.nmae.x", "; did you mean run.name"),
    ):
        with pytest.raises(UsageError, match=rf"^{key}: must be a setting .*{hint}"):
            validated(Example, values, overridden=[key])
    # A key that was removed is not there, and a mapping stands for its keys.
    validated(Example, values, overridden=["limit.removed", "limits", "en"])
    typed = keys_of(["+limit={minutes: 5, other: {deep: 1}}"])
    with pytest.raises(SettingsError) as raised:
        validated(Example, values, overridden=typed)
    keys = [problem.key for problem in raised.value.problems]
    assert keys == ["limit.minutes", "limit.other.deep"]


def test_settings_are_typed_and_frozen_and_nodes_know_their_place():
    values = {**VALUES, "node": {"_target_": "a.B", "inner": {"deep": [1]}}, "trust": ["mylab."]}
    settings = validated(Example, values)
    assert (settings.run.name, settings.limits.minutes, settings.rate) == (None, 5.0, 0.5)
    assert (settings.node._target_, settings.node.inner.deep) == ("a.B", [1])
    assert "missing" not in settings.node
    with pytest.raises(AttributeError, match="node has no key 'missing'"):
        _ = settings.node.missing
    with pytest.raises(ValidationError):
        settings.seed = 3
    with pytest.raises(AttributeError):
        settings.node.inner = 3
    plain(settings)["run"]["name"] = "changed"  # a copy
    assert plain(settings.run) == VALUES["run"]
    for copied in (pickle.loads(pickle.dumps(settings)), copy.deepcopy(settings)):
        assert copied == settings
        assert plain(copied) == values


# Arguments of a _target_.


def build(
    size: int,
    rate: float = 0.5,
    on: bool = False,
    kind: Literal["a", "b"] | None = None,
    lengths: Sequence[int] = (),
    pair: tuple[float, float] = (0.9, 0.99),
    share: UnitInterval = 0.0,
    count: Annotated[int, Bounds(least=1)] | None = None,
    part: Node | None = None,
    wrong: int = None,  # noqa: RUF013 (as foreign libraries write it)
    function: object = None,
) -> None: ...


def problems(**values: object) -> list[str]:
    return [str(problem) for problem in argument_problems(build, values, "net")]


@pytest.mark.parametrize(
    ("name", "value", "got"),
    [
        ("size", "big", "'big'"),
        ("size", True, "true"),
        ("size", 10**20, "100000000000000000000"),
        ("on", "off", "'off'"),
        ("on", 1, "1"),
        ("kind", "c", "'c'"),
        ("lengths", 3, "3"),
        ("lengths", [1, "x"], "[1, 'x']"),
        ("pair", ["x"], "['x']"),
        ("share", 1.5, "1.5"),
        ("count", 0, "0"),
        ("wrong", "x", "'x'"),
        ("surprise", 3, "3"),
    ],
)
def test_an_argument_that_a_signature_does_not_take_is_refused_by_key_and_value(name, value, got):
    (problem,) = problems(**{name: value})
    assert problem.startswith(f"net.{name}: must ")
    assert problem.endswith(f", got {got}")


def test_arguments_that_annotations_or_defaults_admit_are_accepted():
    assert problems(size=3, rate=1, on=True, kind="a", lengths=[1, 2], wrong=None) == []
    assert problems(pair=[0, 1], share=1, count=None, function="f", _target_="a.b") == []
    assert problems(part={"_target_": "a.B"}) == []


def test_all_wrong_arguments_are_reported_and_known_ones_are_listed_once():
    found = problems(size="big", first=1, on=2, second=2)
    assert [text.partition(":")[0] for text in found] == [
        "net.size",
        "net.first",
        "net.on",
        "net.second",
    ]
    assert [" size, rate, on" in text.replace("(", " ") for text in found] == [
        False,
        True,
        False,
        False,
    ]


def test_annotations_that_cannot_be_resolved_refuse_no_value():
    def foreign(size: "Unknown"): ...  # noqa: F821

    def anything(size: int, **rest): ...

    assert list(argument_problems(foreign, {"size": "big"}, "net")) == []
    assert len(list(argument_problems(foreign, {"other": 1}, "net"))) == 1
    assert list(argument_problems(anything, {"other": 1}, "net")) == []
    assert list(argument_problems(sys.intern, {}, "net")) == []
