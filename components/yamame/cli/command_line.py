"""What stands on the command line of a recipe: Hydra's flags, overrides, and where YAML files are
looked for.
"""

import argparse
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from hydra import compose
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from yamame.checks import UsageError
from yamame.files.identity import key_of
from yamame.system.messages import one_line

MOST_JOBS = 10_000
"""Of a sweep: all of them are composed and checked before the first begins."""


@dataclass(frozen=True)
class CommandLine:
    """The parts of a command line.

    Attributes:
        flags: What Hydra's parser takes, with its values.
        overrides: Everything else, as ``env=maze`` or ``~trials``.
        directory: Absolute directory of the recipe's own YAML files.
        config_name: The main YAML file.
        own_directory: Absolute directory of ``--config-dir``, whose files come before the recipe's.
        is_sweep: Whether several jobs are asked for.
    """

    flags: tuple[str, ...]
    overrides: tuple[str, ...]
    directory: str
    config_name: str
    own_directory: str | None
    is_sweep: bool

    @property
    def roots(self) -> list[Path]:
        """Directories in which the groups of YAML files are."""
        own = [] if self.own_directory is None else [self.own_directory]
        return [Path(root) for root in (*own, self.directory, *_search_path(self.overrides))]

    @property
    def is_search(self) -> bool:
        """Whether a sweeper of its own decides which jobs there are."""
        return any("sweeper=" in text for text in self.overrides)

    @contextmanager
    def composing(self) -> Iterator[None]:
        """Within the block `composed` finds what the command line would find."""
        search_path = create_config_search_path(self.directory)
        if self.own_directory is not None:
            own = f"file://{self.own_directory}"
            search_path.prepend(
                provider="command-line", path=own, anchor=SearchPathQuery(provider="schema")
            )
        former = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        try:
            Hydra.create_main_hydra2(task_name=self.config_name, config_search_path=search_path)
            yield
        finally:
            GlobalHydra.instance().hydra = former

    def composed(self, overrides: Sequence[str], *, whole: bool = False) -> DictConfig:
        """The configuration of a job, within `composing`; ``whole`` with Hydra's own.

        Raises:
            HydraException: Hydra refuses an override.
            UsageError: Hydra or OmegaConf stumbles over one, as over ``agent.gammas.x=3``.
        """
        try:
            return compose(self.config_name, overrides=list(overrides), return_hydra_config=whole)
        except (HydraException, OmegaConfBaseException):
            raise
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            given = " ".join(overrides)
            raise UsageError(
                f"{given}: must be a configuration, it is not: {one_line(error)}"
            ) from error


def read_command_line(arguments: Sequence[str], directory: str, config_name: str) -> CommandLine:
    """Parses a command line as Hydra does, but flags may stand anywhere.

    Args:
        arguments: Without the program.
        directory: Absolute directory of the YAML files.
        config_name: The main YAML file, unless ``--config-name`` gives another.

    Raises:
        UsageError: A directory does not exist, or Hydra has a flag that recipes do not have.
    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    parsed: argparse.Namespace = parser.parse_intermixed_args(list(arguments))
    if parsed.experimental_rerun is not None:
        raise UsageError(
            f"--experimental-rerun: there is no such flag here, got {parsed.experimental_rerun}"
        )
    own = None if parsed.config_dir is None else os.path.abspath(parsed.config_dir)
    if own is not None and not Path(own).is_dir():
        raise UsageError(f"--config-dir: must be a directory, got {parsed.config_dir}")
    waiting = list(parsed.overrides)
    flags = [text for text in arguments if not (waiting and text == waiting[0] and waiting.pop(0))]
    return CommandLine(
        tuple(flags),
        tuple(parsed.overrides),
        directory if parsed.config_path is None else os.path.abspath(parsed.config_path),
        parsed.config_name or config_name,
        own,
        is_sweep=parsed.multirun,
    )


def jobs_of(line: CommandLine) -> Iterator[list[str]]:
    """The overrides of each job that a command line asks for, those of a sweep in Hydra's order.

    Raises:
        HydraException: An override cannot be read.
        UsageError: There are none or too many of them, or several values where Hydra takes one.
    """
    choices = []
    for override in OverridesParser.create().parse_overrides(list(line.overrides)):
        key = override.get_key_element()
        if not (line.is_sweep and override.is_sweep_override()):
            choices.append([override.input_line or ""])
        elif override.is_discrete_sweep():
            choices.append([f"{key}={value}" for value in _values(override)])
            if not 0 < (number := math.prod(map(len, choices))) <= MOST_JOBS:
                what = f"more than {MOST_JOBS}" if number else "none"
                raise UsageError(
                    f"{override.input_line}: must give 1 to {MOST_JOBS} jobs, got {what}"
                )
        elif not line.is_search:
            raise UsageError(
                f"{override.input_line}: must be values to try, or a search with sweeper=optuna"
            )
    yield from map(list, itertools.product(*choices))


def _values(override: Override) -> list[str]:
    """What a setting is swept over, in order; of too many values the first."""
    sweep, text = override.value(), override.input_line
    if (override.get_key_element().strip("+~") + ".").startswith(("hydra.", "hydra/")):
        raise UsageError(f"{text}: must have one value, for it is a setting of Hydra's own")
    if isinstance(sweep, RangeSweep):  # all of one that is shuffled would be listed
        override = replace(override, _value=replace(sweep, shuffle=False))
    try:
        return list(itertools.islice(override.sweep_string_iterator(), MOST_JOBS + 1))
    except (ValueError, ArithmeticError, HydraException) as error:
        raise UsageError(
            f"{text}: must be values to sweep over, it is not: {one_line(error)}"
        ) from error


def _refuse(message: str) -> NoReturn:
    raise UsageError(f"{message}; settings have no dashes before them, as in encoder=gru")


def _search_path(overrides: Sequence[str]) -> list[str]:
    """The directories of ``hydra.searchpath=[file://...]``."""
    given = [text for text in overrides if key_of(text) == "hydra.searchpath"][:1]
    try:
        values = [override.value() for override in OverridesParser.create().parse_overrides(given)]
    except HydraException:  # told where the command line is composed
        return []
    paths = values[0] if values and isinstance(values[0], list) else []
    return [
        path.removeprefix("file://")
        for path in paths
        if isinstance(path, str) and path.startswith("file://")
    ]
