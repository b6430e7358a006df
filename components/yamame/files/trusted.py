"""Classes, functions and files that a configuration may name.

A configuration that a person composes may name classes of Yamame, layers and optimizers of torch
and torchrl, and classes of the packages in ``trust``.

A file (a checkpoint, a run directory, an artifact of MLflow) may come from somebody else. At each
key it may name only the kind of class that belongs there: one of the room of this kind, with the
base class of this kind. It may also name classes of packages in ``trust``, a setting that never
comes from the file itself. All names of a file are checked before anything is built, and only
modules of Yamame are imported for it.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

from yamame.checks import SettingError, require_setting
from yamame.files.kinds import KINDS as KINDS
from yamame.files.kinds import is_of_kind as is_of_kind
from yamame.system.messages import one_line
from yamame.system.user_code import user_code

OURS = ("yamame.", "yamame_envs.")
LAYERS = ("torch.nn.", "torch.optim.", "torchrl.modules.", "torchrl.objectives.")
"""Modules outside of Yamame of which a person may name layers, losses, optimizers and their
schedules.
"""
SPECIAL = ("_target_", "_partial_", "_recursive_", "_convert_", "_args_")
"""Keys of a node for Hydra, which are no arguments of the target."""

_REGISTERING = ("popgym", "yamame_envs")
"""Modules that a file may have imported before an environment is looked up
(``"popgym:popgym-..."``).
"""
_DOTTED = re.compile(r"[A-Za-z]\w*(\.(?!__)[A-Za-z_]\w*)+", re.ASCII)
_PACKAGE = re.compile(r"[A-Za-z]\w*(\.[A-Za-z_]\w*)*\.?", re.ASCII)
_TEXTS = ("device", "expected", "logger", "run")
"""Settings whose texts may hold a colon and name no module."""
_DEEPEST = 32
_MOST_ENTRIES = 20_000
"""Values of a configuration; that of a run has some hundreds."""
_BUILT = (
    *("agent", "encoder", "env", "evaluation", "goal_encoder", "relabel", "source"),
    *("timestep_encoder", "trials", "workers"),
)
"""Sections from which a loaded run is built, so that their texts may name files to open."""
_IDS = ("id", "ids", "names")
"""Keys of ids of environments, in which a slash is no path: ``ALE/Pong-v5``."""
_FETCHING = re.compile(r"backbone|pretrained|timm|hub|name_or_path", re.IGNORECASE)
"""Names of settings by which libraries of models download weights."""


class UntrustedError(SettingError):
    """A name that needs trust.

    Args:
        key: Dotted key of the name.
        value: The name.
        condition: Condition that it does not meet, in words that follow "must".
        packages: Prefixes to add to those that are trusted.
        trust: Prefixes that are trusted already.
        hint: Text before the value to add.
    """

    def __init__(
        self,
        key: str,
        value: Any,
        condition: str,
        *,
        packages: Iterable[str],
        trust: Iterable[str] = (),
        hint: str = "a package of your own must be in trust=[...]",
    ) -> None:
        self.packages = tuple(dict.fromkeys([*trust, *packages]))
        self.hint = hint
        super().__init__(key, value, condition, remedy=self._remedy(",".join(self.packages)))

    def _remedy(self, listed: str) -> str:
        return f"{self.hint}: add trust=[{listed}]"

    def as_in_python(self) -> None:
        """Write the value to add as an argument of a function."""
        self.remedy = self._remedy(", ".join(json.dumps(package) for package in self.packages))


def prefixes_of(trust: Any) -> tuple[str, ...]:
    """Return the prefixes of dotted names in some packages.

    Raises:
        UsageError: A value is no name of a package.

    >>> prefixes_of(["mylab.", "others"])
    ('mylab.', 'others.')
    """
    packages = trust if isinstance(trust, list | tuple) else [trust]
    for package in packages:
        if not isinstance(package, str) or not _PACKAGE.fullmatch(package):
            raise SettingError("trust", trust, "be a list of packages, as [mylab.]")
    return tuple(f"{package.rstrip('.')}." for package in packages)


def check_name(path: Any, key: str, trust: Iterable[str] = ()) -> None:
    """Check that a person may name a target, by its text alone.

    Args:
        path: Value of ``_target_``.
        key: Dotted key of the node.
        trust: Prefixes, see `prefixes_of`.

    Raises:
        SettingError: The name has another prefix.
    """
    allowed = (*OURS, *LAYERS)
    is_name = isinstance(path, str) and _DOTTED.fullmatch(path) is not None
    trusted = tuple(trust)
    if is_name and path.startswith((*allowed, *trusted)):
        return
    condition = f"begin with {' or '.join(allowed)} or a package of trust=[...]"
    if not is_name:
        raise SettingError(f"{key}._target_", path, condition)
    packages = [f"{path.partition('.')[0]}."]
    raise UntrustedError(f"{key}._target_", path, condition, packages=packages, trust=trusted)


def locate(path: str, key: str, trust: Iterable[str] = ()) -> Callable[..., Any]:
    """Import the class or function of a checked name.

    A name that a module has imported from another package does not count, as
    ``yamame.files.run_directory.shutil.rmtree``.

    Raises:
        SettingError: There is none, it belongs to another package, or it is of torch and neither a
            layer nor an optimizer.
        UserCodeError: A module of the user raised an error when it was imported.
    """
    key = f"{key}._target_"
    try:
        with user_code(f"{key} ({path})"):
            target = _import_target(path)
    except (ImportError, AttributeError, ValueError) as error:
        condition = "name a class or function"
        raise SettingError(key, path, condition, remedy=one_line(error)) from error
    package = path.partition(".")[0]
    home = str(getattr(target, "__module__", "")).split(".")
    is_own = callable(target) and home[0] == package
    require_setting(key, path, is_own, f"name a class or function of {package}")
    if path.startswith(LAYERS) and not path.startswith(tuple(trust)):
        # Some of torchrl's modules fetch models from elsewhere.
        fetches = "llm" in home or "rlhf" in home
        is_layer = _is_layer(target) and not fetches
        require_setting(key, path, is_layer, f"name a layer or an optimizer of {package}")
    return target


def _import_target(path: str) -> Any:
    """Import the modules of a dotted name, and return what it names.

    Unlike ``pkgutil.resolve_name``, raise the error of a module that exists and cannot be imported.
    """
    name, *names = path.split(".")
    target: Any = import_module(name)
    for attribute in names:
        inner = f"{name}.{attribute}"
        is_package = getattr(target, "__name__", None) == name and hasattr(target, "__path__")
        if is_package and (inner in sys.modules or find_spec(inner) is not None):
            target = import_module(inner)
        else:
            target = getattr(target, attribute)
        name = inner
    return target


def _is_layer(target: Any) -> bool:
    # A command line is checked before torch is imported, and imports this module.
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    return inspect.isclass(target) and issubclass(target, Module | Optimizer | LRScheduler)


def own_modules(env: Mapping[str, Any]) -> list[str]:
    """Return the modules that an environment's settings import if they come from the command line,
    and that need trust if they come from a file.

    >>> own_modules({"id": "mylab.doors:Door-v0", "settings": {}, "tasks": "mylab.doors:draw"})
    ['mylab.doors.']
    """
    modules = []
    for value in env.values():
        if isinstance(value, str) and ":" in value:
            module = value.rpartition(":")[0]
            if module not in _REGISTERING and f"{module}." not in modules:
                modules.append(f"{module}.")
    return modules


def without_foreign_weights(config: Any) -> Any:
    """Return a configuration from a file without paths of pretrained weights.

    The file has its own weights, so that the path, which may be somebody else's, is not needed.

    >>> encoder = {"_target_": "yamame.trajectory.HFEncoder", "path": "/home/you"}
    >>> without_foreign_weights({"encoder": encoder})
    {'encoder': {'_target_': 'yamame.trajectory.HFEncoder', 'path': None}}
    """
    if isinstance(config, list):
        return [without_foreign_weights(value) for value in config]
    if not isinstance(config, Mapping):
        return config
    kept = {key: without_foreign_weights(value) for key, value in config.items()}
    if _reads_weights(config.get("_target_")):
        kept["path"] = None
    return kept


def _reads_weights(target: Any) -> bool:
    """Return whether a target is an encoder that reads pretrained weights, under any name."""
    if not isinstance(target, str) or not target.startswith("yamame.trajectory."):
        return False
    # The early command line imports this module, and must not import torch.
    from yamame.trajectory import HFEncoder

    try:
        encoder = resolve_name(target)
    except (ImportError, AttributeError, ValueError):
        return False
    return inspect.isclass(encoder) and issubclass(encoder, HFEncoder)


@dataclass(frozen=True)
class Need:
    """Entry of a configuration that a file may have only with trust.

    Attributes:
        path: Keys of the entry.
        value: Its value.
        prefix: Prefix of the names that it needs trust in, such as ``mylab.``; None if it names a
            file or a download.
    """

    path: tuple[str, ...]
    value: Any
    prefix: str | None

    @property
    def key(self) -> str:
        """Dotted key."""
        return ".".join(self.path)


def check_file(
    config: Any, trust: Iterable[str] = (), *, files: bool = False, hint: str | None = None
) -> None:
    """Check that a configuration from a file is plain data and names only what a file may name.

    Args:
        config: Configuration as in the file, before anything of it is resolved.
        trust: Prefixes of packages whose classes may be named, see `prefixes_of`.
        files: Whether it may also name files.
        hint: Text before the packages to trust, in the message.

    Raises:
        UntrustedError: Names all packages that would have to be trusted.
        SettingError: Has the key and the value.

    >>> check_file({"encoder": {"_target_": "mylab.Encoder"}})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    yamame.files.trusted.UntrustedError: encoder._target_: must be ...: add trust=[mylab.]
    """
    trusted = tuple(trust)
    missing: list[Need] = []
    packages = []
    try:
        for need in needs_of(config):
            if need.prefix is None:
                if not files and not _is_of_trusted(config, need.path, trusted):
                    _refuse_file(need)
            elif not need.prefix.startswith(trusted):
                missing.append(need)
                # A target may be of any module of its package; an id imports one module.
                is_target = need.path[-1] == "_target_"
                top = f"{need.prefix.partition('.')[0]}."
                packages.append(top if is_target else need.prefix)
    except SettingError:
        # The first problem is reported.
        if not missing:
            raise
    if not missing:
        return

    first = missing[0]
    condition = "be a text that imports no module, in a file"
    if first.path[-1] == "_target_":
        condition = "be a class of Yamame that belongs there, in a file"
    hints = {} if hint is None else {"hint": hint}
    raise UntrustedError(
        first.key, first.value, condition, packages=packages, trust=trusted, **hints
    )


def needs_of(config: Any) -> Iterator[Need]:
    """Yield the entries of a configuration that a file may have only with trust.

    Raises:
        SettingError: It is no plain data, or names something that a file may never name.
    """
    for count, (path, value) in enumerate(_entries(config, ())):
        if count > _MOST_ENTRIES:
            condition = f"have at most {_MOST_ENTRIES} values"
            raise SettingError(path[0], type(config[path[0]]).__name__, condition)
        need = _need_of(path, value)
        if need is not None:
            yield need


def _need_of(path: tuple[str, ...], value: Any) -> Need | None:
    """Return what an entry needs trust in; None if a file may have it.

    Raises:
        SettingError: It is no plain data, or names something that a file may never name.
    """
    key = ".".join(path) or "configuration"
    name = path[-1] if path else ""
    if name == "_target_":
        is_name = isinstance(value, str) and _DOTTED.fullmatch(value) is not None
        if is_name and is_of_kind(value, path[0]):
            return None
        # A name of ours in a wrong place is one of a damaged file, which trust does not mend.
        is_foreign = is_name and not value.startswith(OURS)
        condition = "be a class of Yamame that belongs there, in a file"
        require_setting(key, value, is_foreign, condition)
        return Need(path, value, f"{value.rpartition('.')[0]}.")
    if name == "_partial_":
        require_setting(key, value, isinstance(value, bool), "be true or false")
        return None
    require_setting(key, value, name not in SPECIAL, "be absent in a file")

    # Subclasses of these types could run code of their own.
    is_plain = type(value) in (dict, list, str, int, float, bool, type(None))
    condition = f"be plain data, no more than {_DEEPEST} levels deep"
    require_setting(key, value, is_plain and len(path) <= _DEEPEST, condition)
    text = value if isinstance(value, str) else ""
    # OmegaConf would resolve it when the configuration is read.
    is_resolved = "${" not in text and "${" not in key
    require_setting(key, value, is_resolved, "be a value and no interpolation, in a file")
    if path and path[0] in _BUILT and _names_file(path, value):
        return Need(path, value, None)
    # Gymnasium imports the module before the colon of an id.
    if ":" in text and path and path[0] not in _TEXTS:
        module = text.rpartition(":")[0]
        if module not in _REGISTERING:
            is_module = _PACKAGE.fullmatch(module) is not None
            require_setting(key, value, is_module, "be a text that imports no module, in a file")
            return Need(path, value, f"{module}.")
    return None


def _names_file(path: tuple[str, ...], value: Any) -> bool:
    """Return whether an entry may have a file opened, or weights downloaded."""
    is_set = value not in (None, False, [], {})
    if path[0] != "env" and is_set and _FETCHING.search(path[-1]):
        return True
    if not isinstance(value, str):
        return False
    if (
        "://" in value
        or value.startswith(("/", "~", "\\", "."))
        or ".." in re.split(r"[/\\]", value)
    ):
        return True
    is_id = any(name in _IDS for name in path)
    return not is_id and ("/" in value or "\\" in value)


def _is_of_trusted(config: Any, path: tuple[str, ...], trust: tuple[str, ...]) -> bool:
    """Return whether an entry belongs to a class or an environment of a trusted package."""
    # Settings of held-out tasks are given to the environment of training.
    starts = [(config, path)]
    if path[:2] == ("evaluation", "env"):
        starts.append((config, path[1:]))
    for node, keys in starts:
        for key in keys:
            if not isinstance(node, Mapping):
                break
            names = (node.get("_target_"), f"{str(node.get('id')).rpartition(':')[0]}.")
            if any(isinstance(name, str) and name.startswith(trust) for name in names):
                return True
            node = node.get(key)
    return False


def _refuse_file(need: Need) -> None:
    remedy = None
    if need.path[0] in ("env", "trials"):
        value = json.dumps(need.value)
        remedy = f"if it is yours, add {need.key}={value}"
    raise SettingError(need.key, need.value, "name no file or download, in a file", remedy=remedy)


def _entries(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every value with its path, containers before their entries."""
    yield path, value
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for name, item in items:
        yield from _entries(item, (*path, str(name)))
