"""Answers to a command line before torch is imported: help, output of Hydra's flags, errors in keys
and values.

A recipe calls `answer` before its own imports. Arguments of the classes that the configuration
names, and their types, are checked later, by `yamame.cli.app.main`.
"""

import atexit
import gc
import os
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NoReturn

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

import yamame.cli.threads  # noqa: F401  # sets a variable that torch reads when it is imported
from yamame.checks import UsageError
from yamame.cli.arguments import EASED, ease
from yamame.cli.command_line import CommandLine, jobs_of, read_command_line
from yamame.cli.explain import check_choices, explain, explain_outside
from yamame.cli.help import help_text
from yamame.cli.names import run_name
from yamame.cli.settings import SETTINGS
from yamame.cli.validation import check_settings
from yamame.files.run_directory import checked_path
from yamame.system.installed import checkout, conf_dir, is_installed
from yamame.system.messages import print_stderr, print_stdout
from yamame.system.signals import exit_while_loading

VERSION_BASE = "1.3"
USAGE_STATUS = 2
_LOGGED = ("train", "offline", "ppo", "distill")  # whose lines have the time of day
_JOBS = 4  # of a sweep that are looked at so early
_HELP = ("-h", "--help")
_SHOWN_BY_HYDRA = (
    "-c",
    "--cfg",
    "-i",
    "--info",
    "-sc",
    "--shell-completion",
    "--hydra-help",
    "--version",
)


def answer(config_name: str, *, resumable: bool = False, without_sweeps: str | None = None) -> None:
    """End the process if the command line asks for help or has a mistake; otherwise the recipe may
    import torch.

    Args:
        config_name: Name of the recipe and of its main YAML file.
        resumable: Whether a signal ends the process with `yamame.system.signals.EXIT_STATUS` until
            the recipe begins.
        without_sweeps: Reason why the recipe cannot be swept with ``-m``; None if it can.

    Raises:
        SystemExit: The command line was answered; the status is 2 for a mistake.
    """
    if resumable:
        exit_while_loading()
    directory = str(conf_dir().resolve())
    line = read_line(sys.argv[1:], directory, config_name)
    flags = {flag.partition("=")[0] for flag in line.flags}
    try:
        check_choices(line)
        if flags.intersection(_HELP):
            print_stdout(help_text(line, Path(sys.argv[0])))
            raise SystemExit
        if flags.intersection(_SHOWN_BY_HYDRA):
            sys.argv[1:] = [*line.flags, *line.overrides]
            os.environ["HYDRA_FULL_ERROR"] = "1"  # it raises, instead of printing and ending
            shown = hydra.main(
                version_base=VERSION_BASE, config_path=directory, config_name=config_name
            )
            shown(lambda cfg: None)()  # Hydra answers by itself
            raise SystemExit
        with line.composing():
            for job in islice(jobs_of(line), _JOBS):
                _check(line.composed(job, whole=True), config_name, alone=not line.is_sweep)
    except (UsageError, HydraException, OmegaConfBaseException) as error:
        fail(config_name, explain(error, line))
    except OSError as error:
        fail(config_name, explain_outside(error), status=1)
    if without_sweeps and line.is_sweep:
        fail(config_name, f"-m: must be left out, {without_sweeps}")
    if sys.stderr.isatty():  # in a log a mistake is one line
        print_stderr(f"{config_name}: loading")
    if config_name in _LOGGED and not sys.stdout.isatty() and os.environ.get("RANK", "0") == "0":
        print(f"{time.strftime('%H:%M:%S')}  {config_name}: loading", flush=True)
    # until `read_line` is called again: to look for garbage among all imports takes a second
    gc.disable()
    atexit.register(gc.freeze)  # nor is there a last look when the process ends


def read_line(arguments: Sequence[str], directory: str, config_name: str) -> CommandLine:
    """The command line of a recipe; ends the process with a line where it cannot be read."""
    prepare_process()
    if not gc.isenabled():
        gc.freeze()  # what is there now stays
        gc.enable()
    try:
        return read_command_line(
            ease(arguments, **EASED.get(config_name, {})), directory, config_name
        )
    except UsageError as error:
        fail(config_name, str(error))


def prepare_process() -> None:
    """Finds modules of the present directory, after those that are installed, and of a checkout
    that is not installed.

    Variables that are empty are not set.
    """
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        if os.environ.get(name) == "":
            del os.environ[name]
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    if (root := checkout()) is not None and not is_installed():
        _find_checkout(root)


def _find_checkout(root: Path) -> None:
    """Lets this process, and those that it starts, find the packages of a checkout."""
    places = [str(root / folder) for folder in ("components", "envs")]
    sys.path += [place for place in places if place not in sys.path]
    known = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [*known, *(place for place in places if place not in known)]
    )


def fail(name: str, message: str, *, status: int = USAGE_STATUS) -> NoReturn:
    """Ends the process with one line on the standard error; of torchrun's processes the first tells
    of mistakes.
    """
    if status != USAGE_STATUS or os.environ.get("RANK", "0") == "0":
        print_stderr(f"{name}: {' '.join(message.split())}")
    raise SystemExit(status)


def _check(cfg: DictConfig, name: str, *, alone: bool) -> None:
    """Refuses values of settings that no class takes, and for a run alone a place where another one
    is.

    What is missing, or leads nowhere, is told later.
    """
    hydra_config = cfg.hydra
    with open_dict(cfg):
        del cfg["hydra"]
    try:
        values = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException:
        return
    check_settings(SETTINGS.get(name, {}), values)  # type: ignore[arg-type]
    if alone and name in _LOGGED and os.environ.get("RANK", "0") == "0":
        setting, resume = cfg.run, cfg.resume or False
        checked_path(
            setting.root, run_name(cfg, hydra_config), resume=resume, overwrite=setting.overwrite
        )
