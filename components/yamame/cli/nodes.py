"""Nodes of a configuration: mappings whose ``_target_`` names a class or function, and whose other
keys are its arguments.

Functions here take parts of a configuration in any form: OmegaConf's, typed settings
(`yamame.cli.sections`), or plain dictionaries.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from yamame.checks import SettingError, UsageError
from yamame.cli.replaced import leave_out_replaced
from yamame.cli.sections import Config, Node, Section, data_of, place_of
from yamame.cli.validation import (
    ForeignArgumentError,
    argument_problems,
    check_section,
    free_data_of,
    raise_any,
    shape_problems,
    special_problems,
    validated,
)
from yamame.files.building import build_node
from yamame.files.config import flatten
from yamame.files.trusted import check_name, locate, prefixes_of
from yamame.system.messages import first_line

Located = tuple[str, dict[str, Any], Callable[..., Any]]
"""Dotted key, plain data and class of a node."""


def plain(cfg: Any) -> Any:
    """Return a part of a configuration as plain dictionaries and lists, interpolations resolved.

    Raises:
        UsageError: A value is missing (``???``) or an interpolation leads nowhere.
    """
    if isinstance(cfg, Node | Section):
        return data_of(cfg)
    if not OmegaConf.is_config(cfg):
        return copy.deepcopy(cfg)
    try:
        return OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise _unresolved(error) from error


def _unresolved(error: OmegaConfBaseException) -> UsageError:
    """Return the error of a value that is missing or cannot be resolved, with its key."""
    key = error.full_key or "configuration"
    if isinstance(error, MissingMandatoryValue):
        return UsageError("must be given", key=key, remedy=f"add {key}=...")
    # Some messages of OmegaConf go on with a trace of keys and types.
    return UsageError(first_line(error), key=key)


def targets(node: Any, key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every node of plain data that has a ``_target_``, with its dotted key, outermost
    first.
    """
    entries: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(node, dict):
        if "_target_" in node:
            yield key, node
        entries = iter(node.items())
    elif isinstance(node, list):
        entries = enumerate(node)
    for name, entry in entries:
        yield from targets(entry, f"{key}.{name}" if key else str(name))


def target_problems(node: Any, key: str, trust: Sequence[str]) -> Iterator[UsageError]:
    """Yield wrong names of targets, and wrong keys for Hydra; nothing is imported.

    Args:
        node: Plain data.
        key: Dotted key of the node.
        trust: Prefixes of packages whose classes may be named beside ours.
    """
    for name, target in targets(node, key):
        try:
            check_name(target["_target_"], name, trust)
        except UsageError as error:
            yield error
        yield from special_problems(target, name)
    for name, text in flatten({key: node} if key else node).items():
        # An interpolation that is left would be resolved when the node is built.
        if "${" in str(text):
            yield SettingError(name, text, "be a value and no interpolation")


def located(node: Any, *, key: str = "", trust: Collection[str] = ()) -> list[Located]:
    """Return every target of plain data with its class. All names are checked before any import.

    Args:
        node: Plain data.
        key: Dotted key of the node.
        trust: Packages whose classes may be named beside ours, as the setting ``trust``.

    Raises:
        UsageError: There is no such class, or it may not be named.
    """
    prefixes = prefixes_of(trust)
    raise_any(list(target_problems(node, key, prefixes)))
    problems: list[UsageError] = []
    nodes = _locate_all(node, key, prefixes, problems)
    raise_any(problems)
    return nodes


def _locate_all(
    node: Any,
    key: str,
    trust: Sequence[str],
    problems: list[UsageError],
    *,
    only_own: bool = False,
) -> list[Located]:
    """Import the targets of plain data whose names have been checked; with ``only_own`` only those
    of Yamame and of torch.
    """
    nodes = []
    for name, target in targets(node, key):
        if only_own and not _is_own(target["_target_"]):
            continue
        try:
            function = locate(target["_target_"], name, trust)
        except UsageError as error:
            problems.append(error)
            continue
        nodes.append((name, target, function))

        # Free data reaches the class as it is, so that nothing in it is built.
        for argument in free_data_of(function) & target.keys():
            for place, inner in targets(target[argument], f"{name}.{argument}"):
                condition = "be plain data there"
                problems.append(SettingError(f"{place}._target_", inner["_target_"], condition))
    return nodes


def _is_own(path: Any) -> bool:
    """Return whether a target may be named without trust."""
    try:
        check_name(path, "")
    except UsageError:
        return False
    return True


def target_of(node: Any) -> Callable[..., Any]:
    """Return the class or function of a node, which is not built."""
    key, trust = _place(node)
    return located(plain(node), key=key, trust=trust)[0][2]


def _place(node: Any) -> tuple[str, tuple[str, ...]]:
    """Return the dotted key of a node, and the packages that its configuration trusts."""
    if isinstance(node, Node):
        return place_of(node)
    if not OmegaConf.is_config(node):
        return "", ()
    # A node that was created alone has no configuration above it.
    root = node._get_root()
    trust = root.get("trust") if isinstance(root, DictConfig) else None
    return node._get_full_key(""), tuple(trust or ())


def select(cfg: Any, key: str) -> Any:
    """Return the value at a dotted key; None if a part of the key does not exist.

    >>> select(Node({"env": {"size": 9}}), "env.size"), select(Node({}), "env.size")
    (9, None)
    """
    for name in key.split("."):
        cfg = getattr(cfg, name, None)
    return cfg


def with_changes(cfg: Any, changes: Mapping[str, Any]) -> Any:
    """Return a copy of a whole configuration with other values.

    Args:
        cfg: The composed configuration, or typed settings.
        changes: Values, nested as the configuration.
    """
    if not isinstance(cfg, Config):
        return OmegaConf.merge(cfg, changes)
    values = plain(OmegaConf.merge(plain(cfg), changes))
    return validated(type(cfg), values)


def check(
    cfg: Any, model: type[Config] | None = None, *, overridden: Collection[str] | None = None
) -> Config | Node:
    """Check a whole configuration without building anything.

    All values must be given and resolve. All targets must be allowed, and take the keys beside
    them with these values. Other keys are checked by the model.

    Args:
        cfg: The composed configuration. Settings of classes that the command line replaced are
            removed from it (`yamame.cli.replaced`).
        model: Model of the settings, see `yamame.cli.settings`; None: settings are not checked.
        overridden: Keys that the command line set; None outside of a command line.

    Returns:
        Settings of the model; without one, the whole configuration as a node.

    Raises:
        UsageError: Has every key that is wrong, with its value, in the order of the keys.
    """
    problems: list[UsageError] = []
    leave_out_replaced(cfg, overridden or ())
    config = _resolved(cfg, model, problems)
    settings: Config | Node | None = Node.of(config)
    if model is not None:
        settings = check_section(model, config, problems, overridden=overridden or ())
    try:
        trust = prefixes_of(config.get("trust", ()))
    except UsageError as error:
        problems.append(error)
        trust = ()
    wrong_names = list(target_problems(config, "", trust))
    problems += wrong_names
    # All names must be right before a package of the user is imported.
    nodes = _locate_all(config, "", trust, problems, only_own=bool(wrong_names))
    problems += _all_argument_problems(config, nodes, overridden)
    raise_any(_in_order(problems, cfg))
    assert settings is not None
    return settings


def _resolved(cfg: Any, model: type[Config] | None, problems: list[UsageError]) -> dict[str, Any]:
    """Return a whole configuration as plain data, without the values that cannot be resolved."""
    try:
        return plain(cfg)
    except UsageError:
        config = _resolve_entries(cfg, problems)
    raw: Any = OmegaConf.to_container(cfg, resolve=False)
    # Interpolations into a section that is none fail only because of it.
    if model is not None and any(shape_problems(model, raw)):
        problems[:] = [problem for problem in problems if isinstance(problem, SettingError)]
    return config


def _resolve_entries(cfg: DictConfig, problems: list[UsageError]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name in cfg:
        try:
            entry = cfg[name]
        except OmegaConfBaseException as error:
            problems.append(_unresolved(error))
            continue
        try:
            config[str(name)] = plain(entry)
        except UsageError as error:
            is_own = isinstance(entry, DictConfig) and not OmegaConf.is_interpolation(
                cfg, str(name)
            )
            if is_own:
                config[str(name)] = _resolve_entries(entry, problems)
            else:
                problems.append(error)
    return config


def _in_order(problems: Sequence[UsageError], cfg: Any) -> list[UsageError]:
    """Return the first problem of each key, in the order of the keys in the configuration."""
    config = OmegaConf.to_container(cfg, resolve=False) if OmegaConf.is_config(cfg) else cfg
    places = {key: place for place, key in enumerate(_all_keys(config, ""))}

    def place(problem: UsageError) -> int:
        key = problem.key or ""
        # A key that is absent belongs to the part that lacks it.
        while key and key not in places:
            key = key.rpartition(".")[0]
        return places.get(key, len(places))

    # Models come before classes, and describe a setting of theirs better.
    first: dict[str | None, UsageError] = {}
    for problem in problems:
        first.setdefault(problem.key, problem)
    return sorted(first.values(), key=place)


def _all_keys(value: Any, key: str) -> Iterator[str]:
    """Yield the dotted keys of all values, containers before their entries."""
    entries: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, Mapping):
        entries = iter(value.items())
    elif isinstance(value, list):
        entries = enumerate(value)
    for name, entry in entries:
        below = f"{key}.{name}" if key else str(name)
        yield below
        yield from _all_keys(entry, below)


def _all_argument_problems(
    config: Mapping[str, Any], nodes: list[Located], overridden: Collection[str] | None
) -> list[UsageError]:
    """Return wrong arguments of all targets; those that a target does not take come last."""
    wrong: list[UsageError] = []
    foreign: list[ForeignArgumentError] = []
    for key, node, target in [*nodes, *_changed_envs(config, nodes)]:
        for problem in argument_problems(target, node, key):
            if isinstance(problem, ForeignArgumentError):
                foreign.append(problem)
            else:
                wrong.append(problem)
    # Keys that a preset has set can be dropped by the command line.
    presets = [f"~{each.key}" for each in foreign if each.key not in (overridden or ())]
    if presets and overridden is not None:
        what = "a preset sets what this choice does not take"
        foreign[-1].remedy = f"{what}, add {' '.join(presets)}"
    return [*wrong, *foreign]


def _changed_envs(config: Mapping[str, Any], nodes: list[Located]) -> Iterator[Located]:
    """Yield the settings that change an environment, which have no target of their own."""
    for key, _, env in nodes:
        if key != "env":
            continue
        for name in ("evaluation", "source"):
            section = config.get(name)
            changes = section.get("env") if isinstance(section, dict) else None
            if isinstance(changes, dict):
                yield f"{name}.env", changes, env


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
    key, trust = _place(node)
    config = node if isinstance(node, dict) else plain(node)
    located(config, key=key, trust=trust)
    if "_target_" not in config:
        condition = "be the name of a class or function"
        raise SettingError(f"{key}._target_".lstrip("."), config, condition)
    prefixes = prefixes_of(trust)
    return build_node(config, key or config["_target_"], trust=prefixes, runtime=runtime)
