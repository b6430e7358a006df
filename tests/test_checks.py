"""Bounds in signatures, and the error that they raise."""

import copy
import pickle
from typing import Annotated

import pytest
from yamame.checks import (
    ArgumentError,
    Bounds,
    NonNegativeFloat,
    PositiveInt,
    UnitInterval,
    bounds_of,
    check_bounds,
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


def test_values_within_bounds_and_none_are_accepted():
    layer = Layer(1, "a", dropout=1, limit=None, other=-1)
    assert (layer.size, layer.dropout, layer.limit) == (1, 1, None)
    assert Layer(2**70).size == 2**70


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


def test_an_error_keeps_its_fields_when_it_is_copied_or_sent():
    error = ArgumentError("AdamW", "lr", -1.0, "be positive", remedy="try 1e-4")
    error.key = "optimizer"
    for other in (copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert vars(other) == vars(error)
        assert str(other) == "optimizer.lr: must be positive, got -1.0; try 1e-4"


def test_a_negative_control_has_no_bounds():
    def plain(size: int, rate: "NonNegativeFloat") -> None: ...

    assert bounds_of(plain) == {"rate": Bounds(least=0)}
