"""Configurations of files, which may come from somebody else.

A file may name only what `yamame.files.trusted` lists for its place. Everything else that it names
needs trust: classes of other packages, modules that an id of an environment imports, and files to
open. All of it is found before anything is imported for it or built.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from yamame.checks import SettingError, require_setting
from yamame.files.trusted import (
    DOTTED,
    IDS,
    OURS,
    PACKAGE,
    SPECIAL,
    UntrustedError,
    imports_freely,
    is_of_kind,
)

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
_FETCHING = re.compile(r"backbone|pretrained|timm|hub|name_or_path", re.IGNORECASE)
"""Names of settings by which libraries of models download weights."""


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
    condition = "name no module that is not trusted, because it would be imported"
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
        is_name = isinstance(value, str) and DOTTED.fullmatch(value) is not None
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
        if not imports_freely(path, module):
            is_module = PACKAGE.fullmatch(module) is not None
            require_setting(key, value, is_module, "be a text that imports no module, in a file")
            return Need(path, value, f"{module}.")
    return None


def _names_file(path: tuple[str, ...], value: Any) -> bool:
    """Return whether an entry may have a file opened, or weights downloaded."""
    is_set = value not in (None, False, [], {})
    # What an object is built of is judged by itself.
    is_object = isinstance(value, Mapping) and "_target_" in value
    if path[0] != "env" and is_set and not is_object and _FETCHING.search(path[-1]):
        return True
    if not isinstance(value, str):
        return False
    if (
        "://" in value
        or value.startswith(("/", "~", "\\", "."))
        or ".." in re.split(r"[/\\]", value)
    ):
        return True
    is_id = any(name in IDS for name in path)
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
