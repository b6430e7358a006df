"""Bounds in signatures, and the error that they raise."""

import copy
import pickle
from typing import Annotated, Literal

import numpy as np
import pytest
import torch
from yamame.checks import (
    ArgumentError,
    Bounds,
    BuildError,
    NonNegativeFloat,
    PositiveInt,
    SettingError,
    UnitInterval,
    UsageError,
    at_key,
    at_source,
    bounds_of,
    check_bounds,
    require,
    require_setting,
)


class Layer:
    """Arguments of all kinds."""

    @check_bounds
    def __init__(
        self,
        size: PositiveInt,
        name: str = "layer",
        *,
        dropout: UnitInterval = 0.0,
        limit: Annotated[float, Bounds(above=0)] | None = None,
        bias: bool = True,
        greedy: bool | None = None,
        compile: bool | Literal["auto"] = "auto",
        **rest: int,
    ) -> None:
        self.size, self.dropout, self.limit = size, dropout, limit


class Derived(Layer):
    """Inherits the constructor."""


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        ({"size": 0}, "size", 0),
        ({"size": -(10**400)}, "size", -(10**400)),
        ({"size": 1, "dropout": 1.5}, "dropout", 1.5),
        ({"size": 1, "dropout": float("nan")}, "dropout", float("nan")),
        ({"size": 1, "limit": 0}, "limit", 0),
        ({"size": "3"}, "size", "3"),
        ({"size": True}, "size", True),
        ({"size": 2.5}, "size", 2.5),
        ({"size": float("inf")}, "size", float("inf")),
        *[({"size": 1, "bias": value}, "bias", value) for value in ("no", "false", 0, 1.0, [])],
        ({"size": 1, "bias": torch.ones(1).bool()}, "bias", torch.ones(1).bool()),
        ({"size": 1, "bias": np.float32(1)}, "bias", np.float32(1)),
        ({"size": 1, "greedy": "no"}, "greedy", "no"),
    ],
)
@pytest.mark.parametrize("cls", [Layer, Derived])
def test_a_value_outside_of_its_bounds_is_named(cls, arguments, name, value):
    with pytest.raises(ArgumentError) as caught:
        cls(**arguments)
    error = caught.value
    assert (error.owner, error.name) == (cls.__name__, name)
    assert repr(error.value) == repr(value)
    assert str(error).startswith(f"{cls.__name__}: {name} must be ")
    assert len(str(error)) < 400


@pytest.mark.parametrize("value", [True, "3", None.__class__])
def test_what_is_no_number_is_told_that_it_should_be_one(value):
    with pytest.raises(ArgumentError, match="size must be a whole number and be at least 1, got"):
        Layer(value)
    with pytest.raises(ArgumentError, match=r"dropout must be a number and be in \[0, 1\], got"):
        Layer(1, dropout=value)
    with pytest.raises(ArgumentError, match="limit must be a number and be positive, got"):
        Layer(1, limit=value)


def test_values_within_bounds_and_none_are_accepted():
    layer = Layer(1, "a", dropout=1, limit=None, other=-1)
    assert (layer.size, layer.dropout, layer.limit) == (1, 1, None)
    assert Layer(2**63 - 1).size == 2**63 - 1
    flags = (True, False, np.True_, np.array(False), torch.tensor(True))
    for flag in flags:
        assert Layer(1, bias=flag, greedy=flag, compile="auto").size == 1
    assert Layer(1, greedy=None).size == 1


def test_missing_arguments_raise_pythons_own_error():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'size'"):
        Layer()


def test_bounds_can_be_read_without_a_call():
    assert bounds_of(Layer) == {
        "size": Bounds(least=1),
        "dropout": Bounds(least=0, most=1),
        "limit": Bounds(above=0),
    }


def test_annotations_may_name_what_is_defined_later():
    @check_bounds
    def build(size: PositiveInt, part: "Later | None" = None) -> int:
        return size

    with pytest.raises(ArgumentError):
        build(0)


class Later:
    """Defined after its use in an annotation."""


ERRORS = [
    (UsageError("it is damaged", key="resume", remedy="restore it"), "it is damaged"),
    (ArgumentError("AdamW", "lr", -1.0, "be positive", remedy="try 1e-4"), "got -1.0"),
    (SettingError("budget.updates", None, "be given", remedy="set it"), "got null"),
    (BuildError("encoder", "not enough memory", {"size": 10**9}), "size=1000000000"),
]


@pytest.mark.parametrize("make", [UsageError, lambda text: ArgumentError(text, text, 1, text)])
def test_a_message_is_one_line_without_control_characters(make):
    error = make("a\nb\x1b[31m\ud800")
    error.source, error.remedy = "run=c\nd", "remove e\r"
    assert str(error).isprintable()
    for part in (r"run=c\nd: ", r"a\nb\x1b[31m\ud800", r"; remove e\r"):
        assert part in str(error)


@pytest.mark.parametrize(("error", "text"), ERRORS, ids=lambda value: type(value).__name__)
def test_an_error_keeps_its_fields_when_it_is_copied_or_sent(error, text):
    error.key = "optimizer"
    error.source = "run=runs/mine"
    for other in (copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is type(error)
        assert vars(other) == vars(error)
        assert str(other).startswith("run=runs/mine: optimizer")
        assert text in str(other)
        assert error.remedy is None or str(other).endswith(f"; {error.remedy}")


def test_the_innermost_key_and_the_outermost_source_are_kept():
    with (
        pytest.raises(ArgumentError) as caught,
        at_source("run=mine"),
        at_source("load"),
        at_key("agent", {"decay": "schedule.average_decay"}),
        at_key("schedule"),
    ):
        require("Learner", "decay", 2, False, "be below 1")
    assert str(caught.value) == "run=mine: schedule.decay: must be below 1, got 2"


def test_an_argument_may_be_a_setting_of_another_name():
    names = {"decay": "schedule.average_decay", "trajectory_encoder": "encoder"}
    for name, key in names.items():
        with pytest.raises(ArgumentError) as caught, at_key("agent", names):
            require("Owner", name, 2, False, "be below 1")
        assert str(caught.value) == f"{key}: must be below 1, got 2"
    with at_key("agent"), at_source("run=mine"):
        require("Owner", "decay", 0, True, "be below 1")


def test_errors_of_other_classes_pass_unchanged():
    with pytest.raises(UsageError) as caught, at_key("budget"):
        raise UsageError("it is damaged")
    assert str(caught.value) == "it is damaged"
    with pytest.raises(KeyError), at_key("budget"), at_source("load"):
        raise KeyError


def test_a_setting_is_named_by_its_key():
    require_setting("budget.updates", 1, True, "be positive")
    with pytest.raises(SettingError) as caught:
        require_setting("budget.updates", "x" * 1000, False, "be positive", remedy="use null")
    message = str(caught.value)
    assert message.startswith("budget.updates: must be positive, got 'xxx")
    assert message.endswith("...; use null")
    assert len(message) < 300


def test_a_negative_control_has_no_bounds():
    def plain(size: int, rate: "NonNegativeFloat") -> None: ...

    assert bounds_of(plain) == {"rate": Bounds(least=0)}


def test_whole_floats_become_integers():
    @check_bounds
    def lengths(*, steps: PositiveInt, sizes: PositiveInt | None = None, share: UnitInterval = 0.5):
        return steps, sizes, share

    counts = lengths(steps=1e3, sizes=np.float32(4), share=1)
    assert counts == (1000, 4, 1)
    assert [type(count) for count in counts[:2]] == [int, int]
    with pytest.raises(ArgumentError, match=r"steps must be an integer, got 1.5"):
        lengths(steps=1.5)


def test_integers_of_numpy_become_those_of_python():
    @check_bounds
    def area(side: PositiveInt):
        return side * side

    assert area(np.uint8(100)) == 10_000
    with pytest.raises(ArgumentError, match=r"side must be below 2\*\*63"):
        area(2**63)


def test_none_must_be_allowed_by_the_annotation():
    @check_bounds
    def limits(steps: PositiveInt = 3, *, most: PositiveInt | None = 5, hard: bool = False):
        return steps, most, hard

    assert limits(most=None) == (3, None, False)
    with pytest.raises(ArgumentError, match=r"steps must be a whole number .*, got None"):
        limits(None)
    with pytest.raises(ArgumentError, match="hard must be true or false, got None"):
        limits(hard=None)


def test_arguments_without_a_name_are_not_checked():
    @check_bounds
    def total(first: PositiveInt, /, *others: PositiveInt, **named: PositiveInt):
        return first + sum(others) + sum(named.values())

    assert total(1, 0, 2.5, last=-1) == 2.5
