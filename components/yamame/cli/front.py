"""Checks of a command line before torch is imported: help, output of Hydra's flags, and errors in
keys and values.

A recipe calls `check_command_line` before its own imports. Arguments of the classes that the
configuration names are checked later, by `yamame.cli.app.main`; only if a value is wrong, they are
checked here, so that all mistakes are printed together.
"""

import yamame.cli.early  # a Ctrl-C may come while the others are imported

# isort: split
import atexit
import gc
import os
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

import yamame.cli.threads  # noqa: F401  # sets a variable that torch reads when it is imported
from yamame.checks import UsageError
from yamame.cli.arguments import ease
from yamame.cli.command_line import CommandLine, check_launch, jobs_of, keys_of, read_command_line
from yamame.cli.explain import check_choices, explain, naming_job
from yamame.cli.help import help_text
from yamame.cli.names import run_name
from yamame.cli.sections import Config
from yamame.cli.settings import CONFIGS
from yamame.cli.sweeps import planned
from yamame.cli.validation import validated
from yamame.files.run_directory import checked_path
from yamame.system.installed import checkout, conf_dir, is_installed
from yamame.system.messages import OutsideError, one_line, print_stderr, print_stdout
from yamame.system.signals import exit_while_loading

VERSION_BASE = "1.3"
USAGE_STATUS = 2
_LOGGED = ("train", "offline", "ppo", "distill")
"""Recipes whose log lines have the time of day."""
_NUM_EARLY_JOBS = 4
"""Jobs of a sweep that are checked before torch is imported; each takes a tenth of a second."""
_HELP = ("-h", "--help")
_SHOWN_BY_HYDRA = (
    "-c",
    "--cfg",
    "-i",
    "--info",
    "-sc",
    "--shell-completion",
    "--hydra-help",
    "--resolve",
    "--version",
)


def check_command_line(
    config_name: str, *, resumable: bool = False, without_sweeps: str | None = None
) -> None:
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
            _let_hydra_answer(line, directory, config_name)
        if line.is_sweep:
            line = planned(line)
        with line.composing():
            for number, overrides in enumerate(islice(jobs_of(line), _NUM_EARLY_JOBS)):
                with naming_job(line, number, overrides):
                    _check_job(line, overrides, config_name)
    except (UsageError, HydraException, OmegaConfBaseException, YAMLError) as error:
        fail(config_name, *explain(error, line))
    except (OSError, OutsideError) as error:
        fail(config_name, *_report(error), status=1)
    if without_sweeps and line.is_sweep:
        fail(config_name, f"-m: must be left out, {without_sweeps}")

    if sys.stderr.isatty():  # in a log a mistake is one line
        print_stderr(f"{config_name}: loading")
    is_logged = config_name in _LOGGED and not sys.stdout.isatty()
    if is_logged and _is_first_process():
        print_stdout(f"{time.strftime('%H:%M:%S')}  {config_name}: loading")
    # Looking for garbage among all imports takes a second. `read_line` turns it on again.
    gc.disable()
    atexit.register(gc.freeze)  # nor is there a last look when the process ends


def _report(error: OSError | OutsideError) -> list[str]:
    # Signatures were checked, so that torch is loaded already.
    from yamame.cli.failures import report

    return report(error)


answer = check_command_line
"""Former name."""


def read_line(arguments: Sequence[str], directory: str, config_name: str) -> CommandLine:
    """Return the parsed command line of a recipe; end the process if it cannot be parsed."""
    prepare_process()
    if not gc.isenabled():
        gc.freeze()  # modules that are imported by now stay until the end
        gc.enable()
    model = CONFIGS.get(config_name)
    try:
        return read_command_line(ease(arguments, model), directory, config_name)
    except UsageError as error:
        fail(config_name, str(error))


def prepare_process() -> None:
    """Let this process import modules of the working directory and of a checkout that is not
    installed, drop environment variables of MLflow that are empty, and replace standard streams
    that are closed.
    """
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115 (until the process ends)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        if os.environ.get(name) == "":
            del os.environ[name]
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    root = checkout()
    if root is not None and not is_installed():
        _add_checkout(root)


def _add_checkout(root: Path) -> None:
    """Let this process, and those that it starts, import the packages of a checkout."""
    known = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    for folder in ("components", "envs"):
        place = str(root / folder)
        if place not in sys.path:
            sys.path.append(place)
        if place not in known:
            known.append(place)
    os.environ["PYTHONPATH"] = os.pathsep.join(known)


def fail(name: str, *messages: str, status: int = USAGE_STATUS) -> NoReturn:
    """End the process with a line per message on the standard error.

    Mistakes are the same in all processes of a run, so the first one prints them.
    """
    if status != USAGE_STATUS or _is_first_process():
        for message in messages:
            print_stderr(f"{name}: {' '.join(message.split())}")
    raise SystemExit(status)


def _is_first_process() -> bool:
    # Of torchrun or srun, as in `yamame.distributed`, which imports torch.
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def _let_hydra_answer(line: CommandLine, directory: str, config_name: str) -> NoReturn:
    """Run Hydra for one of its own flags, such as ``--cfg``, and end the process."""
    sys.argv[1:] = [*line.flags, *line.overrides]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # it raises instead of printing and exiting
    show = hydra.main(version_base=VERSION_BASE, config_path=directory, config_name=config_name)
    try:
        show(lambda cfg: None)()
    except (HydraException, OmegaConfBaseException, YAMLError):
        raise
    except Exception as error:  # flags that cannot be combined, for example
        raise UsageError(f"{' '.join(line.flags)}: {one_line(error)}") from error
    raise SystemExit


def _check_job(line: CommandLine, overrides: Sequence[str], config_name: str) -> None:
    """Check the settings of a job that no class takes, and the directory of a single run."""
    cfg = line.composed(overrides, whole=True)
    hydra_config = cfg.hydra
    if line.is_sweep:
        check_launch(hydra_config)
    with open_dict(cfg):
        del cfg["hydra"]
    model = CONFIGS.get(config_name)
    if model is not None:
        try:
            values = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        except OmegaConfBaseException:
            return  # `yamame.cli.nodes.check` reports it with the key
        assert isinstance(values, dict)
        _check_values(cfg, model, values, keys_of(overrides))  # type: ignore[arg-type]
    if not line.is_sweep and config_name in _LOGGED and _is_first_process():
        _check_directory(cfg, hydra_config)


def _check_values(
    cfg: DictConfig, model: type[Config], values: dict[str, Any], overridden: Sequence[str]
) -> None:
    """Raise for wrong settings, together with wrong arguments of classes."""
    try:
        validated(model, values, overridden=overridden)
    except UsageError:
        # Signatures need torch. Without a mistake, it is imported after this check.
        from yamame.cli.nodes import check

        check(cfg, model, overridden=overridden)
        raise


def _check_directory(cfg: DictConfig, hydra_config: DictConfig) -> None:
    """Raise if another run is in the directory of this one."""
    name = run_name(cfg, hydra_config)
    resume = cfg.resume or False
    checked_path(cfg.run.root, name, resume=resume, overwrite=cfg.run.overwrite)
