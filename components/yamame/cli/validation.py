"""Checks of a plain configuration against models of settings and signatures of classes.

Every wrong value is reported, and nothing is built. The type of a setting is the annotation of the
field in `yamame.cli.settings`, or of the parameter of the class that a ``_target_`` names.
"""

import inspect
import types
import typing
from collections import abc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from yamame.checks import Bounds, SettingError, UsageError
from yamame.cli.sections import (
    FITS_64_BITS,
    LARGEST_INTEGER,
    PRINTABLE,
    Node,
    Rule,
    Section,
    keys_set_in,
)
from yamame.cli.suggestions import closest_of
from yamame.files.trusted import SPECIAL
from yamame.system.messages import format_value

_WORDS = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    types.NoneType: "null",
}
_LISTS = (list, tuple, abc.Sequence, abc.Collection, abc.Iterable)
_MAPPINGS = (dict, abc.Mapping, abc.MutableMapping, Node)
_SPECIAL_TYPES: dict[str, Any] = {
    "_partial_": bool,
    "_recursive_": bool,
    "_convert_": Literal["none", "partial", "object", "all"],
    "_args_": list,
}
_STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)

AnySection = TypeVar("AnySection", bound=Section)


class ForeignArgumentError(SettingError):
    """A key below a ``_target_`` that is no argument of it."""


class SettingsError(UsageError):
    """Several wrong settings, each a line of the message.

    Args:
        problems: An error for each.
    """

    def __init__(self, problems: Sequence[UsageError]) -> None:
        super().__init__(problems)
        self.problems = tuple(problems)

    def describe(self) -> str:
        """Return the message without the source."""
        return "\n".join(map(str, self.problems))

    def __str__(self) -> str:
        return self.describe() if self.source is None else f"{self.source}: {self.describe()}"


def raise_any(problems: Sequence[UsageError]) -> None:
    """Raise a problem, or all of them as one error, if there are any."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise SettingsError(problems)


def validated(
    model: type[AnySection], values: Mapping[str, Any], *, overridden: Collection[str] = ()
) -> AnySection:
    """Return plain data as typed settings.

    Args:
        model: Model of the configuration.
        values: The whole configuration as plain data.
        overridden: Keys that the command line set. Of the keys without a field, these are refused;
            others are dropped, for a preset may set what another recipe takes.

    Raises:
        SettingError: A value is wrong.
        SettingsError: Several are; it has all of them.

    >>> from yamame.cli.settings import SyncConfig
    >>> validated(SyncConfig, {"run": "runs/mine"}).run
    'runs/mine'
    >>> validated(SyncConfig, {"run": 3})
    Traceback (most recent call last):
    yamame.checks.SettingError: run: must be a string or a list, each a string, got 3
    """
    problems: list[UsageError] = []
    settings = check_section(model, values, problems, overridden=overridden)
    raise_any(problems)
    assert settings is not None
    return settings


def check_section(
    model: type[AnySection],
    values: Mapping[str, Any],
    problems: list[UsageError],
    *,
    overridden: Collection[str] = (),
) -> AnySection | None:
    """As `validated`, but append what is wrong to ``problems`` and return None then."""
    try:
        # As a node, so that nodes inside know their keys.
        return model.model_validate(Node.of(values), context=overridden)
    except ValidationError as error:
        problems += _problems(model, values, error, overridden)
        return None


def shape_problems(model: type[Section], values: Mapping[str, Any]) -> Iterator[SettingError]:
    """Yield sections that are no mappings, of a configuration that is not resolved yet."""
    for name, hint in fields_of(model).items():
        if is_section(hint) and name in values and not isinstance(values[name], Mapping):
            yield SettingError(name, values[name], f"be {describe(hint)}")


def _problems(
    model: type[Section],
    values: Mapping[str, Any],
    error: ValidationError,
    overridden: Collection[str],
) -> Iterator[UsageError]:
    """Yield one problem per key: pydantic has one per member of a union."""
    known = set()
    for details in error.errors(include_url=False):
        path, hint = _field_at(model, details["loc"])
        key = ".".join(path)
        # The first error of a key stands for it.
        if key in known:
            continue
        known.add(key)

        value = _value_at(values, key)
        if details["type"] == "missing":
            yield UsageError(f"must be given, got ~{key}", key=key)
        elif details["type"] == "extra_forbidden":
            yield from _unknown_settings(model, values, key, overridden)
        elif details["type"] == "condition":
            yield SettingError(key, value, details["ctx"]["condition"])
        else:
            yield SettingError(key, value, f"be {describe(hint, value)}")


def _unknown_settings(
    model: type[Section], values: Mapping[str, Any], key: str, overridden: Collection[str]
) -> Iterator[SettingError]:
    """Yield the keys of an unknown section, or below it, that the command line set."""
    known = list(_keys_of(model))
    for name in keys_set_in(_value_at(values, key), key, overridden) or [key]:
        remedy = closest_of(name, known).removeprefix(", ") or None
        condition = "be a setting of this recipe"
        yield SettingError(name, _value_at(values, name), condition, remedy=remedy)


def _keys_of(model: type[Section], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of the fields of a model."""
    for name, hint in fields_of(model).items():
        yield f"{prefix}{name}"
        if is_section(hint):
            yield from _keys_of(hint, f"{prefix}{name}.")


def _value_at(values: Mapping[str, Any], key: str) -> Any:
    value: Any = values
    for name in key.split("."):
        value = value.get(name)
    return value


def _field_at(model: type[Section], location: tuple[int | str, ...]) -> tuple[list[str], Any]:
    """Return the keys of a field, and its annotation, by the location of an error in it."""
    path: list[str] = []
    hint: Any = model
    for part in location:
        # Further parts are members of a union, or indices of a list.
        if not is_section(hint):
            break
        path.append(str(part))
        hint = fields_of(hint).get(str(part))
    return path, hint


def is_section(hint: Any) -> bool:
    """Return whether an annotation is a model of settings."""
    return inspect.isclass(hint) and issubclass(hint, Section)


@cache
def fields_of(model: type[Section]) -> dict[str, Any]:
    """Return the annotations of a model's fields by name, in order."""
    hints = typing.get_type_hints(model, include_extras=True)
    return {name: hints[name] for name in model.model_fields}


# Arguments of a _target_.


def parameters_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function or constructor by name."""
    if not inspect.isclass(target):
        return dict(inspect.signature(target).parameters)
    # Metaclasses, as TorchRL's, hide the signature of the class itself.
    parameters = list(inspect.signature(target.__init__).parameters.values())
    return {parameter.name: parameter for parameter in parameters[1:]}


def takes_argument(target: Callable[..., Any], name: str) -> bool:
    """Return whether a function or constructor takes a keyword argument."""
    return name in parameters_of(target) or has_any_keyword(target)


def has_any_keyword(target: Callable[..., Any]) -> bool:
    """Return whether a function or constructor has a parameter such as ``**kwargs``."""
    kinds = {parameter.kind for parameter in parameters_of(target).values()}
    return inspect.Parameter.VAR_KEYWORD in kinds


def argument_problems(
    target: Callable[..., Any], values: Mapping[str, Any], key: str
) -> Iterator[SettingError]:
    """Yield the arguments that a target does not take, or not with this value.

    The default of a parameter is always accepted. Where annotations cannot be resolved, values are
    not checked.

    Args:
        target: A function or class.
        values: Some of its arguments by name, and keys of Hydra such as ``_partial_``.
        key: Dotted key of the node.
    """
    parameters = parameters_of(target)
    checkers = _checkers_of(target)
    name_of_target = values.get("_target_", target.__name__)
    # The first unknown argument lists the known ones.
    known = f" ({', '.join(parameters)})"
    for name, value in values.items():
        if name in SPECIAL:
            continue
        if not takes_argument(target, name):
            yield ForeignArgumentError(
                f"{key}.{name}", value, f"be an argument of {name_of_target}{known}"
            )
            known = ""
        # Defaults of other libraries do not always fit their own annotations.
        if name not in checkers or _is_default(value, parameters[name]):
            continue
        hint, checker = checkers[name]
        if not _is_valid(checker, value):
            yield SettingError(f"{key}.{name}", value, f"be {describe(hint, value)}")


def special_problems(node: Mapping[str, Any], key: str) -> Iterator[SettingError]:
    """Yield the keys of Hydra in a node, such as ``_partial_``, that have a wrong value."""
    for name, hint in _SPECIAL_TYPES.items():
        if name in node and not _is_valid(_checker(hint), node[name]):
            yield SettingError(f"{key}.{name}", node[name], f"be {describe(hint)}")


def _is_default(value: Any, parameter: inspect.Parameter) -> bool:
    return type(value) is type(parameter.default) and value == parameter.default


def _is_valid(checker: TypeAdapter[Any], value: Any) -> bool:
    try:
        checker.validate_python(value)
    except ValidationError:
        return False
    return True


@cache
def _checkers_of(target: Callable[..., Any]) -> dict[str, tuple[Any, TypeAdapter[Any]]]:
    """Return annotation and checker of each parameter; none if annotations cannot be resolved."""
    checkers = {}
    parameters = parameters_of(target)
    for name, hint in hints_of(target).items():
        if name in parameters:
            checkers[name] = (hint, _checker(hint))
    return checkers


def _checker(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(_strict_type(hint), config=_STRICT)


def hints_of(target: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function or constructor; none if they cannot be resolved."""
    function = target.__init__ if inspect.isclass(target) else target
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:
        # Names that only a type checker imports, functions written in C, and annotations of user
        # code that are no types.
        return {}


def free_data_of(target: Callable[..., Any]) -> set[str]:
    """Return the parameters that take any mapping, which therefore holds no nodes."""
    return {name for name, hint in hints_of(target).items() if _is_free(hint)}


def _is_free(hint: Any) -> bool:
    members = _members(hint)
    if len(members) > 1:
        return any(_is_free(member) for member in members)
    return typing.get_origin(hint) in _MAPPINGS and typing.get_args(hint)[1] is Any


def _strict_type(hint: Any) -> Any:
    """Return the type that the YAML value of a parameter has.

    Lists stand for all sequences, and a node with a ``_target_`` for an object that is built.
    """
    kind = typing.get_origin(hint) or hint
    arguments = typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        return typing.Union[tuple(_strict_type(member) for member in arguments)]  # noqa: UP007
    if kind is Annotated:
        return Annotated[(_strict_type(arguments[0]), *arguments[1:])]
    # Larger integers and odd strings reach C++ and files, which fail in ways of their own.
    if kind is int:
        return Annotated[int, FITS_64_BITS]
    if kind is str:
        return Annotated[str, PRINTABLE]
    if kind in _LISTS:
        return list[_strict_type(arguments[0])] if arguments else list  # type: ignore[misc]
    if kind in _MAPPINGS:
        return dict
    if kind in _WORDS or kind is Literal:
        return hint
    if inspect.isclass(kind) and kind is not object:
        return Annotated[Any, Rule("", lambda value: _may_become(value, kind))]
    return Any


def _may_become(value: Any, kind: type) -> bool:
    """Return whether a plain value is an object of a class, or a node that may build one."""
    if isinstance(value, Mapping):
        return "_target_" in value
    # Objects that exist only at run time are checked by the class itself.
    is_plain = isinstance(value, bool | int | float | str | list | None)
    return not is_plain or isinstance(value, kind)


# Types in words.


def describe(hint: Any, value: Any = None) -> str:
    """Return a type in words that follow "must be".

    Args:
        hint: Annotation of a setting.
        value: A value that is refused; it may break a rule that goes without saying.

    >>> describe(Annotated[int, Bounds(least=1)] | None), describe(str, "\\n")
    ('an integer of at least 1 or null', 'a string of printable characters')
    """
    texts = []
    for member in _members(hint):
        text = _describe_member(member)
        # These rules go without saying, so they are mentioned only where they are broken.
        if text == _WORDS[str] and value == "None":
            text += " (null means None)"
        elif text == _WORDS[str] and isinstance(value, str):
            text += " of printable characters"
        elif text.startswith(_WORDS[int]) and _is_too_large(value):
            text += " with 64 bits"
        if text not in texts:
            texts.append(text)
    return " or ".join(texts)


def _is_too_large(value: Any) -> bool:
    return isinstance(value, int) and abs(value) > LARGEST_INTEGER


def _members(hint: Any) -> Collection[Any]:
    """Return the members of a union, or the one annotation."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _describe_member(hint: Any) -> str:
    kind = typing.get_origin(hint) or hint
    arguments = typing.get_args(hint)
    if kind is Annotated:
        return _describe_annotated(*arguments)
    if kind is Literal:
        values = ", ".join(map(format_value, arguments))
        return values if len(arguments) == 1 else f"one of {values}"
    if kind in _LISTS:
        return f"a list, each {describe(arguments[0])}" if arguments else "a list"
    if kind in _MAPPINGS:
        return "a mapping"
    if is_section(kind):
        return f"a mapping with {', '.join(fields_of(kind))}"
    return _WORDS.get(kind) or str(getattr(hint, "__name__", hint))


def _describe_annotated(hint: Any, *metadata: Any) -> str:
    text = _describe_member(hint)
    for each in metadata:
        if isinstance(each, Rule) and each.words:
            text = each.words
        elif isinstance(each, Bounds):
            text = f"{text} {_describe_bounds(each)}"
    return text


def _describe_bounds(bounds: Bounds) -> str:
    if bounds.least is not None and bounds.most is not None:
        return f"from {bounds.least:,} to {bounds.most:,}"
    limits = []
    if bounds.least is not None:
        limits.append(f"of at least {bounds.least:,}")
    if bounds.above is not None:
        limits.append(f"above {bounds.above:,}")
    if bounds.most is not None:
        limits.append(f"of at most {bounds.most:,}")
    if bounds.below is not None:
        limits.append(f"below {bounds.below:,}")
    return " and ".join(limits)
