"""Entry point of recipes: composes and checks the configuration, and reports errors and sweeps.

A recipe is a function of typed settings, or of a ``DictConfig``, handed to `main`::

    def train(cfg: TrainConfig) -> float: ...

    if __name__ == "__main__":
        main(train, config_name="train")

Nothing is written before the whole configuration was checked (`yamame.cli.nodes.check`). The main
YAML file must keep Hydra from writing anything itself, as conf/quiet.yaml does.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from yamame.checks import UsageError
from yamame.cli.command_line import CommandLine, keys_of
from yamame.cli.explain import check_choices, explain
from yamame.cli.failures import is_mistake, is_of_launcher, is_reported, report
from yamame.cli.front import USAGE_STATUS, VERSION_BASE, fail, read_line
from yamame.cli.jobs import (
    SWEEP_VARIABLE,
    AlreadyDone,
    JobResult,
    check_sweep,
    continues_run,
    explain_lost,
    is_job,
    overrides,
    recorded_job,
    table_of_jobs,
)
from yamame.cli.nodes import check
from yamame.cli.replaced import leave_out_replaced
from yamame.cli.sections import Config
from yamame.cli.settings import CONFIGS
from yamame.cli.slurm import requeued
from yamame.cli.sweeps import planned, run_sweep
from yamame.cli.threads import share_threads
from yamame.cli.validation import hints_of, is_section, parameters_of
from yamame.distributed import is_slurm_step, launched
from yamame.system.installed import conf_dir
from yamame.system.messages import print_stderr, print_stdout
from yamame.system.signals import handling
from yamame.tracking.costs import process_is_run
from yamame.tracking.mlflow_store import check_store
from yamame.tracking.sweep import close_sweep

_OUTSIDE_STATUS = 1
_INTERRUPTED = 130  # as shells report SIGINT


def main(
    task: Callable[[Any], Any],
    *,
    config_name: str,
    config_dir: str | Path | None = None,
    model: type[Config] | None = None,
    resumable: bool = False,
    shared: bool = False,
    needs_store: bool = True,
) -> None:
    """Run a recipe from the command line.

    A mistake of the user (`UsageError`, or an error of Hydra) is printed in one line, several wrong
    settings in one line each, and the exit status is 2, before anything is written or a job of a
    sweep begins. A failure of the outside world (``OSError``, `OutsideError`) and an error of user
    code are printed in one line with exit status 1 (`yamame.cli.failures`). Ctrl-C prints no
    traceback; other errors do. A job of a sweep that fails leaves the others alone: a table lists
    all outcomes, and the exit status is 1.

    Args:
        task: The recipe. It is called with typed settings if its first parameter is annotated with
            a model, else with the composed configuration.
        config_name: Name of the main YAML file, which also begins messages.
        config_dir: Directory of the YAML files; that of the package when None.
        model: Model of the settings; None for that of `yamame.cli.settings`, if it has one.
        resumable: Signals end the recipe with `yamame.system.signals.EXIT_STATUS`.
        shared: Whether several processes may share one run.
        needs_store: Whether the tracker's store must answer before the recipe begins.
    """
    directory = str(Path(conf_dir() if config_dir is None else config_dir).resolve())
    if model is None and config_dir is None:
        model = CONFIGS.get(config_name)
    line = read_line(sys.argv[1:], directory, config_name)
    sys.argv[1:] = [*line.flags, *line.overrides]  # the order that Hydra needs

    checked = _checked(task, model, config_name, needs_store=needs_store, resumable=resumable)
    jobs: dict[int, dict[str, Any]] = {}
    try:
        _check_processes(line, shared=shared)
        check_choices(line)
        with _raising(), ExitStack() as stack:
            # A signal that arrives before the run has begun has nothing to save.
            if resumable:
                stack.enter_context(handling(at_once=True))
            # All jobs are checked before the first begins, and before Hydra sees the sweep.
            if line.is_sweep:
                line = planned(line)
                sweep = check_sweep(line, model)
                jobs = stack.enter_context(table_of_jobs(*sweep[:3]))
                run_sweep(line, checked, VERSION_BASE, devices=sweep.devices)
            else:
                hydra.main(directory, config_name, VERSION_BASE)(checked)()
    except (UsageError, HydraException, OmegaConfBaseException, YAMLError) as error:
        fail(config_name, *explain(error, line))
    except KeyboardInterrupt:
        fail(config_name, "interrupted", status=_INTERRUPTED)
    except Exception as error:
        fail(config_name, *_lines_about(error), status=_OUTSIDE_STATUS)
    finally:
        close_sweep(sys.exception(), jobs)


def _lines_about(error: Exception) -> list[str]:
    """Return lines about an error of a launcher, or of a module that a check has imported; raise
    any other error again.
    """
    lost = explain_lost(error)
    if lost is not None:
        return [lost]
    if not (is_reported(error) or is_of_launcher(error)):
        raise error
    return report(error)


def _checked(
    task: Callable[[Any], Any],
    model: type[Config] | None,
    name: str,
    *,
    needs_store: bool,
    resumable: bool,
) -> Callable[[DictConfig], Any]:
    """Return a recipe that checks its configuration first, and reports its errors."""

    @functools.wraps(task)  # Hydra finds the recipe's file by it
    def checked(cfg: DictConfig) -> Any:
        with _reporting(name, cfg) as result:
            overridden = keys_of(overrides())
            left_out = leave_out_replaced(cfg, overridden)
            settings = check(cfg, model, overridden=overridden)
            if left_out:
                print_stderr(
                    f"{name}: settings of the replaced class left out: {', '.join(left_out)}"
                )
            make_ready(cfg, needs_store=needs_store)
            # A recipe that can be resumed is one run; a job shares its process with others.
            is_run = resumable and not is_job()
            with process_is_run() if is_run else nullcontext():
                result.value = task(settings if takes_settings(task) else cfg)
        return result.value

    return checked


def takes_settings(task: Callable[..., Any]) -> bool:
    """Return whether the first parameter of a recipe is annotated with a model of settings."""
    hints = hints_of(task)
    names = list(parameters_of(task))
    return bool(names) and is_section(hints.get(names[0]))


def _check_processes(line: CommandLine, *, shared: bool) -> None:
    """Raise if torchrun or srun started processes that would do the same work side by side."""
    num_processes, _ = launched()
    if num_processes > 1 and (line.is_sweep or not shared):
        got = "-m" if line.is_sweep else "this recipe"
        starter = "srun" if is_slurm_step() else "torchrun"
        raise UsageError(
            f"{starter}: must start one run of train or offline, got {got}; start it with python"
        )


@contextmanager
def _raising() -> Iterator[None]:
    """Within the block, Hydra raises errors instead of printing them and exiting."""
    former = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        # Processes that this one starts inherit the environment.
        del os.environ["HYDRA_FULL_ERROR"]
        if former is not None:
            os.environ["HYDRA_FULL_ERROR"] = former


def make_ready(cfg: DictConfig, *, needs_store: bool = True) -> None:
    """Check that the tracker's store answers, unless a run is continued, and configure torch in
    this process.
    """
    _, rank = launched()
    # A run that continues waits for its store by itself, and loses nothing meanwhile.
    if needs_store and rank == 0 and not continues_run(cfg):
        check_store(cfg)
    share_threads(num_jobs=_jobs_at_once())
    torch.set_float32_matmul_precision(cfg.get("float32_matmul_precision", "highest"))


@contextmanager
def _reporting(command: str, cfg: DictConfig) -> Iterator[JobResult]:
    """Within the block a recipe runs; its errors are printed in one line.

    This is called inside of Hydra, which would print its own line about an exception.
    """
    result = JobResult()
    # A job that Slurm starts late, or again, may find that its sweep has ended.
    folder = os.environ.get(SWEEP_VARIABLE)
    is_in_sweep = is_job() and folder is not None and Path(folder).is_dir()
    reporting = recorded_job(result, command, cfg) if is_in_sweep else _one_line(command, cfg)
    with requeued(), reporting:
        try:
            yield result
        except AlreadyDone as done:
            # The outcome counts as that of this command, so that a sweep can be repeated.
            print_stderr(done)
            print_stdout(done.run.path / "summary.json")
            result.outcome = "done"
            result.value = done.run.objective


@contextmanager
def _one_line(command: str, cfg: DictConfig) -> Iterator[None]:
    """Print errors that need no traceback, and end the process."""
    try:
        yield
    except BaseException as error:
        if not is_reported(error):
            raise
        status = USAGE_STATUS if is_mistake(error) else _OUTSIDE_STATUS
        fail(command, *report(error, cfg), status=status)


def _jobs_at_once() -> int:
    """Return the number of jobs of a sweep that run at the same time, as ``launcher=local`` has."""
    return int(HydraConfig.get().launcher.get("n_jobs", 1)) if is_job() else 1
