"""Nodes of a configuration: those with a ``_target_`` name a class or function, and their other
keys its arguments.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from yamame.checks import UsageError
from yamame.cli.validation import (
    check_arguments,
    check_groups,
    check_settings,
    free_data_of,
    parameters_of,
    undeclared,
)
from yamame.files.config import flatten
from yamame.files.identity import is_one_of
from yamame.files.trusted import SPECIAL, check_name, locate, prefixes_of
from yamame.system.messages import format_value

_REFUSALS = (TypeError, ValueError, OverflowError, MemoryError)
_OF_CHECKS = re.compile(r"\w+: .+ must ")
"""Messages of `yamame.checks`, which name the argument that they are about."""
_NUMBER = re.compile(r"(?<![\w.'\"\[])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w'\"\]])")
_TOO_MUCH = re.compile("alloc|overflow|out of memory|negative dimension|too large", re.IGNORECASE)


def plain(cfg: Any) -> Any:
    """A configuration as plain dictionaries and lists, interpolations resolved.

    Raises:
        UsageError: A value is missing (``???``) or an interpolation leads nowhere.
    """
    try:
        return OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "configuration"
        raise UsageError(f"{key}: {str(error).splitlines()[0]}") from error


def targets(node: Any, key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node of a plain configuration that has a ``_target_``, with its dotted key, outermost
    first.
    """
    if isinstance(node, dict) and "_target_" in node:
        yield key, node
    items = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    for name, item in items:
        yield from targets(item, f"{key}.{name}" if key else str(name))


def check_targets(node: Any, *, key: str = "", trust: Collection[str] = ()) -> None:
    """Refuses targets that a person may not name, before anything is imported.

    Args:
        node: Plain configuration.
        key: Where it stands.
        trust: Packages whose classes may be named beside ours, as the setting ``trust``.

    Raises:
        UsageError: Names the key, the value and what may be named.

    >>> check_targets({"env": {"_target_": "yamame_envs.MazeRunner"}})
    """
    prefixes = prefixes_of(trust)
    for name, target in targets(node, key):
        check_name(target["_target_"], name, prefixes)
        check_settings(SPECIAL, target, name)
    for name, text in flatten({key or "configuration": node}).items():
        if "${" in str(text):  # it would be resolved once more when it is built
            name = name.removeprefix("configuration.")
            raise UsageError(f"{name}: must be a value and no interpolation, got {text!r}")


def located(
    node: Any, *, key: str = "", trust: Collection[str] = ()
) -> list[tuple[str, dict[str, Any], Callable[..., Any]]]:
    """Key, node and class of every target of a plain configuration, once all of their names are
    checked.

    Raises:
        UsageError: As `check_targets`; or there is no such class, or it may not be named.
    """
    check_targets(node, key=key, trust=trust)
    prefixes = prefixes_of(trust)
    classes = [(name, n, locate(n["_target_"], name, prefixes)) for name, n in targets(node, key)]
    for name, n, target in classes:
        for argument in free_data_of(target) & n.keys():
            for place, inner in targets(n[argument], f"{name}.{argument}"):
                raise UsageError(
                    f"{place}._target_: must be plain data there, got {inner['_target_']!r}"
                )
    return classes


def target_of(node: Any) -> Callable[..., Any]:
    """The class or function of a node of a configuration, which is not built."""
    return located(plain(node), key=node._get_full_key(""), trust=_trust_of(node))[0][2]


def _trust_of(node: Any) -> Collection[str]:
    """What the command line said of the whole configuration that a node is part of."""
    root = node._get_root()
    return tuple(root.get("trust") or ()) if isinstance(root, DictConfig) else ()


def check(
    cfg: DictConfig,
    settings: Mapping[str, Any] | None = None,
    *,
    typed: Collection[str] | None = None,
) -> dict[str, Any]:
    """Checks a whole configuration without building anything.

    Every value is given and resolves; every target is allowed and can be imported, every key below
    a target is a parameter of it, and every value of the type that this has. What no target takes
    is checked by ``settings``.

    Args:
        cfg: The composed configuration.
        settings: What settings may be that no target takes, see `yamame.cli.settings`.
        typed: Keys that the command line itself set; None: there is none, so nothing is said of it.

    Returns:
        The configuration as plain data.

    Raises:
        UsageError: Names the key and the value.
    """
    settings = settings or {}
    check_groups(settings, OmegaConf.to_container(cfg, resolve=False))  # type: ignore[arg-type]
    config = plain(cfg)
    nodes = located(config, trust=config.get("trust", ()))
    for name in undeclared(config, settings) if settings else ():
        if is_one_of(name, tuple(typed or ())):  # a preset may set what another recipe takes
            raise UsageError(
                f"{name}: there is no such key, got {format_value(OmegaConf.select(cfg, name))}"
            )
    check_settings(settings, config)
    # What changes an environment has no target of its own.
    changes = {
        f"{name}.env": config.get(name, {}).get("env", {}) for name in ("evaluation", "source")
    }
    nodes += [
        (name, node, env) for name, node in changes.items() for key, _, env in nodes if key == "env"
    ]
    foreign: dict[str, str] = {}
    for key, node, target in nodes:
        parameters = parameters_of(target)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            takes = f"{node.get('_target_', target.__name__)} takes {', '.join(parameters)}"
            for name in [name for name in node if name not in SPECIAL and name not in parameters]:
                foreign[f"{key}.{name}"] = f"{takes}, not {name!r}, got {format_value(node[name])}"
        check_arguments(target, node, key)
    if foreign:
        # Those that the command line did not set can be dropped by it.
        presets = [] if typed is None else [f"~{key}" for key in foreign if key not in typed]
        remedy = (
            f"; a preset sets what this choice does not take, add {' '.join(presets)}"
            if presets
            else ""
        )
        name, problem = next(iter(foreign.items()))
        raise UsageError(f"{name}: {problem}{remedy}")
    return config


def instantiate(node: Any, **runtime: Any) -> Any:
    """Builds what a configuration node describes, giving it facts known at run time.

    Nested targets are built first, containers arrive as plain ones, and ``runtime`` arrives
    untouched (Hydra itself would turn dictionaries and lists in it into its own). With
    ``_partial_: true`` the result is a function that takes the rest.

    Args:
        node: A node with ``_target_``; None gives None.
        runtime: Further keyword arguments.

    Raises:
        UsageError: A target may not be named, or a constructor refused its arguments (with its
            message).
    """
    if node is None:
        return None
    is_config = OmegaConf.is_config(node)
    key, trust = (node._get_full_key(""), _trust_of(node)) if is_config else ("", ())
    config = plain(node) if is_config else node
    located(config, key=key, trust=trust)
    if "_target_" not in config:
        raise UsageError(f"{key}._target_ must be given, got {format_value(config)}")
    key = key or config["_target_"]
    try:
        built = hydra.utils.instantiate(config, _partial_=True, _convert_="all")
    except HydraException as error:
        if not isinstance(error.__cause__, _REFUSALS):
            raise
        raise UsageError(_blame(key, error.__cause__, config)) from error

    def build(*args: Any, **rest: Any) -> Any:
        try:
            return built.func(*built.args, *args, **{**built.keywords, **runtime, **rest})
        except RuntimeError as error:  # of torch, which is asked for more than there is
            if not _TOO_MUCH.search(str(error)):
                raise
            raise UsageError(_blame(key, error, config)) from error
        except _REFUSALS as error:
            raise UsageError(_blame(key, error, config)) from error

    return build if config.get("_partial_", False) else build()


def _blame(key: str, error: BaseException, node: Mapping[str, Any]) -> str:
    """The message of a constructor that failed, with the numbers that it is about but does not
    name.
    """
    message = str(error).splitlines()[0] if isinstance(error, RuntimeError) else str(error)
    numbers = _unnamed_numbers(error, message, node)
    if numbers:
        largest = sorted(numbers, key=lambda name: -abs(numbers[name]))
        message += f"; got {', '.join(f'{name}={format_value(numbers[name])}' for name in largest)}"
    return f"{key}: {message}"


def _unnamed_numbers(
    error: BaseException, message: str, node: Mapping[str, Any]
) -> dict[str, float]:
    """Numbers of a node that an error may be about: those it quotes without a name, else all if it
    is about any.
    """
    numbers = {
        name: value
        for name, value in node.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in SPECIAL
    }
    names_setting = any(re.search(rf"\b{re.escape(name)}\b", message) for name in node)
    if names_setting or _OF_CHECKS.match(message):
        return {}
    quoted = [float(text) for text in _NUMBER.findall(message)]
    same = {name: value for name, value in numbers.items() if float(value) in quoted}
    is_too_much = isinstance(error, OverflowError | MemoryError) or bool(_TOO_MUCH.search(message))
    if is_too_much or (quoted and not same):  # a size, or a number computed from several settings
        return numbers
    return same
