"""Jobs of a sweep. Each has its own name and directory, a job that fails leaves the others alone,
and a table at the end lists their outcomes.

Jobs may run in other processes. An environment variable names a folder in the sweep's directory, in
which each job keeps a file that the process that started the sweep reads at the end.
"""

import json
import math
import os
import shlex
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from yamame.checks import UsageError
from yamame.cli.command_line import CommandLine, check_launch, jobs_of, keys_of, label_of
from yamame.cli.explain import naming_job
from yamame.cli.failures import is_reported, report
from yamame.cli.job_table import are_planned, print_table
from yamame.cli.names import run_name
from yamame.cli.nodes import check
from yamame.cli.sections import Config
from yamame.cli.slurm import check_requeued
from yamame.cli.sweeps import SWEEP_VARIABLE as SWEEP_VARIABLE
from yamame.distributed import is_slurm_step
from yamame.files.atomic import is_left_behind, write_json
from yamame.files.identity import key_of
from yamame.system.installed import recipe_command
from yamame.system.messages import first_line, one_line, print_stderr, print_stdout, printable
from yamame.system.user_code import formatted
from yamame.tracking.tracker import EXPERIMENT, TRACKING_URI

Outcome = Literal["ran", "resumed", "done", "failed", "stopped"]
_PLANNED = "planned"
"""File with the overrides of all planned jobs, beside those of the jobs."""
_PRINTS_ONE_LINE: ContextVar[bool] = ContextVar("prints_one_line", default=False)


def resuming_command(num_processes: int, **changed: float) -> str:
    """Return the command that resumes the present run from the working directory.

    Args:
        num_processes: Number of processes of the run.
        changed: Limits of its budget that the command changes.
    """
    hydra_config = HydraConfig.get()
    start = recipe_command(hydra_config.job.name)
    if num_processes > 1 and is_slurm_step():
        start = f"srun --ntasks={num_processes} {start}"
    elif num_processes > 1:
        program = f"--no-python {start}"
        if start.startswith("python "):
            program = start.removeprefix("python ")
        # On several nodes, each starts its own share.
        per_node = os.environ.get("LOCAL_WORLD_SIZE", num_processes)
        start = f"torchrun --nproc-per-node={per_node} {program}"

    arguments = _places()
    limits = {f"budget.{name}": f"{limit:.15g}" for name, limit in changed.items()}
    for text in overrides():
        if key_of(text) not in ("resume", "run.overwrite", *limits):
            arguments.append(text)
    arguments.append("resume=true")
    arguments += [f"{key}={limit}" for key, limit in limits.items()]
    return f"{start} {shlex.join(arguments)}"


def command() -> str:
    """Return the command line of the present run; in a sweep, of the present job."""
    start = ["python", f"recipes/{HydraConfig.get().job.name}.py"]
    return shlex.join([*start, *_places(), *overrides()])


def printed_command() -> str:
    """Return `command` as it is typed where the package is installed."""
    return shlex.join(["yamame", HydraConfig.get().job.name, *_places(), *overrides()])


def _places() -> list[str]:
    """Return the arguments that name YAML files of the user."""
    hydra_config = HydraConfig.get()
    arguments = []
    for source in hydra_config.runtime.config_sources:
        # Hydra calls the directory of --config-dir so.
        if source.provider == "command-line":
            arguments += ["--config-dir", source.path]
    if hydra_config.job.config_name != hydra_config.job.name:
        arguments += ["--config-name", str(hydra_config.job.config_name)]
    for text in hydra_config.overrides.hydra:
        if key_of(text) == "hydra.searchpath":
            arguments.append(text)
    return arguments


def is_part() -> bool:
    """Return whether runs of this process are parts of a recipe that reports on all of them."""
    return _PRINTS_ONE_LINE.get()


@contextmanager
def parts_of_one() -> Iterator[None]:
    """Within the block, runs print one line at their end instead of a table and next steps."""
    token = _PRINTS_ONE_LINE.set(True)
    try:
        yield
    finally:
        _PRINTS_ONE_LINE.reset(token)


class AlreadyDone(Exception):  # noqa: N818
    """Control-flow exception: the run has nothing left to do.

    Args:
        run: The run, with its ``path`` and its ``objective``.
    """

    code = 0

    def __init__(self, run: Any) -> None:
        super().__init__(
            f"{run.path} is done; a larger budget continues it, run.overwrite=true replaces it, "
            "resume=true repeats its end"
        )
        self.run = run


class LostJobs(RuntimeError):  # noqa: N818
    """Processes of jobs have died, and their jobs with them.

    Args:
        jobs: Exit statuses of the processes by number of the job; negative for a signal.
    """

    def __init__(self, jobs: Mapping[int, int | None]) -> None:
        parts = [f"job {number} (exit status {status})" for number, status in jobs.items()]
        super().__init__(", ".join(parts))
        self.jobs = dict(jobs)


def is_job() -> bool:
    """Return whether Hydra is running a job of a sweep."""
    return HydraConfig.get().mode is RunMode.MULTIRUN


def resume_mode(cfg: Any) -> bool | Literal["auto"]:
    """Return the setting ``resume``; null stands for false in a single run, and for auto in a sweep
    that does not replace runs.
    """
    if cfg.resume is not None:
        mode: bool | Literal["auto"] = cfg.resume
        return mode
    return "auto" if is_job() and not cfg.run.overwrite else False


def continues_run(cfg: DictConfig) -> bool:
    """Return whether a run of this configuration exists and is to be continued."""
    if "resume" not in cfg or not resume_mode(cfg):
        return False
    return (Path(cfg.run.root) / run_name(cfg) / "config.yaml").exists()


def overrides() -> list[str]:
    """Return the overrides of the run or job that Hydra is running, as on the command line."""
    return OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)  # type: ignore[return-value]


class CheckedSweep(NamedTuple):
    """Plan of a sweep, before its first job begins.

    Attributes:
        folder: The directory of the sweep.
        jobs: Overrides of each job, empty if a search chooses them.
        reports: Commands that make pages of its runs, one per MLflow experiment.
        devices: Devices of the jobs.
    """

    folder: Path
    jobs: list[list[str]]
    reports: list[str]
    devices: set[str]


def check_sweep(line: CommandLine, model: type[Config] | None) -> CheckedSweep:
    """Compose and check every job of a sweep.

    Args:
        line: Command line, see `yamame.cli.sweeps.planned`.
        model: Model of the settings; None: settings are not checked.

    Raises:
        UsageError: A configuration is wrong, or two jobs share a directory.
    """
    jobs = list(jobs_of(line))
    owners: dict[Path, str] = {}
    reports: list[str] = []
    devices: set[str] = set()
    sweep_dir = Path()
    with line.composing():
        for number, job in enumerate(jobs):
            with naming_job(line, number, job):
                cfg = line.composed(job, whole=True)
                hydra_config = cfg.hydra
                check_launch(hydra_config)
                check_requeued(cfg)
                sweep_dir = Path(hydra_config.sweep.dir)
                # Names of runs need Hydra's section, models do not know it.
                with open_dict(cfg):
                    del cfg["hydra"]
                check(cfg, model, overridden=keys_of(job))

            devices.add(str(OmegaConf.select(cfg, "device", default="cpu")))
            report = _report_of(cfg)
            if report is not None and report not in reports:
                reports.append(report)
            if OmegaConf.is_dict(cfg.get("run")):
                path = (Path(cfg.run.root) / run_name(cfg, hydra_config)).resolve()
                is_named = cfg.run.get("name") is not None
                _claim_directory(path, label_of(line, number, job), owners, is_named=is_named)
    return CheckedSweep(sweep_dir, [] if line.is_search else jobs, reports, devices)


def _claim_directory(path: Path, label: str, owners: dict[Path, str], *, is_named: bool) -> None:
    """Note the job of a directory; raise if another one has it."""
    other = owners.setdefault(path, label)
    if other == label:
        return
    remedy = "leave run.name out, or let it name what differs, as run.name='mine-${seed}'"
    if not is_named:
        # Settings that a run may change when it continues are no part of its name.
        remedy = "name the setting that differs, as in run.name='mine-${budget.cpu_s}'"
    raise UsageError(
        f"run.name: the jobs of a sweep must have separate directories, {other} and "
        f"{label} share {path}; {remedy}"
    )


# Files of jobs.


@dataclass
class JobResult:
    """Result of a recipe.

    Attributes:
        value: Returned value of the recipe, which is the objective of a job.
        outcome: Outcome of a job that has not failed.
    """

    value: Any = None
    outcome: Outcome = "ran"


def _job_file() -> Path:
    return Path(os.environ[SWEEP_VARIABLE]) / f"{HydraConfig.get().job.num}.json"


def mark_resumed() -> None:
    """Note in the file of a job that it has resumed an earlier run."""
    _note(resumed=True)


def note_objective(metric: str) -> None:
    """Note in the file of a job of which metric its objective is: ``success`` or ``return``."""
    _note(metric=metric)


def note_hardly_learned() -> None:
    """Note in the file of a job that its agent has hardly learned."""
    _note(hardly_learned=True)


def _note(**entries: Any) -> None:
    if SWEEP_VARIABLE in os.environ and is_job():
        file = _job_file()
        if file.exists():
            write_json(file, {**json.loads(file.read_text()), **entries})


def _describe_job(planned: Path) -> str:
    """Return the number of the present job, and the overrides that not all jobs have.

    Args:
        planned: File with the overrides of the planned jobs; empty if they are not known.
    """
    number = HydraConfig.get().job.num
    jobs = json.loads(planned.read_text()) if planned.exists() else []
    own = overrides()
    if are_planned({number: own}, jobs):
        common = set.intersection(*map(set, jobs))
        own = [text for text in jobs[number] if text not in common]
    count = f" ({number + 1} of {len(jobs)})" if jobs else ""
    return f"job {number}{count}: {shlex.join(own)}"


@contextmanager
def recorded_job(result: JobResult, command: str, cfg: DictConfig) -> Iterator[None]:
    """Print the number of a job, and record the outcome of what it runs within the block.

    Errors are printed and do not leave the block, so that the other jobs run.

    Args:
        result: Result, which the block sets.
        command: Name of the recipe, which begins the line of an error.
        cfg: Composed configuration of the job, see `yamame.cli.failures.report`.
    """
    file = _job_file()
    # A job that is killed, or ended by a signal, stays recorded as stopped.
    record: dict[str, Any] = {
        "overrides": overrides(),
        "outcome": "stopped",
        "result": "",
        "objective": None,
    }
    write_json(file, record)
    print_stdout(_describe_job(file.parent / _PLANNED))
    try:
        yield
        record["outcome"] = result.outcome
        if isinstance(result.value, int | float):
            record["result"] = f"{result.value:.4g}"
            # JSON has neither NaN nor infinity.
            record["objective"] = result.value if math.isfinite(result.value) else None
    except BaseException as error:
        is_line = is_reported(error)
        if not (is_line or isinstance(error, Exception)):
            raise
        record["outcome"] = "failed"
        if is_line:
            record["result"] = printable(" ".join(" ".join(report(error, cfg)).split()))
            print_stderr(f"{command}: job {HydraConfig.get().job.num}: {record['result']}")
        else:
            record["result"] = printable(f"{type(error).__name__}: {first_line(error)}")
            print_stderr(formatted(error).rstrip())
    # A launcher that has lost another job removes the folder before this one has ended.
    if file.parent.is_dir():
        noted = json.loads(file.read_text())
        if record["outcome"] == "ran" and noted.get("resumed"):
            record["outcome"] = "resumed"
        for name in ("metric", "hardly_learned"):
            record[name] = noted.get(name)
        write_json(file, record)


def explain_lost(error: Exception) -> str | None:
    """Return one line for the error of a launcher that has lost the process of a job; None for any
    other error.
    """
    from_slurm = type(error).__module__.startswith("submitit.")
    if not (from_slurm or isinstance(error, LostJobs)):
        return None
    return f"the process of a job is gone: {one_line(error)}; repeat the command to continue"


# The table at the end of a sweep.


@contextmanager
def table_of_jobs(
    sweep_dir: Path, planned: Sequence[list[str]], reports: Sequence[str]
) -> Iterator[dict[int, dict[str, Any]]]:
    """Within the block, jobs record their outcomes; at its end, however it ends, they are printed
    as a table.

    Args:
        sweep_dir, planned, reports: From `check_sweep`; the directory is created if it is missing.

    Yields:
        A dictionary that is filled when the block ends: ``overrides``, ``outcome``, ``result`` and
        ``objective`` of each job by its number.

    Raises:
        SystemExit: A job failed; the status is 1.
    """
    mark = f".sweep-{socket.gethostname()}-"
    sweep_dir.mkdir(parents=True, exist_ok=True)
    for folder in sweep_dir.glob(f"{mark}*"):
        process = folder.name.removeprefix(mark).partition("-")[0]
        if is_left_behind(process):  # by a sweep that was killed
            shutil.rmtree(folder, ignore_errors=True)

    with tempfile.TemporaryDirectory(prefix=f"{mark}{os.getpid()}-", dir=sweep_dir) as name:
        folder = Path(name)
        # An absolute path: jobs may run in other working directories.
        os.environ[SWEEP_VARIABLE] = str(folder.resolve())
        write_json(folder / _PLANNED, list(planned))
        jobs: dict[int, dict[str, Any]] = {}
        try:
            yield jobs
        finally:
            del os.environ[SWEEP_VARIABLE]
            for file in sorted(folder.glob("*.json"), key=lambda file: int(file.stem)):
                jobs[int(file.stem)] = json.loads(file.read_text())
            if jobs:
                print_table(jobs, planned, reports)
    if any(job["outcome"] == "failed" for job in jobs.values()):
        raise SystemExit(1)


def _report_of(cfg: DictConfig) -> str | None:
    """Return the command that makes a page of the runs of a job; None if they are not logged to
    MLflow.
    """
    logger = cfg.get("logger")
    if logger is None or not str(logger.get("_target_")).endswith(".MLflowTracker"):
        return None
    node: Any = OmegaConf.to_container(logger, resolve=True)
    # The report has these defaults itself.
    defaults = {"tracking_uri": TRACKING_URI, "experiment": EXPERIMENT}
    command = recipe_command("report")
    for key, default in defaults.items():
        value = node.get(key, default)
        if value != default:
            command += f" {shlex.quote(f'store.{key}={value}')}"
    return command
