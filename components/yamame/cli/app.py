"""The door to Hydra: one clear line for every mistake, and sweeps as nested runs.

A recipe is a function of the composed configuration, handed to `main`::

    def train(cfg: DictConfig) -> float: ...

    if __name__ == "__main__":
        main(train, config_name="train")

Nothing is written before the whole configuration was checked (`yamame.cli.nodes.check`). The main
YAML file must keep Hydra from writing anything itself, as conf/quiet.yaml does.
"""

import functools
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from yamame.checks import UsageError
from yamame.cli.command_line import CommandLine
from yamame.cli.explain import check_choices, explain, explain_outside
from yamame.cli.front import VERSION_BASE, fail, read_line
from yamame.cli.jobs import (
    SWEEP_VARIABLE,
    AlreadyDone,
    Answer,
    check_sweep,
    explain_lost,
    goes_on,
    is_job,
    noted_job,
    overrides,
    say,
    table_of_jobs,
    tell,
)
from yamame.cli.nodes import check
from yamame.cli.settings import SETTINGS
from yamame.cli.threads import share_threads
from yamame.distributed import launched
from yamame.files.identity import key_of
from yamame.system.installed import conf_dir
from yamame.system.messages import OutsideError, print_stderr
from yamame.system.signals import handling
from yamame.tracking.costs import process_is_run
from yamame.tracking.mlflow_store import check_store
from yamame.tracking.sweep import close_sweep

_OUTSIDE_STATUS = 1
_INTERRUPTED = 130  # as shells report SIGINT


def main(
    task: Callable[[DictConfig], Any],
    *,
    config_name: str,
    config_dir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    resumable: bool = False,
    shared: bool = False,
    needs_store: bool = True,
) -> None:
    """Runs a recipe from the command line.

    A mistake of the user (`UsageError`, or anything Hydra refuses) becomes one line on the standard
    error and exit status 2, before anything is written or a job of a sweep begins. A failure of the
    outside world (``OSError``, `OutsideError`) becomes one line and exit status 1. Ctrl-C ends it
    without a traceback. Other errors keep theirs. A job of a sweep that fails leaves the others
    alone: a table says what became of each, and the exit status is 1.

    Args:
        task: The recipe.
        config_name: Name of the main YAML file, also shown before the message.
        config_dir: Directory of the YAML files; that of the package when None.
        settings: What settings may be, see `yamame.cli.settings`; those of the package's YAML files
            are known.
        resumable: Signals end the recipe with `yamame.system.signals.EXIT_STATUS`, for what was
            begun can go on later.
        shared: Several processes of torchrun may share one run out.
        needs_store: Refuses to begin where the store of the tracker does not answer.
    """
    directory = str(Path(conf_dir() if config_dir is None else config_dir).resolve())
    if settings is None and config_dir is None:
        settings = SETTINGS.get(config_name)
    line = read_line(sys.argv[1:], directory, config_name)
    sys.argv[1:] = [*line.flags, *line.overrides]  # the order that Hydra wants

    def checked(cfg: DictConfig) -> Any:
        with _answering(config_name) as answer:
            check(cfg, settings, typed=[key_of(text) for text in overrides()])
            make_ready(cfg, needs_store=needs_store)
            # A recipe that can be resumed is one run; a job shares its process with others.
            is_run = resumable and not is_job()
            with process_is_run() if is_run else nullcontext():
                answer.value = task(cfg)
        return answer.value

    functools.update_wrapper(checked, task)
    jobs: dict[int, dict[str, Any]] = {}
    try:
        _check_processes(line, shared=shared)
        check_choices(line)
        with _raising(), ExitStack() as stack:
            if resumable:
                stack.enter_context(handling(at_once=True))
            if line.is_sweep:
                jobs = stack.enter_context(table_of_jobs(*check_sweep(line, settings)))
            hydra.main(version_base=VERSION_BASE, config_path=directory, config_name=config_name)(
                checked
            )()
    except (UsageError, HydraException, OmegaConfBaseException) as error:
        fail(config_name, explain(error, line))
    except (OSError, OutsideError) as error:
        fail(config_name, explain_outside(error), status=_OUTSIDE_STATUS)
    except KeyboardInterrupt:
        fail(config_name, "interrupted", status=_INTERRUPTED)
    except Exception as error:
        fail(config_name, explain_lost(error), status=_OUTSIDE_STATUS)
    finally:
        close_sweep(sys.exception(), jobs)


def _check_processes(line: CommandLine, *, shared: bool) -> None:
    """Refuses to be launched by torchrun where processes would do the same beside each other."""
    if launched()[0] > 1 and (line.is_sweep or not shared):
        what = "-m" if line.is_sweep else "this recipe"
        raise UsageError(
            f"torchrun: must start one run of train or offline, got {what}; start it with python"
        )


@contextmanager
def _raising() -> Iterator[None]:
    """Within the block Hydra raises instead of printing and exiting."""
    former = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        del os.environ["HYDRA_FULL_ERROR"]
        if former is not None:
            os.environ["HYDRA_FULL_ERROR"] = former


def make_ready(cfg: DictConfig, *, needs_store: bool = True) -> None:
    """Makes sure that the store answers, unless the run has one already, and sets what torch does
    in this process.
    """
    if needs_store and not goes_on(cfg) and launched()[1] == 0:
        check_store(cfg)
    share_threads(num_jobs=_jobs_at_once())
    torch.set_float32_matmul_precision(cfg.get("float32_matmul_precision", "highest"))


@contextmanager
def _answering(command: str) -> Iterator[Answer]:
    """Takes what a recipe returns, or what it gave before if it is done; what ends it otherwise
    becomes one line.

    This stands inside Hydra, where an exception would get a second line. In a sweep the other jobs
    go on.
    """
    answer = Answer()
    with (
        noted_job(answer, command)
        if is_job() and SWEEP_VARIABLE in os.environ
        else _one_line(command)
    ):
        try:
            yield answer
        except AlreadyDone as done:
            say("done")
            print_stderr(done)
            tell(done.run.path / "summary.json")
            answer.value = done.run.objective


@contextmanager
def _one_line(command: str) -> Iterator[None]:
    """Ends the process with a line for a mistake of the user, or a failure of the outside world."""
    try:
        yield
    except UsageError as error:
        fail(command, str(error))
    except (OSError, OutsideError) as error:
        fail(command, explain_outside(error), status=_OUTSIDE_STATUS)


def _jobs_at_once() -> int:
    """How many jobs of a sweep run at the same time: as many as a launcher with ``n_jobs`` is told,
    as joblib's.
    """
    return int(HydraConfig.get().launcher.get("n_jobs", 1)) if is_job() else 1


def command() -> str:
    """The command line of the run that Hydra is running; in a sweep, of that job alone."""
    return shlex.join(["python", f"recipes/{HydraConfig.get().job.name}.py", *overrides()])
