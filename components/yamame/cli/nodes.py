"""Nodes of a configuration: those with a ``_target_`` name a class or function, and their other
keys its arguments.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from yamame.checks import SettingError, UsageError
from yamame.cli.validation import (
    check_arguments,
    check_groups,
    check_settings,
    free_data_of,
    parameters_of,
    undeclared,
)
from yamame.files.building import build_node
from yamame.files.config import flatten
from yamame.files.identity import is_one_of
from yamame.files.trusted import SPECIAL, check_name, locate, prefixes_of
from yamame.system.messages import format_value


def plain(cfg: Any) -> Any:
    """A configuration as plain dictionaries and lists, interpolations resolved.

    Raises:
        UsageError: A value is missing (``???``) or an interpolation leads nowhere.
    """
    try:
        return OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "configuration"
        raise UsageError(str(error).splitlines()[0], key=key) from error


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
    """Build the object that a node of the configuration describes.

    Containers arrive in constructors as plain dictionaries and lists.

    Args:
        node: A node with ``_target_``; None gives None. With ``_partial_: true`` the result is a
            function that takes the remaining arguments.
        runtime: Further keyword arguments, known at run time; they are passed on as they are.

    Raises:
        UsageError: A target may not be named, or a constructor raised an error. It has the dotted
            key of the node.
    """
    if node is None:
        return None
    key = ""
    config = node
    trust: Collection[str] = ()
    if OmegaConf.is_config(node):
        key = node._get_full_key("")
        trust = _trust_of(node)
        config = plain(node)
    located(config, key=key, trust=trust)
    if "_target_" not in config:
        condition = "be the name of a class or function"
        raise SettingError(f"{key}._target_".lstrip("."), config, condition)
    prefixes = prefixes_of(trust)
    return build_node(config, key or config["_target_"], trust=prefixes, runtime=runtime)
