"""What a setting may be, told from types and smallest values alone, before anything is built.

The type of an argument is its annotation. That of any other setting is the type of its default: of the value that it
has where the command line chooses groups but changes no value.
"""

import inspect
import json
import types
import typing
from collections import abc
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from yamame.runs.errors import UsageError

NULLABLE: dict[str, Any] = {
    "budget.env_steps": float,
    "budget.minutes": float,
    "budget.updates": float,
    "evaluation.max_steps": int,
    "evaluation.num_envs": int,
    "expected": dict,
    "max_steps": int,
    "run.name": str,
    "schedule.autocast": str,
}
"""Types of settings that may always be null, whatever their default is."""
UNSET: dict[str, Any] = {
    "against": str | list[str],
    "base": str,
    "context_length": int,
    "gamma": float,
    "gamma_index": int,
    "gammas": str,
    "greedy": bool,
    "instruction": str,
    "metric": str,
    "num_envs": int,
    "num_episodes": int,
    "output": str,
    "runs": str | list[str],
    "seed": int,
}
"""Types of settings whose default is null."""
AT_LEAST: dict[str, int] = {
    "checkpoint.interval": 1,
    "checkpoint.keep": 1,
    "evaluation.film_frames": 1,
    "evaluation.interval": 1,
    "evaluation.max_steps": 1,
    "evaluation.num_envs": 1,
    "evaluation.num_episodes": 1,
    "schedule.batch_size": 1,
    "schedule.epochs": 1,
    "schedule.learning_starts": 0,
    "schedule.num_envs": 1,
    "schedule.steps_per_iteration": 1,
    "schedule.updates_per_iteration": 1,
    "schedule.updates_per_step": 0,
}
"""Smallest values of settings that no constructor takes, and of some that one takes when it is too late."""
REMOVABLE = ("debug", "experiment", "trials")
"""Groups that a recipe does without, so that ``~`` may take them away."""
_TEXTS = {bool: "true or false", int: "an integer", float: "a number", str: "a text", types.NoneType: "null"}
_LISTS = (list, tuple, abc.Sequence, abc.Collection, abc.Iterable)
_MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)
_TARGET = "_target_"


def check_like(config: Mapping[str, Any], default: Mapping[str, Any], key: str = "") -> None:
    """Refuses values of other types than the defaults', and those below `AT_LEAST`.

    What is below a ``_target_`` is not looked at: arguments have annotations, see `check_arguments`.

    Args:
        config: Plain configuration.
        default: The same without the values of the command line; interpolations need not be resolved.
        key: Where both stand in the whole configuration.

    Raises:
        UsageError: Names the key, what it must be, and the value.

    >>> check_like({"seed": 1, "run": {"overwrite": True}}, {"seed": 0, "run": {"overwrite": False}})
    """
    for name, usual in default.items():
        full = f"{key}.{name}" if key else str(name)
        if name not in config and full not in REMOVABLE:
            raise UsageError(f"{full}: must be given, got ~{full}")
        value = config.get(name)
        if isinstance(usual, Mapping) and isinstance(value, Mapping):
            if _TARGET not in usual and _TARGET not in value:
                check_like(value, usual, full)
        elif isinstance(usual, Mapping) and _TARGET not in usual and full not in NULLABLE:
            below = f" with {', '.join(map(str, usual))}" if usual else ""
            raise UsageError(f"{full}: must be a mapping{below}, got {_shown(value)}")
        else:
            _check(full, value, _hint(full, usual))
        if full in AT_LEAST and value is not None and not value >= AT_LEAST[full]:
            raise UsageError(f"{full}: must be at least {AT_LEAST[full]}, got {value!r}")


def check_arguments(function: Callable[..., Any], values: Mapping[str, Any], key: str) -> None:
    """Refuses arguments of other types than the annotations'; the default of an argument is always one.

    Args:
        function: A function, or the ``__init__`` of a class.
        values: Some of its arguments by name.
        key: Where they stand in the configuration.

    Raises:
        UsageError: Names the key, what it must be, and the value.
    """
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):  # names that only a type checker imports, and functions written in C
        return
    parameters = inspect.signature(function).parameters
    for name in parameters.keys() & values.keys() & hints.keys():
        value, usual = values[name], parameters[name].default
        if type(value) is not type(usual) or value != usual:
            _check(f"{key}.{name}", value, hints[name])


def fits(value: Any, hint: Any) -> bool:
    """Whether a plain value may be what an annotation says; where this is no plain type, it may unless it is one.

    >>> fits(1, float), fits(True, float), fits("no", bool), fits(None, int | None), fits([1], list[str])
    (True, False, False, True, False)
    """
    parts, kind = _alternatives(hint), typing.get_origin(hint) or hint
    if len(parts) > 1:
        return any(fits(value, part) for part in parts)
    if kind is Literal:
        return value in typing.get_args(hint)
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    if kind in _TEXTS:
        return isinstance(value, kind)
    if kind in _LISTS:
        return isinstance(value, list) and all(
            fits(x, part) for part in typing.get_args(hint)[:1] for x in value
        )
    if kind in _MAPPINGS:
        return isinstance(value, Mapping)
    plain = isinstance(value, bool | int | float | str | None)
    return kind is Any or not (inspect.isclass(kind) and plain) or isinstance(value, kind)


def _alternatives(hint: Any) -> Collection[Any]:
    """The members of a union, or the one hint."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _hint(key: str, default: Any) -> Any:
    """The type of a setting; Any where its default does not tell."""
    if key in NULLABLE:
        return NULLABLE[key] | None
    if default is None:
        return UNSET[key] | None if key in UNSET else Any
    if isinstance(default, Mapping):
        return dict | None
    if isinstance(default, list) and default:
        return list[float] if all(fits(item, float) for item in default) else list
    unknown = isinstance(default, str) and (default == "???" or default.startswith("${"))
    return Any if unknown else type(default)


def _check(key: str, value: Any, hint: Any) -> None:
    if not fits(value, hint):
        texts = dict.fromkeys(_text(part) for part in _alternatives(hint))
        raise UsageError(f"{key}: must be {' or '.join(texts)}, got {_shown(value)}")


def _text(hint: Any) -> str:
    """A type in words."""
    kind, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is Literal:
        return f"one of {', '.join(map(_shown, parts))}"
    if kind in _LISTS:
        return "a list of numbers" if parts[:1] == (float,) else "a list"
    return _TEXTS.get(kind, "a mapping" if kind in _MAPPINGS else str(getattr(hint, "__name__", hint)))


def _shown(value: Any) -> str:
    """A value as YAML has it."""
    return json.dumps(value) if isinstance(value, bool | None) else repr(value)
