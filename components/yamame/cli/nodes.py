"""Nodes of a configuration: those with a ``_target_`` name a class or function, and their other keys its arguments."""

from collections.abc import Callable, Collection, Iterator, Mapping
from pkgutil import resolve_name
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from yamame.checks import UsageError
from yamame.cli.validation import check_arguments, check_settings, parameters_of

ALLOWED = ("yamame.", "yamame_envs.", "torchrl.", "torch.")
"""Prefixes of what a configuration may name as ``_target_``."""
_SPECIAL = {"_target_", "_partial_", "_recursive_", "_convert_", "_args_"}


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
    """Every node of a plain configuration that has a ``_target_``, with its dotted key, outermost first."""
    if isinstance(node, dict) and "_target_" in node:
        yield key, node
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, item in items:
        yield from targets(item, f"{key}.{name}" if key else str(name))


def check_targets(node: Any, *, key: str = "") -> None:
    """Refuses targets that are not on the list, before anything is imported.

    Raises:
        UsageError: Names the key, the value and the allowed prefixes.

    >>> check_targets({"env": {"_target_": "yamame_envs.MazeRunner"}})
    """
    for name, target in targets(node, key):
        value = target["_target_"]
        if not isinstance(value, str) or not value.startswith(ALLOWED):
            raise UsageError(f"{name}._target_ must begin with {' or '.join(ALLOWED)}, got {value!r}")


def check(
    cfg: DictConfig, settings: Mapping[str, Any] | None = None, *, typed: Collection[str] | None = None
) -> dict[str, Any]:
    """Checks a whole configuration without building anything.

    Every value is given and resolves; every target is allowed and can be imported, every key below a target is a
    parameter of it, and every value of the type that this has. What no target takes is checked by ``settings``.

    Args:
        cfg: The composed configuration.
        settings: What settings may be that no target takes, see `yamame.cli.settings`.
        typed: Keys that the command line itself set; None: there is none, so nothing is said of it.

    Returns:
        The configuration as plain data.

    Raises:
        UsageError: Names the key and the value.
    """
    config = plain(cfg)
    check_targets(config)
    check_settings(settings or {}, config)
    foreign: dict[str, str] = {}
    for key, node in targets(config):
        target = _locate(node["_target_"], key)
        parameters = parameters_of(target)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            takes = f"{node['_target_']} takes {', '.join(parameters)}"
            foreign |= {f"{key}.{name}": takes for name in node if name not in _SPECIAL | parameters.keys()}
        check_arguments(target, node, key)
    if foreign:
        # Those that the command line did not set can be dropped by it.
        presets = [] if typed is None else [f"~{key}" for key in foreign if key not in typed]
        remedy = f"; a preset sets what this choice does not take, add {' '.join(presets)}" if presets else ""
        name, takes = next(iter(foreign.items()))
        raise UsageError(f"{name}: {takes}, not {name.rpartition('.')[2]!r}{remedy}")
    return config


def _locate(path: str, key: str) -> Callable[..., Any]:
    """The object that a dotted path names."""
    try:
        found = resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"{key}._target_ must name a class or function, got {path!r}: {error}") from error
    if not callable(found):
        raise UsageError(f"{key}._target_ must name a class or function, got {path!r}")
    return found


def instantiate(node: Any, **runtime: Any) -> Any:
    """Builds what a configuration node describes, giving it facts known at run time.

    Nested targets are built first, containers arrive as plain ones, and ``runtime`` arrives untouched (Hydra
    itself would turn dictionaries and lists in it into its own). With ``_partial_: true`` the result is a
    function that takes the rest.

    Args:
        node: A node with ``_target_``; None gives None.
        runtime: Further keyword arguments.

    Raises:
        UsageError: A target is not allowed, or a constructor refused its arguments (with its message).
    """
    if node is None:
        return None
    key = node._get_full_key("") if OmegaConf.is_config(node) else ""
    config = plain(node) if OmegaConf.is_config(node) else node
    check_targets(config, key=key)
    key = key or config["_target_"]
    try:
        built = hydra.utils.instantiate(config, _partial_=True, _convert_="all")
    except HydraException as error:
        cause = error.__cause__ if isinstance(error.__cause__, TypeError | ValueError) else None
        if cause is None:
            raise
        raise UsageError(f"{key}: {cause}") from error

    def build(*args: Any, **rest: Any) -> Any:
        try:
            return built.func(*built.args, *args, **{**built.keywords, **runtime, **rest})
        except (TypeError, ValueError) as error:
            raise UsageError(f"{key}: {error}") from error

    return build if config.get("_partial_", False) else build()
