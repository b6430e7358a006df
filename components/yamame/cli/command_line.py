"""The parsed command line of a recipe: Hydra's flags, overrides, and the directories of YAML
files.
"""

import argparse
import itertools
import math
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from yamame.checks import UsageError, require_setting
from yamame.files.identity import key_of
from yamame.system.messages import one_line

_CONFIG_NAME = re.compile(r"[\w-]+(/[\w-]+)*(\.yaml)?")
MOST_JOBS = 10_000
"""Largest sweep. All jobs are composed and checked before the first begins."""


@dataclass(frozen=True)
class CommandLine:
    """The parts of a command line.

    Attributes:
        flags: Flags of Hydra's parser, with their values.
        overrides: All other arguments, as ``env=maze`` or ``~trials``.
        directory: Absolute directory of the recipe's YAML files.
        config_name: The main YAML file.
        user_directory: Absolute directory of ``--config-dir``, whose files take precedence.
        is_sweep: True with ``-m``.
        is_search: True if a sweeper such as Optuna's chooses the jobs.
        params: Overrides that the configuration of the sweeper adds to those of every job.
    """

    flags: tuple[str, ...]
    overrides: tuple[str, ...]
    directory: str
    config_name: str
    user_directory: str | None
    is_sweep: bool
    is_search: bool = False
    params: tuple[str, ...] = ()

    @property
    def roots(self) -> list[Path]:
        """Directories of the groups of YAML files, the one with precedence first."""
        directories = [self.directory, *_search_path(self.overrides)]
        if self.user_directory is not None:
            directories.insert(0, self.user_directory)
        return [Path(directory) for directory in directories]

    @property
    def fixed_groups(self) -> set[str]:
        """Groups that the main YAML file overrides by null, which leaves no choice in them."""
        groups: set[str] = set()
        for root in self.roots:
            file = (root / self.config_name).with_suffix(".yaml")
            if not file.is_file():
                continue
            try:
                config: Any = OmegaConf.load(file)
            except YAMLError:  # reported when it is composed
                return groups
            for entry in config.get("defaults") or []:
                choices = dict(entry) if OmegaConf.is_dict(entry) else {}
                for name, choice in choices.items():
                    word, _, group = str(name).partition(" ")
                    if word == "override" and choice is None:
                        groups.add(group)
            return groups
        return groups

    @contextmanager
    def composing(self, name: str | None = None, kind: type[Hydra] = Hydra) -> Iterator[Hydra]:
        """Within the block, `composed` looks YAML files up as Hydra does for the command line.

        Args:
            name: Name of the job for Hydra; None for that of the main YAML file.
            kind: Class of the instance of Hydra, which the block gets.
        """
        search_path = create_config_search_path(self.directory)
        if self.user_directory is not None:
            path = f"file://{self.user_directory}"
            anchor = SearchPathQuery(provider="schema")
            search_path.prepend(provider="command-line", path=path, anchor=anchor)
        # A recipe may compose while Hydra runs it.
        former = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        try:
            yield kind.create_main_hydra2(
                task_name=name or self.config_name, config_search_path=search_path
            )
        finally:
            GlobalHydra.instance().hydra = former

    def composed(self, overrides: Sequence[str], *, whole: bool = False) -> DictConfig:
        """Compose the configuration of a job, within `composing`.

        Args:
            overrides: Overrides of the job.
            whole: Whether to return Hydra's own configuration, too.

        Raises:
            HydraException: Hydra refuses an override.
            UsageError: Hydra or OmegaConf fails on one, as on ``agent.gammas.x=3``; or a YAML file
                cannot be parsed.
        """
        try:
            return compose(self.config_name, overrides=list(overrides), return_hydra_config=whole)
        except (HydraException, OmegaConfBaseException):
            raise
        except YAMLError as error:
            raise unreadable_file(error) from error
        # OmegaConf fails with internal errors on some overrides of lists and of scalars.
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            given = " ".join(overrides)
            raise UsageError(f"{given}: cannot be composed: {one_line(error)}") from error


def unreadable_file(error: YAMLError) -> UsageError:
    """Return the error of a YAML file that cannot be parsed, with its line."""
    mark = getattr(error, "problem_mark", None)
    place = "YAML" if mark is None else f"{mark.name}:{mark.line + 1}"
    reason = getattr(error, "problem", None) or one_line(error)
    return UsageError(f"{place}: cannot be parsed: {reason}")


def keys_of(overrides: Sequence[str]) -> list[str]:
    """Return the keys that overrides set, add or remove, and those in mappings that they set.

    >>> keys_of(["encoder=gru", "++encoder={size: 1, deep: {rate: 2}}"])
    ['encoder', 'encoder', 'encoder.size', 'encoder.deep', 'encoder.deep.rate']
    """
    keys = []
    for text in overrides:
        key = key_of(text)
        keys.append(key)
        if "={" in text and not text.startswith("~"):
            value = OverridesParser.create().parse_override(text).value()
            keys += _keys_below(key, value)
    return keys


def _keys_below(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, entry in value.items():
            yield f"{key}.{name}"
            yield from _keys_below(f"{key}.{name}", entry)


def read_command_line(arguments: Sequence[str], directory: str, config_name: str) -> CommandLine:
    """Parse a command line as Hydra does, but with flags anywhere.

    Args:
        arguments: Without the program.
        directory: Absolute directory of the YAML files.
        config_name: The main YAML file, unless ``--config-name`` gives another.

    Raises:
        UsageError: A directory does not exist, or a flag of Hydra is not supported.
    """
    parser = get_args_parser()
    # argparse would print its own usage and exit.
    parser.error = _refuse  # type: ignore[method-assign]
    parsed: argparse.Namespace = parser.parse_intermixed_args(list(arguments))
    if parsed.experimental_rerun is not None:
        got = parsed.experimental_rerun
        raise UsageError(f"--experimental-rerun: there is no such flag here, got {got}")

    user_directory = None
    if parsed.config_dir is not None:
        user_directory = os.path.abspath(parsed.config_dir)
        if not Path(user_directory).is_dir():
            raise UsageError(f"--config-dir: must be a directory, got {parsed.config_dir}")
    if parsed.cfg is None:
        for flag in ("resolve", "package"):
            if getattr(parsed, flag):
                raise UsageError(f"--{flag}: must come with --cfg, as in --cfg job --{flag}")
    given_name = parsed.config_name or config_name
    if not _CONFIG_NAME.fullmatch(given_name):
        got = f"got {given_name}"
        raise UsageError(f"--config-name: must be the name of a YAML file of the recipe, {got}")
    if parsed.config_path is not None:
        directory = os.path.abspath(parsed.config_path)

    # Hydra's own parser wants flags first; `yamame.cli.app.main` puts them there.
    return CommandLine(
        _flags(arguments, parsed),
        tuple(parsed.overrides),
        directory,
        given_name,
        user_directory,
        # Hydra's mode may be set as well.
        is_sweep=parsed.multirun or "hydra.mode=MULTIRUN" in parsed.overrides,
        is_search=any("sweeper=" in text for text in parsed.overrides),
    )


def _flags(arguments: Sequence[str], parsed: argparse.Namespace) -> tuple[str, ...]:
    """Return the arguments that are no overrides: flags and their values."""
    waiting = list(parsed.overrides)
    flags = []
    for text in arguments:
        # The value of a flag may be spelt like an override, so the order decides.
        if waiting and text == waiting[0]:
            waiting.pop(0)
        else:
            flags.append(text)
    # Before the overrides, this flag would take the first of them as its value.
    if flags and flags[-1] in ("--info", "-i"):
        flags[-1] = f"--info={parsed.info}"
    return tuple(flags)


def jobs_of(line: CommandLine) -> Iterator[list[str]]:
    """Yield the overrides of each job of a command line, in Hydra's order.

    Raises:
        HydraException: An override cannot be parsed.
        UsageError: There is no job or too many, or several values where Hydra takes one.
    """
    texts = [*line.params, *line.overrides]
    # As in Hydra, a later override of a key takes the place of an earlier one.
    choices: dict[str, list[str]] = {}
    for override in OverridesParser.create().parse_overrides(texts):
        text = override.input_line or ""
        key = override.get_key_element()
        if not (line.is_sweep and override.is_sweep_override()):
            choices[key] = [text]
        elif override.is_discrete_sweep():
            choices[key] = [f"{key}={value}" for value in _values(override)]
            # Counted after each override, so that no product is ever larger than needed.
            number = math.prod(map(len, choices.values()))
            if not 0 < number <= MOST_JOBS:
                got = f"more than {MOST_JOBS}" if number else "none"
                raise UsageError(f"{text}: must give 1 to {MOST_JOBS} jobs, got {got}")
        elif not line.is_search:
            raise UsageError(f"{text}: must be values to try, or a search with sweeper=optuna")
    for job in itertools.product(*choices.values()):
        yield list(job)


def label_of(line: CommandLine, number: int, job: Sequence[str]) -> str:
    """Return a name of a job: its number, and the overrides that not all jobs have, if any."""
    fixed = set()
    for override in OverridesParser.create().parse_overrides([*line.params, *line.overrides]):
        if not override.is_sweep_override():
            fixed.add(override.input_line)
    changed = [text for text in job if text not in fixed]
    return f"job {number} ({shlex.join(changed)})" if changed else f"job {number}"


def check_launch(hydra_config: Any) -> None:
    """Check settings of Hydra's sweepers and launchers that fail without a message.

    Args:
        hydra_config: Hydra's own part of a composed configuration.

    Raises:
        SettingError: A number is out of its range.
    """
    size = hydra_config.sweeper.get("max_batch_size")
    is_size = size is None or (isinstance(size, int) and size > 0)
    condition = "be a positive integer or null"
    require_setting("hydra.sweeper.max_batch_size", size, is_size, condition)
    # Negative numbers count from the number of cores. True is an int, too, but no number.
    num_jobs = hydra_config.launcher.get("n_jobs", 1)
    is_number = type(num_jobs) is int and num_jobs != 0
    require_setting("hydra.launcher.n_jobs", num_jobs, is_number, "be an integer other than 0")
    per_device = hydra_config.launcher.get("jobs_per_device", 1)
    is_number = type(per_device) is int and per_device > 0
    condition = "be a positive integer"
    require_setting("hydra.launcher.jobs_per_device", per_device, is_number, condition)


def _values(override: Override) -> list[str]:
    """Return the values of a sweep in order, and one more than `MOST_JOBS` if they are too many."""
    sweep = override.value()
    text = override.input_line
    key = override.get_key_element().strip("+~")
    if f"{key}.".startswith(("hydra.", "hydra/")):
        raise UsageError(f"{text}: must have one value, for it is a setting of Hydra's own")
    if isinstance(sweep, RangeSweep):
        # Shuffling would list the whole range.
        override = replace(override, _value=replace(sweep, shuffle=False))
    try:
        return list(itertools.islice(override.sweep_string_iterator(), MOST_JOBS + 1))
    except (ValueError, ArithmeticError, HydraException) as error:
        raise UsageError(f"{text}: cannot be swept over: {one_line(error)}") from error


def _refuse(message: str) -> NoReturn:
    raise UsageError(f"{message}; settings have no dashes before them, as in encoder=gru")


def _search_path(overrides: Sequence[str]) -> list[str]:
    """Return the directories of ``hydra.searchpath=[file://...]``."""
    given = [text for text in overrides if key_of(text) == "hydra.searchpath"][:1]
    try:
        parsed = OverridesParser.create().parse_overrides(given)
    except HydraException:
        return []  # reported where the command line is composed
    paths = parsed[0].value() if parsed else []
    directories = []
    for path in paths if isinstance(paths, list) else []:
        if isinstance(path, str) and path.startswith("file://"):
            directories.append(path.removeprefix("file://"))
    return directories
