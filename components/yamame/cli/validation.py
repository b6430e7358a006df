"""What a setting may be, told from annotations alone, before anything is built.

The type of a setting is the annotation of the parameter that takes it: of the class or function
that a ``_target_`` names, or what `yamame.cli.settings` says. ``Annotated[int, 1]`` stands for an
integer of at least 1, ``Annotated[int, range(1, 9)]`` for one of these, and
``Annotated[str, Pattern(...)]`` for a text that a pattern matches.
"""

import inspect
import re
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, NamedTuple, NotRequired

from yamame.checks import UsageError
from yamame.system.messages import format_value

_TEXTS = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a text",
    types.NoneType: "null",
}
_LARGEST = {int: 2**63 - 1, float: sys.float_info.max}
_LISTS = (list, tuple, abc.Sequence, abc.Collection, abc.Iterable)
_MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)


def parameters_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function or constructor, by name.

    A class is asked for its ``__init__``: metaclasses, as TorchRL's, hide the signature of the
    class itself.
    """
    if not inspect.isclass(target):
        return dict(inspect.signature(target).parameters)
    parameters = dict(inspect.signature(target.__init__).parameters)
    del parameters[next(iter(parameters))]
    return parameters


class Pattern(NamedTuple):
    """What the whole of a text must match, and how a message says it."""

    regex: str
    words: str


class Node:
    """The type of a setting that has a ``_target_``."""


def check_settings(settings: Mapping[str, Any], values: Mapping[str, Any], key: str = "") -> None:
    """Refuses values that settings cannot have; keys that are not among them are not looked at.

    Args:
        settings: Types by key (``NotRequired`` if it may be absent); of a group, such a mapping
            again, or a class whose arguments are the keys.
        values: Plain configuration.
        key: Where it stands in the whole configuration.

    Raises:
        UsageError: Names the key, what it must be, and the value.

    >>> check_settings({"seed": int, "run": {"name": str | None}}, {"seed": 0, "run": {"name": None}})
    """
    check_groups(settings, values, key)
    for name, hint in settings.items():
        full = f"{key}.{name}" if key else name
        if typing.get_origin(hint) is NotRequired:
            if name not in values:
                continue
            (hint,) = typing.get_args(hint)
        if name not in values:
            raise UsageError(f"{full}: must be given, got ~{full}")
        value = values[name]
        if isinstance(hint, Mapping):
            check_settings(hint, value, full)
        elif _is_ours(hint):
            check_arguments(hint, value, full)
            try:
                hint(**value)
            except (TypeError, ValueError) as error:
                raise UsageError(f"{full}: {error}") from error
        else:
            _check(full, value, hint)


def check_groups(settings: Mapping[str, Any], values: Mapping[str, Any], key: str = "") -> None:
    """Refuses a value in the place of a group, into which interpolations may lead."""
    for name, hint in settings.items():
        below = _below(hint)
        if below and name in values and not isinstance(values[name], Mapping):
            full = f"{key}.{name}" if key else name
            raise UsageError(
                f"{full}: must be a mapping with {', '.join(below)}, got {format_value(values[name])}"
            )


def undeclared(values: Mapping[str, Any], settings: Mapping[str, Any], key: str = "") -> list[str]:
    """Keys of a configuration, but for those below a target or in free data, of which nothing says
    what they may be.
    """
    missing = [f"{key}{name}" for name in values if name not in settings]
    for name in values.keys() & settings.keys():
        below = _below(settings[name])
        if below and isinstance(values[name], Mapping):
            missing += undeclared(values[name], below, f"{key}{name}.")
    return missing


def _below(hint: Any) -> Mapping[str, Any]:
    """The keys of a group; none where a setting is no group."""
    return hint if isinstance(hint, Mapping) else parameters_of(hint) if _is_ours(hint) else {}


def _is_ours(hint: Any) -> bool:
    return inspect.isclass(hint) and hint.__module__.startswith("yamame.") and hint is not Node


def check_arguments(target: Callable[..., Any], values: Mapping[str, Any], key: str) -> None:
    """Refuses arguments of other types than the annotations'; the default of an argument is always
    one.

    Where the annotations cannot be told, nothing is refused.

    Args:
        target: A function or class.
        values: Some of its arguments by name.
        key: Where they stand in the configuration.

    Raises:
        UsageError: Names the key, what it must be, and the value.
    """
    try:
        hints = _hints_of(target)
    except (
        NameError,
        TypeError,
    ):  # names that only a type checker imports, and functions written in C
        return
    parameters = parameters_of(target)
    for name in parameters.keys() & values.keys() & hints.keys():
        value, default = values[name], parameters[name].default
        if type(value) is not type(default) or value != default:
            _check(f"{key}.{name}", value, hints[name])


def free_data_of(target: Callable[..., Any]) -> set[str]:
    """Parameters that take any mapping as it is, which therefore holds no nodes."""
    try:
        hints = _hints_of(target)
    except (NameError, TypeError):
        return set()
    return {name for name, hint in hints.items() if _is_free(hint)}


def _is_free(hint: Any) -> bool:
    parts = _alternatives(hint)
    if len(parts) > 1:
        return any(_is_free(part) for part in parts)
    return typing.get_origin(hint) in _MAPPINGS and typing.get_args(hint)[1] is Any


def _hints_of(target: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function or constructor."""
    return typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)


def fits(value: Any, hint: Any) -> bool:
    """Whether a plain value may be what an annotation says; where this is no plain type, it may
    unless it is one.

    >>> fits(1, float), fits(True, float), fits("no", bool), fits(None, int | None), fits([1], list[str])
    (True, False, False, True, False)
    """
    parts, kind = _alternatives(hint), typing.get_origin(hint) or hint
    if len(parts) > 1:
        return any(fits(value, part) for part in parts)
    if kind is Annotated:
        inner, bound = typing.get_args(hint)
        if isinstance(bound, Pattern):
            return fits(value, inner) and re.fullmatch(bound.regex, value) is not None
        return fits(value, inner) and (
            value in bound if isinstance(bound, range) else bool(value >= bound)
        )
    if kind is Literal:
        return value in typing.get_args(hint)
    if kind in (int, float):
        return (
            isinstance(value, int | kind)
            and not isinstance(value, bool)
            and abs(value) <= _LARGEST[kind]
        )
    if kind is str:
        return isinstance(value, str) and value.isprintable() and value != ""
    if kind in _TEXTS:
        return isinstance(value, kind)
    if kind in _LISTS:
        inside = typing.get_args(hint)[:1]
        return isinstance(value, list) and all(
            fits(item, part) for part in inside for item in value
        )
    if kind in _MAPPINGS:
        return isinstance(value, Mapping)
    plain = isinstance(value, bool | int | float | str | list | None)
    if isinstance(value, Mapping) and inspect.isclass(kind):
        return "_target_" in value
    return kind is Any or not (inspect.isclass(kind) and plain) or isinstance(value, kind)


def _alternatives(hint: Any) -> Collection[Any]:
    """The members of a union, or the one hint."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _check(key: str, value: Any, hint: Any) -> None:
    if not fits(value, hint):
        texts = dict.fromkeys(_text(part) for part in _alternatives(hint))
        if isinstance(value, str) and _TEXTS[str] in texts:
            texts[_TEXTS[str]] = " of printable signs"
        elif isinstance(value, int) and abs(value) > _LARGEST[int]:
            texts[_TEXTS[int]] = " of 64 bits"
        words = [text + (more or "") for text, more in texts.items()]
        raise UsageError(f"{key}: must be {' or '.join(words)}, got {format_value(value)}")


def _text(hint: Any) -> str:
    """A type in words."""
    kind, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is Annotated and isinstance(parts[1], Pattern):
        return parts[1].words
    if kind is Annotated and isinstance(parts[1], range):
        return f"{_text(parts[0])} in {parts[1][0]}..{parts[1][-1]}"
    if kind is Annotated:
        return f"{_text(parts[0])} of at least {parts[1]}"
    if kind is Literal:
        return f"one of {', '.join(map(format_value, parts))}"
    if kind in _LISTS:
        items = [part for inside in parts[:1] for part in _alternatives(inside)]
        if any(typing.get_origin(item) is Annotated for item in items):
            return f"a list, each {' or '.join(map(_text, items))}"
        return "a list of numbers" if parts[:1] == (float,) else "a list"
    if kind is Node:
        return "a mapping with a _target_"
    return _TEXTS.get(
        kind, "a mapping" if kind in _MAPPINGS else str(getattr(hint, "__name__", hint))
    )
