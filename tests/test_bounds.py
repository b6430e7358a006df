"""Every component that a configuration can name raises for numbers outside of its bounds."""

import importlib
import inspect
import math
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yamame.checks import ArgumentError, Bounds, bounds_of, check_bounds

CONF = Path(__file__).resolve().parents[1] / "conf"


def targets() -> list[str]:
    """Return the names of all classes and functions in the YAML files."""
    names = set()
    for file in CONF.rglob("*.yaml"):
        names.update(re.findall(r"_target_: (yamame[\w.]*)", file.read_text()))
    return sorted(names)


def locate(name: str) -> Callable[..., Any]:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def bounded_arguments() -> Iterator[tuple[str, str, Bounds]]:
    """Yield target, argument and bounds."""
    for name in targets():
        for argument, bounds in bounds_of(locate(name)).items():
            yield name, argument, bounds


def outside(bounds: Bounds) -> Iterator[float]:
    """Yield values one step outside of the bounds, and NaN."""
    yield math.nan
    if bounds.least is not None:
        yield bounds.least - 1
        yield math.nextafter(bounds.least, -math.inf)
    if bounds.above is not None:
        yield bounds.above
    if bounds.most is not None:
        yield bounds.most + 1
        yield math.nextafter(bounds.most, math.inf)
    if bounds.below is not None:
        yield bounds.below


ARGUMENTS = list(bounded_arguments())


def test_many_arguments_have_bounds():
    assert len(targets()) > 50
    assert len(ARGUMENTS) > 20


def required(build: Callable[..., Any]) -> dict[str, Any]:
    """Return values of required arguments that pass their checks; nothing is built with them."""
    function = build.__init__ if inspect.isclass(build) else build
    bounds = bounds_of(build)
    hints = typing.get_type_hints(function)
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if name != "self" and is_named and parameter.default is parameter.empty:
            arguments[name] = False if hints.get(name) is bool else None
            if name in bounds:
                arguments[name] = next(
                    value for value in (1, 0.5, 8) if bounds[name].contain(value)
                )
    return arguments


@pytest.mark.parametrize(
    ("target", "argument", "bounds"),
    ARGUMENTS,
    ids=[f"{target}.{argument}" for target, argument, _ in ARGUMENTS],
)
def test_a_number_outside_of_its_bounds_is_named(target, argument, bounds):
    build = locate(target)
    for value in outside(bounds):
        with pytest.raises(ArgumentError) as caught:
            build(**{**required(build), argument: value})
        error = caught.value
        assert (error.owner, error.name) == (target.rpartition(".")[2], argument)
        assert repr(error.value) == repr(value)


def flag_arguments() -> Iterator[tuple[str, str]]:
    """Yield target and argument of all flags of components."""
    for name in targets():
        build = locate(name)
        hints = typing.get_type_hints(build.__init__ if inspect.isclass(build) else build)
        for argument, hint in hints.items():
            if argument != "return" and hint in (bool, bool | None):
                yield name, argument


FLAGS = list(flag_arguments())


def test_many_arguments_are_flags():
    assert len(FLAGS) > 20


@pytest.mark.parametrize(("target", "argument"), FLAGS, ids=map(".".join, FLAGS))
def test_a_flag_that_is_no_bool_is_named(target, argument):
    build = locate(target)
    for value in ("no", 0, []):
        with pytest.raises(ArgumentError, match="must be true or false") as caught:
            build(**{**required(build), argument: value})
        assert (caught.value.owner, caught.value.name) == (target.rpartition(".")[2], argument)


NUMBERS = st.floats(-10, 10) | st.integers(-10, 10)
LIMITS = st.none() | NUMBERS


@given(least=LIMITS, above=LIMITS, most=LIMITS, below=LIMITS, value=NUMBERS)
@settings(deadline=None, max_examples=200, derandomize=True)
def test_bounds_hold_what_their_comparisons_say(least, above, most, below, value):
    bounds = Bounds(least=least, above=above, most=most, below=below)
    expected = True
    if least is not None and value < least:
        expected = False
    if above is not None and value <= above:
        expected = False
    if most is not None and value > most:
        expected = False
    if below is not None and value >= below:
        expected = False
    assert bounds.contain(value) == expected


def test_without_bounds_nothing_is_raised():
    @check_bounds
    def build(size: int) -> int:
        return size

    assert build(-1) == -1
