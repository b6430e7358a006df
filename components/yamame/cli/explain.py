"""Hydra's errors in one line, with the closest existing names."""

import difflib
import errno
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hydra import compose
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from yamame.checks import UsageError
from yamame.cli.command_line import CommandLine
from yamame.files.config import flatten
from yamame.files.identity import key_of
from yamame.system.messages import OutsideError, one_line

REMOVABLE = ("debug", "experiment", "hardware", "trials")
"""Groups that a recipe does without, so that ``~`` may take them away."""
REMEDIES = {
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "make room in your quota",
    errno.EFBIG: "allow larger files, with ulimit -f",
    errno.EIO: "have the disk looked after",
    errno.EROFS: "make the file system writable",
    errno.EACCES: "ask for the permission",
    errno.EPERM: "ask for the permission",
    errno.ENOTDIR: "move the file that is in the way of a directory",
    errno.EISDIR: "move the directory that is in the way of a file",
    errno.ENOENT: "make it, or put it back",
    errno.EMFILE: "allow more open files, with ulimit -n",
}
"""What helps against a failure of the system."""
SWEEPING = {
    "hydra/launcher": ("joblib", "submitit_local", "submitit_slurm"),
    "hydra/sweeper": ("optuna",),
}
"""Choices of Hydra's that are in packages of their own."""
_NAME = re.compile(r"[A-Za-z_][\w./@-]*")
_NO_NAMES = ("null", "true", "false", "nan", "inf")
_KEY = re.compile(r"(?:Could not (?:override|append to config\.?|delete from config\.?)) '([^']+)'")


def check_choices(line: CommandLine) -> None:
    """Refuses choices that are no names, on which Hydra stumbles, and what Hydra itself would
    build.

    Raises:
        UsageError: Names the choice, and says how a group is left out.
    """
    for text in line.overrides:
        group, value = key_of(text), text.partition("=")[2]
        if "=" not in text and text[:1] != "~":
            raise UsageError(f"{text}: must be key=value, as seed=1")
        if not group:
            raise UsageError(f"{text}: must be key=value, it has no key")
        if group.partition(".")[0] == "hydra" and "_target_" in text:  # which nothing checks
            raise UsageError(f"{group}: must name no target of Hydra's own, got {text}")
        folders = [root / group for root in line.roots if (root / group).is_dir()]
        names = value.split(",")
        if text[:1] == "~" or value[:1] in ("", "{") or not folders:
            continue
        if any(
            name.lower() in _NO_NAMES or not _NAME.fullmatch(name.strip("[] ")) for name in names
        ):
            options = sorted({path.stem for folder in folders for path in folder.glob("*.yaml")})
            instead = f"~{group} leaves the group out" if group in REMOVABLE else _list(options)
            raise UsageError(f"{text}: no such choice; {instead}")


def explain_outside(error: OSError | OutsideError) -> str:
    """What failed outside of the program, where, and what helps; with the notes that were added to
    the error.

    >>> explain_outside(OSError(errno.ENOSPC, "No space left on device", "runs/a/checkpoints/step-1.pt"))
    'runs/a/checkpoints/step-1.pt: No space left on device; make room on its disk'
    """
    text, remedies = one_line(error), []
    if isinstance(error, OSError) and error.strerror:
        place = (
            error.filename if error.filename2 is None else f"{error.filename} -> {error.filename2}"
        )
        text = f"{place}: {error.strerror}" if error.filename else error.strerror
        remedies = [REMEDIES[number] for number in (error.errno,) if number in REMEDIES]
    return "; ".join([text, *remedies, *getattr(error, "__notes__", ())])


def explain(error: Exception, line: CommandLine) -> str:
    """What was wrong on the command line, told by what Hydra or OmegaConf raised."""
    text = str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        options = error.options
        if not options:  # those of a group of groups
            group, _, choice = error.missing_cfg_file.partition("/")
            found = [
                (root / group, file)
                for root in line.roots
                for file in (root / group).rglob("*.yaml")
            ]
            options = sorted(
                {file.relative_to(folder).with_suffix("").as_posix() for folder, file in found}
            )
        if choice in SWEEPING.get(group, ()):
            return (
                f"{group}={choice}: its package must be installed, run: pip install 'yamame[sweep]'"
            )
        if options:
            return f"{group}={choice}: no such choice{_hint(choice, options)}; {_list(options)}"
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} cannot be read: {error.message.splitlines()[0]}"
    match = _KEY.search(text)
    if match is not None:
        key = match.group(1).split("@")[0]
        known = _known_keys(line, key)
        got = "".join(f"; got {argument}" for argument in line.overrides if key_of(argument) == key)
        if key in known:
            return f"{key}: there are no choices here, only settings below it, as {key}.name=value{got}"
        parent = key.rpartition(".")[0]
        if parent.endswith("settings") or parent == "callbacks" or key.startswith("callbacks."):
            return f"{key}: no such key there; a new one begins with a plus, as +{key}=...{got}"
        return f"{key}: no such key{_elsewhere(line, key) or _hint(key, known)}{_siblings(key, known)}{got}"
    if isinstance(error, HydraException) and isinstance(error.__cause__, OmegaConfBaseException):
        text = f"{text.splitlines()[0]}: {str(error.__cause__).splitlines()[0]}"
    return text


def _known_keys(line: CommandLine, wrong: str) -> list[str]:
    """All keys of the configuration composed without the wrong one; chosen groups decide which
    there are.
    """
    plain = [text for text in line.overrides if re.match(r"[\w/@]+=[\w,./-]+$", text)]
    groups = [text for text in plain if not text.startswith(wrong)]
    for overrides in (groups, []):
        try:
            with line.composing():
                config = compose(
                    line.config_name, overrides=[text.split(",")[0] for text in overrides]
                )
        except (HydraException, OmegaConfBaseException):
            continue
        keys = flatten(OmegaConf.to_container(config, resolve=False))  # type: ignore[arg-type]
        parents = {key[:end] for key in keys for end in range(len(key)) if key[end] == "."}
        return sorted(
            key for key in keys.keys() | parents if not key.rpartition(".")[2].startswith("_")
        )
    return []


def _hint(wrong: str, known: Sequence[str]) -> str:
    """The closest names; a key also matches by its last part, for people forget the groups before
    it.

    >>> _hint("sed", ["seed", "device"]), _hint("minutes", ["budget.minutes"])
    (', did you mean seed?', ', did you mean budget.minutes?')
    """
    known = [name for name in known if not wrong.startswith(f"{name}.")]
    near = difflib.get_close_matches(wrong, known, n=3, cutoff=0.75)
    close = near or difflib.get_close_matches(wrong, known, n=3)
    if not close:
        by_leaf = {key.rpartition(".")[2]: key for key in known}
        close = [
            by_leaf[leaf]
            for leaf in difflib.get_close_matches(wrong.rpartition(".")[2], by_leaf, n=3)
        ]
    return f", did you mean {' or '.join(close)}?" if close else ""


def _elsewhere(line: CommandLine, key: str) -> str:
    """Other choices of the key's group that have it, as ``env=tmaze`` has ``env.length``."""
    group, _, leaf = key.partition(".")
    files = [path for root in line.roots for path in sorted((root / group).glob("*.yaml"))]
    choices = []
    for path in files if leaf and leaf != "defaults" else []:
        with suppress(Exception):  # a file that cannot be read is told where it is chosen
            node: Any = OmegaConf.load(path)
            if OmegaConf.is_dict(node) and leaf in (node.get(group) or node):
                choices.append(path.stem)
    return (
        f"; it is a key of {', '.join(f'{group}={choice}' for choice in choices)}"
        if choices
        else ""
    )


def _siblings(wrong: str, known: Sequence[str]) -> str:
    """What there is beside a wrong key below an existing one."""
    parent = wrong.rpartition(".")[0]
    leaves = [key.rpartition(".") for key in known]
    names = [leaf for prefix, _, leaf in leaves if prefix == parent and parent]
    return f"; {parent} has {', '.join(names)}" if names else ""


def _list(options: Sequence[str]) -> str:
    return f"there are {', '.join(options)}" if len(options) > 1 else f"there is only {options[0]}"
