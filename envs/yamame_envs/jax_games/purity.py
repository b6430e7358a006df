"""Comparison of traces of the functions of a game, which differ if one is not pure.

A random number of NumPy, or an attribute that a call changes, is traced once, as a constant of the
compiled program. Without this check, every process would play another game in silence.
"""

import contextlib
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from traceback import walk_tb
from types import TracebackType
from typing import Any

import numpy as np
from yamame.system.user_code import UserCodeError

from yamame_envs.jax_games.runtime import is_key, load_jax
from yamame_envs.jax_games.traces import Trace, contents_of

KEPT = (
    "a value of an earlier call is kept on self, or elsewhere outside JAX, where it does not "
    "outlive its call: return it in the state"
)
NOT_PURE = (
    "it draws numbers or keeps state outside JAX (np.random, random, self.x = ...), which is "
    "traced once, as a constant: draw with jax.random from key, and return what changes in the "
    "state"
)
NOT_REPEATABLE = (
    "it is another game each time it is made: draw random numbers of its constructor from a fixed "
    "seed, such as one of env.settings"
)
_TRACES = 4
"""Number of times that functions are traced again, as a few random numbers can be equal."""
_MOST_TRACES = 24
"""The same for functions that use the global generators of NumPy or Python."""
_SECONDS = 2.0
"""CPU time after which functions are not traced again, but once."""
_ADDRESS = re.compile("0x[0-9a-f]+")


def check_kept(what: str, trace: Trace) -> None:
    """Raise if a program reads a traced value, or a reference, which the game has kept.

    Raises:
        UserCodeError: It does.
    """
    tracer = load_jax().core.Tracer
    program = trace.program
    kept = []
    for name, value in zip(program.jaxpr.constvars, program.consts, strict=True):
        has_values = hasattr(value, "__array__") or is_key(value)
        if isinstance(value, tracer) or not has_values:
            kept.append(name)
    if kept:
        readers = [one for one in program.jaxpr.eqns if set(kept) & set(_names(one.invars))]
        raise UserCodeError(what, KEPT, *place_of(readers))


def check_again(
    traces: Mapping[str, Trace], again: Callable[[], Mapping[str, Trace]], reason: str
) -> None:
    """Raise if functions of a game have other programs when they are traced again.

    Args:
        traces: Functions, by their names in messages.
        again: Traces the functions again.
        reason: Reason of a difference, `NOT_PURE` or `NOT_REPEATABLE`.

    Raises:
        UserCodeError: Two programs differ.
    """
    start = time.process_time()
    for number in range(1, _MOST_TRACES + 1):
        before = _random_states()
        others = again()
        for what, other in others.items():
            found = difference(traces[what].program, other.program)
            if found is not None:
                result = different_result(traces[what], other)
                which = f"; its {result} differs" if result else ""
                raise UserCodeError(what, reason + which, *place_of(found))
        is_random = _random_states() != before
        if number >= (_MOST_TRACES if is_random else _TRACES):
            return
        if time.process_time() - start > _SECONDS:
            return


def different_result(first: Trace, second: Trace) -> str | None:
    """Return the name of a part of the result that is another constant; None if there is none."""
    for index, (one, other) in enumerate(zip(first.results(), second.results(), strict=False)):
        if _compare(one, other) is not None:
            return first.name_of(index)
    return None


def difference(first: Any, second: Any) -> list[Any] | None:
    """Return where two programs differ first: operations, outermost first; None if nowhere.

    Functions that an operation refers to count as equal: JAX has traced what they compute.
    """
    if first is second:
        return None
    names: dict[Any, Any] = {}
    if hasattr(first, "consts"):
        constants = zip(first.consts, second.consts, strict=False)
        first, second = first.jaxpr, second.jaxpr
        places = zip(first.constvars, second.constvars, constants, strict=False)
        # Other constants get no name, so that the operation that reads one differs.
        names = {one: other for one, other, pair in places if _compare(*pair) is None}
    names.update(zip(first.invars, second.invars, strict=False))

    def is_same_value(one: Any, other: Any) -> bool:
        if hasattr(one, "val") or hasattr(other, "val"):
            missing = object()
            values = (getattr(value, "val", missing) for value in (one, other))
            return _compare(*values) is None
        return names.get(one) is other

    for one, other in zip(first.eqns, second.eqns, strict=False):
        is_alike = one.primitive is other.primitive and len(one.invars) == len(other.invars)
        is_alike = is_alike and _kinds(one.outvars) == _kinds(other.outvars)
        if not is_alike or not all(map(is_same_value, one.invars, other.invars)):
            return [other]
        within = _compare(one.params, other.params)
        if within is not None:
            return [other, *within]
        names.update(zip(one.outvars, other.outvars, strict=False))
    is_alike = len(first.eqns) == len(second.eqns) and len(first.outvars) == len(second.outvars)
    return None if is_alike and all(map(is_same_value, first.outvars, second.outvars)) else []


def _compare(one: Any, other: Any) -> list[Any] | None:
    """Compare constants and parameters of operations, as `difference` does programs."""
    if one is other:
        return None
    if hasattr(one, "eqns") or hasattr(one, "jaxpr"):
        return difference(one, other) if type(one) is type(other) else []
    if isinstance(one, Mapping):
        if not isinstance(other, Mapping) or list(one) != list(other):
            return []
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list | tuple):
        if not isinstance(other, list | tuple) or len(one) != len(other):
            return []
        found = (_compare(*pair) for pair in zip(one, other, strict=True))
        return next((place for place in found if place is not None), None)
    if hasattr(one, "dtype") and hasattr(one, "shape"):
        is_array = hasattr(other, "dtype") and hasattr(other, "shape")
        is_same = is_array and contents_of(one) == contents_of(other)
    elif isinstance(one, type):
        is_same = False
    else:
        is_same = type(one) is type(other)
        if not callable(one):
            is_same &= _text(one) == _text(other)
    return None if is_same else []


def _text(value: Any) -> str:
    """Return the text of a number, a dtype, a mode of rounding or the like, without addresses."""
    with np.printoptions(threshold=sys.maxsize, floatmode="unique"):
        return _ADDRESS.sub("", repr(value))


def _kinds(variables: Any) -> list[str]:
    """Return dtypes and shapes of variables, and whether their types are weak."""
    return [str(variable.aval) for variable in variables]


def _names(values: Any) -> list[Any]:
    """Return the variables among the inputs of an operation, whose others are literals."""
    return [value for value in values if not hasattr(value, "val")]


def place_of(operations: Iterable[Any]) -> tuple[str, int]:
    """Return file and line of the game of the first of these operations that has them."""
    for operation in operations:
        trace = operation.source_info.traceback
        places = [] if trace is None else _lines_of_game(trace.as_python_traceback())
        own = [place for place in places if "-packages" not in place[0]]
        if places:
            # The innermost line that is not in an installed package, as helpers of the game are.
            return own[-1] if own else places[0]
    return "", 0


def _lines_of_game(trace: TracebackType) -> list[tuple[str, int]]:
    """Return files and lines below those of this package, outermost first.

    Without lines of JAX and of Python's library.
    """
    jax = os.path.dirname(load_jax().__file__) + os.sep
    python = os.path.dirname(contextlib.__file__) + os.sep
    places: list[tuple[str, int]] = []
    for frame, line in walk_tb(trace):
        file = frame.f_code.co_filename
        if os.path.dirname(file) == os.path.dirname(__file__):
            places = []
            continue
        is_python = file.startswith(python) and "-packages" not in file
        if not is_python and not file.startswith(jax):
            places.append((file, line))
    return places


def _random_states() -> tuple[Any, ...]:
    """Return the states of the global generators of NumPy and Python."""
    _, words, place, *_ = np.random.get_state()
    return np.asarray(words).tobytes(), place, random.getstate()
