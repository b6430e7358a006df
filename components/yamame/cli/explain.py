"""Errors of Hydra and of the system in one line, with the closest existing names."""

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from yamame.checks import UsageError
from yamame.cli.command_line import CommandLine, label_of, unreadable_file
from yamame.cli.replaced import instead_of_former
from yamame.cli.suggestions import closest_of
from yamame.cli.validation import SettingsError, raise_any
from yamame.files.config import flatten
from yamame.files.identity import key_of
from yamame.system.messages import OutsideError, notes_of, one_line, shortened
from yamame.system.user_code import UserCodeError

REMOVABLE = ("curriculum", "debug", "experiment", "hardware", "trials")
"""Groups that a recipe does without, so that ``~`` may take them away."""
_REMEDIES = {
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "make room in your quota",
    errno.EFBIG: "allow larger files, with ulimit -f",
    errno.EIO: "check the disk",
    errno.EROFS: "make the file system writable",
    errno.EACCES: "change its permissions",
    errno.EPERM: "change its permissions",
    errno.ENOTDIR: "move the file that is in the way of a directory",
    errno.EISDIR: "move the directory that is in the way of a file",
    errno.ENOENT: "create or restore it",
    errno.EMFILE: "allow more open files, with ulimit -n",
}
"""Remedies for errors of the system."""
_SWEEP_PLUGINS = {
    "hydra/launcher": ("submitit_local", "submitit_slurm"),
    "hydra/sweeper": ("optuna",),
}
"""Choices of Hydra that are in packages of their own."""
_NAME = re.compile(r"[A-Za-z_][\w./@-]*")
_NO_NAMES = ("null", "true", "false", "nan", "inf")
_WRONG_KEY = re.compile(
    r"(?:Could not (?:override|append to config\.?|delete from config\.?)) '([^']+)'"
)
"""Hydra's message about a key, which has no field for it."""


def check_choices(line: CommandLine) -> None:
    """Check the overrides that Hydra fails on, or would build objects from.

    Raises:
        UsageError: A choice is no name; an override has no key or no value; or it sets a
            ``_target_`` of Hydra's own configuration.
    """
    fixed_groups = line.fixed_groups
    for text in line.overrides:
        group = key_of(text)
        value = text.partition("=")[2]
        is_removal = text.startswith("~")
        if "=" not in text and not is_removal:
            raise UsageError(f"{text}: must be key=value, as seed=1")
        if not group:
            raise UsageError(f"{text}: must be key=value, it has no key")
        if group in fixed_groups:
            raise UsageError(f"{_no_choices(group)}; got {text}")
        # Python's None is a text in YAML.
        if "None" in value.split(",") and not any((root / group).is_dir() for root in line.roots):
            raise UsageError(f"{text}: must be null where there is no value, as {group}=null")
        # Nothing else checks what Hydra builds for itself.
        if group.partition(".")[0] == "hydra" and "_target_" in text:
            raise UsageError(f"{group}: must name no target of Hydra's own, got {text}")
        if value == "{}" and not text.startswith("+"):
            what = "changes nothing, because mappings are merged"
            raise UsageError(f"{text}: {what}; ~{group}.name removes a key")
        folders = [root / group for root in line.roots if (root / group).is_dir()]
        is_a_value = value == "" or value.startswith("{")
        if folders and not is_removal and not is_a_value and not _are_names(value):
            if group in REMOVABLE:
                instead = f"~{group} leaves the group out"
                if "none" in _choices(folders):
                    instead += f", as {group}=none does in a sweep"
            else:
                instead = _list(_choices(folders))
            raise UsageError(f"{text}: no such choice; {instead}")


def _are_names(value: str) -> bool:
    """Return whether a value, or each of several with commas, may be the name of a choice."""
    for name in value.split(","):
        if name.lower() in _NO_NAMES or not _NAME.fullmatch(name.strip("[] ")):
            return False
    return True


def _choices(folders: Sequence[Path]) -> list[str]:
    return sorted({path.stem for folder in folders for path in folder.glob("*.yaml")})


def explain_outside(error: OSError | OutsideError) -> str:
    """Return in one line what failed outside of the program, where, and a remedy.

    Notes that were added to the error come last.

    >>> explain_outside(OSError(errno.ENOSPC, "No space left on device", "runs/a/step-1.pt"))
    'runs/a/step-1.pt: No space left on device; make room on its disk'
    """
    if isinstance(error, UserCodeError):
        text = str(error)  # its place comes last, and must not be cut off
    elif isinstance(error, OSError):
        text = explain_system(error)
    else:
        text = one_line(error)
    return "; ".join([text, *notes_of(error)])


def explain_system(error: OSError) -> str:
    """Return in one line what failed in the system, where, and a remedy."""
    if not error.strerror:
        return one_line(error)
    text = str(error.strerror)
    if error.filename and error.filename2 is not None:
        text = f"{error.filename} -> {error.filename2}: {text}"
    elif error.filename:
        text = f"{error.filename}: {text}"
    text = shortened(text)
    return f"{text}; {_REMEDIES[error.errno]}" if error.errno in _REMEDIES else text


def lines_of(error: UsageError) -> list[str]:
    """Return the lines of a usage error: one, or one for each wrong setting."""
    if isinstance(error, SettingsError):
        return [str(problem) for problem in error.problems]
    return [str(error)]


def explain(error: Exception, line: CommandLine) -> list[str]:
    """Return lines about a mistake on the command line, by the error of Yamame, Hydra,
    OmegaConf or YAML.
    """
    if isinstance(error, UsageError):
        return lines_of(error)
    if isinstance(error, YAMLError):
        return [str(unreadable_file(error))]
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        text = _explain_choice(error, line)
        if text is not None:
            return [text]
    if isinstance(error, OverrideParseException):
        return [f"{error.override!r} cannot be parsed: {error.message.splitlines()[0]}"]
    message = str(error)
    # A choice of a package, as group@package, is named by its group alone.
    match = _WRONG_KEY.search(message)
    if match is not None:
        return [_explain_key(match.group(1).split("@")[0], line)]
    if isinstance(error, HydraException) and isinstance(error.__cause__, OmegaConfBaseException):
        cause = str(error.__cause__).splitlines()[0]
        return [f"{message.splitlines()[0]}: {cause}"]
    # Some of Hydra's messages are lists.
    return [" ".join(message.split())]


@contextmanager
def naming_job(line: CommandLine, number: int, job: Sequence[str]) -> Iterator[None]:
    """Within the block, a mistake in a job of a sweep is raised with the name of the job.

    Errors in settings of the launcher, or of the sweeper, are left as they are.

    Args:
        line: Command line of the sweep; of a single run, errors are left as they are.
        number: Number of the job.
        job: Overrides of the job.
    """
    try:
        yield
    except (UsageError, HydraException, OmegaConfBaseException) as error:
        key = error.key if isinstance(error, UsageError) else None
        # Hydra's own settings are the same in all jobs.
        if not line.is_sweep or (key or "").startswith("hydra."):
            raise
        single = replace(line, overrides=tuple(job), params=(), is_sweep=False)
        label = label_of(line, number, job)
        problems = [UsageError(f"{text}; in {label}") for text in explain(error, single)]
        raise_any(problems)


def _explain_choice(error: MissingConfigException, line: CommandLine) -> str | None:
    """Return a line about a choice that a group does not have; None if there is no such group."""
    assert error.missing_cfg_file is not None
    group, _, choice = error.missing_cfg_file.rpartition("/")
    former = instead_of_former(f"{group}={choice}")
    if former is not None:
        return former
    options = list(error.options or ())
    folders = [root / group for root in line.roots if (root / group).is_dir()]
    in_folder = _choices(folders)
    if not options or (in_folder and set(in_folder).isdisjoint(options)):
        # A group of groups has its choices in folders, and Hydra lists those beside the folders.
        group, _, choice = error.missing_cfg_file.partition("/")
        options = sorted({*options, *_nested_choices(line, group)})
    if choice in _SWEEP_PLUGINS.get(group, ()):
        install = "its package must be installed, run: pip install 'yamame[sweep]'"
        return f"{group}={choice}: {install}"
    if not options:
        return None
    return f"{group}={choice}: no such choice{closest_of(choice, options)}; {_list(options)}"


def _nested_choices(line: CommandLine, group: str) -> set[str]:
    choices = set()
    for root in line.roots:
        folder = root / group
        for file in folder.rglob("*.yaml"):
            choices.add(file.relative_to(folder).with_suffix("").as_posix())
    return choices


def _explain_key(key: str, line: CommandLine) -> str:
    """Return a line about a key that does not exist."""
    known = _known_keys(line, key)
    got = "".join(f"; got {text}" for text in line.overrides if key_of(text) == key)
    if key in known:
        # The key has settings below it, and was used as if it were a group of YAML files.
        return f"{_no_choices(key)}{got}"
    parent = key.rpartition(".")[0]
    given = [text for text in line.overrides if text.startswith(f"{key}=")]
    # A group that is not in the defaults has to be added.
    if given and any((root / key).is_dir() for root in line.roots):
        return f"{key}: no such key, did you mean +{given[0]}?"
    name = key.rpartition(".")[2]
    if parent and given and any((root / name).is_dir() for root in line.roots):
        choice = given[0].partition("=")[2]
        return f"{key}: no such key, did you mean {name}={choice}?"
    # Free data accepts any key, but Hydra requires a plus for a new one.
    if parent.endswith("settings") or key.startswith("callbacks."):
        return f"{key}: no such key; a new one starts with a plus, as +{key}=...{got}"
    # A key that another choice has is no typing error.
    hint = _elsewhere(line, key) or closest_of(key, known)
    return f"{key}: no such key{hint}{_siblings(key, known)}{got}"


def _no_choices(key: str) -> str:
    return f"{key}: there are no choices here, only settings below it, as {key}.name=value"


def _known_keys(line: CommandLine, wrong: str) -> list[str]:
    """Return all keys of the configuration that is composed without the wrong one."""
    groups = []
    for text in line.overrides:
        if re.match(r"[\w/@]+=[\w,./-]+$", text) and not text.startswith(wrong):
            groups.append(text.split(",")[0])
    # Chosen groups decide which keys there are, unless one of them is wrong, too.
    for overrides in (groups, []):
        try:
            with line.composing():
                config = compose(line.config_name, overrides=overrides)
        except (HydraException, OmegaConfBaseException):
            continue
        leaves = flatten(OmegaConf.to_container(config, resolve=False))  # type: ignore[arg-type]
        keys = set()
        for leaf in leaves:
            names = leaf.split(".")
            keys |= {".".join(names[:end]) for end in range(1, len(names) + 1)}
        return sorted(key for key in keys if not key.rpartition(".")[2].startswith("_"))
    return []


def _elsewhere(line: CommandLine, key: str) -> str:
    """Return the choices of the key's group that have it, as ``env=tmaze`` has ``env.length``."""
    group, _, leaf = key.partition(".")
    choices = []
    if leaf and leaf != "defaults":
        for path in _files_of(line, group):
            if _has_key(path, group, leaf):
                choices.append(f"{group}={path.stem}")
    return f"; it is a key of {', '.join(choices)}" if choices else ""


def _files_of(line: CommandLine, group: str) -> Iterator[Path]:
    for root in line.roots:
        yield from sorted((root / group).glob("*.yaml"))


def _has_key(path: Path, group: str, leaf: str) -> bool:
    try:
        node: Any = OmegaConf.load(path)
    except Exception:  # a file that cannot be parsed is reported where it is chosen
        return False
    return bool(OmegaConf.is_dict(node) and leaf in (node.get(group) or node))


def _siblings(wrong: str, known: Sequence[str]) -> str:
    """Return the keys beside a wrong one below an existing one."""
    parent = wrong.rpartition(".")[0]
    names = []
    for key in known:
        prefix, _, leaf = key.rpartition(".")
        if parent and prefix == parent:
            names.append(leaf)
    return f"; {parent} has {', '.join(names)}" if names else ""


def _list(options: Sequence[str]) -> str:
    return f"there are {', '.join(options)}" if len(options) > 1 else f"there is only {options[0]}"
