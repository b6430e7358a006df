"""The jobs of a sweep: each has a name and a directory of its own, one that fails leaves the others
alone, and a table at the end says what became of each.

Jobs may run in other processes. They are told of a folder in the sweep's directory by an
environment variable, and leave a file there, which the process that started the sweep reads.
"""

import json
import math
import os
import shlex
import shutil
import socket
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from yamame.checks import UsageError
from yamame.cli.command_line import CommandLine, jobs_of
from yamame.cli.explain import explain_outside
from yamame.cli.names import run_name
from yamame.cli.nodes import check
from yamame.files.atomic import is_left_behind, write_json
from yamame.files.identity import key_of
from yamame.system.installed import recipe_command
from yamame.system.messages import OutsideError, one_line, print_stderr
from yamame.tracking.tracker import EXPERIMENT, TRACKING_URI

SWEEP_VARIABLE = "YAMAME_SWEEP"
"""Environment variable with the folder in which jobs say what became of them."""

Outcome = Literal["ran", "resumed", "done", "failed", "stopped"]
_outcome: Outcome = "ran"
_is_part = False


def tell(text: object) -> None:
    """Prints a line of the command's own output."""
    print(text)


def resuming_command(num_processes: int) -> str:
    """The command with which the run that Hydra is running goes on, from the present directory."""
    hydra_config = HydraConfig.get()
    start = recipe_command(hydra_config.job.name)
    if num_processes > 1:
        program = (
            start.removeprefix("python ") if start.startswith("python ") else f"--no-python {start}"
        )
        start = f"torchrun --nproc-per-node={os.environ.get('LOCAL_WORLD_SIZE', num_processes)} {program}"
    sources = {source.provider: source.path for source in hydra_config.runtime.config_sources}
    flags = ["--config-dir", sources["command-line"]] if "command-line" in sources else []
    if hydra_config.job.config_name != hydra_config.job.name:
        flags += ["--config-name", str(hydra_config.job.config_name)]
    own = [text for text in hydra_config.overrides.hydra if key_of(text) == "hydra.searchpath"]
    given = [text for text in overrides() if key_of(text) not in ("resume", "run.overwrite")]
    return f"{start} {shlex.join([*flags, *own, *given, 'resume=true'])}"


def is_part() -> bool:
    """Return whether the runs of this process are parts of a recipe that reports on all of them
    together.
    """
    return _is_part


@contextmanager
def parts_of_one() -> Iterator[None]:
    """Within the block runs print one line at their end, in place of a table and of what to do
    next.
    """
    global _is_part
    former, _is_part = _is_part, True
    try:
        yield
    finally:
        _is_part = former


class AlreadyDone(Exception):  # noqa: N818 (it is none)
    """A run that is to be begun or continued has nothing left to do.

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


def is_job() -> bool:
    """Whether Hydra is running a job of a sweep."""
    return HydraConfig.get().mode is RunMode.MULTIRUN


def resume_mode(cfg: DictConfig) -> bool | Literal["auto"]:
    """What ``resume`` says; null is false for a single run, and in a sweep auto, unless runs are to
    be replaced.
    """
    if cfg.resume is None:
        return "auto" if is_job() and not cfg.run.overwrite else False
    return cfg.resume


def goes_on(cfg: DictConfig) -> bool:
    """Whether a configuration is that of a run which has begun before, and is to go on."""
    if "resume" not in cfg or not resume_mode(cfg):
        return False
    return (Path(cfg.run.root) / run_name(cfg) / "config.yaml").exists()


def overrides() -> list[str]:
    """The command line of the run or job that Hydra is running, as it was typed."""
    return OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)  # type: ignore[return-value]


def check_sweep(
    line: CommandLine, settings: Mapping[str, Any] | None
) -> tuple[Path, list[list[str]], list[str]]:
    """Composes and checks every job of a sweep given on the command line.

    Returns:
        The directory of the sweep; the overrides of its jobs, none if a search decides which there
        are; the commands that make pages of its runs, one per MLflow experiment.

    Raises:
        UsageError: A job is not what `check` wants, or two of them share a directory.
    """
    jobs = list(jobs_of(line))
    common = set.intersection(*map(set, jobs))
    owners: dict[Path, str] = {}
    reports: list[str] = []
    sweep_dir = Path()
    with line.composing():
        for number, job in enumerate(jobs):
            cfg = line.composed(job, whole=True)
            hydra_config, sweep_dir = cfg.hydra, Path(cfg.hydra.sweep.dir)
            with open_dict(cfg):
                del cfg["hydra"]
            check(cfg, settings, typed=[key_of(text) for text in job])
            if (report := _report_of(cfg)) and report not in reports:
                reports.append(report)
            if OmegaConf.is_dict(cfg.get("run")):
                path = (Path(cfg.run.root) / run_name(cfg, hydra_config)).resolve()
                changed = [text for text in job if text not in common]
                label = f"job {number} ({' '.join(changed)})"
                other = owners.setdefault(path, label)
                if other != label:
                    raise UsageError(
                        f"run.name: the jobs of a sweep must have directories of their own, {other} and {label} share "
                        f"{path}; leave run.name out, or let it name what differs, as run.name='mine-${{seed}}'"
                    )
    return sweep_dir, [] if line.is_search else jobs, reports


def say(outcome: Outcome) -> None:
    """Says of the run that begins in this process what becomes of it."""
    global _outcome
    _outcome = outcome


@dataclass
class Answer:
    """What a recipe returns: its objective."""

    value: Any = None


@contextmanager
def noted_job(answer: Answer, command: str) -> Iterator[None]:
    """Within the block a job does its work; what became of it is noted. An error is told, and the
    other jobs go on.

    A job that is killed, or asked to end, was noted as stopped.

    Args:
        answer: Gets the objective within the block.
        command: Stands before the message of a mistake, which has no traceback.
    """
    number = HydraConfig.get().job.num
    file, note = Path(os.environ[SWEEP_VARIABLE]) / f"{number}.json", {"overrides": overrides()}
    write_json(file, {**note, "outcome": "stopped", "result": "", "objective": None})
    say("ran")
    result, objective = "", None
    try:
        yield
        if isinstance(answer.value, int | float):
            result, objective = (
                f"{answer.value:.4g}",
                answer.value if math.isfinite(answer.value) else None,
            )
    except Exception as error:
        say("failed")
        if isinstance(error, UsageError | OSError | OutsideError):
            message = str(error) if isinstance(error, UsageError) else explain_outside(error)
            result = " ".join(message.split())
            print_stderr(f"{command}: job {number}: {result}")
        else:
            result = f"{type(error).__name__}: {error}".partition("\n")[0]
            print_stderr(traceback.format_exc())
    if file.parent.is_dir():  # a launcher that has lost another job does not wait for this one
        write_json(file, {**note, "outcome": _outcome, "result": result, "objective": objective})


def explain_lost(error: Exception) -> str:
    """One line for what a launcher raises where the process of a job is gone; any other error is
    raised again.
    """
    if not (isinstance(error, BrokenProcessPool) or type(error).__module__.startswith("submitit.")):
        raise error
    return f"the process of a job is gone: {one_line(error)}; the same command goes on"


@contextmanager
def table_of_jobs(
    sweep_dir: Path, planned: Sequence[list[str]], reports: Sequence[str]
) -> Iterator[dict[int, dict[str, Any]]]:
    """Within the block jobs note what becomes of them; at its end a table shows it, however it
    ends.

    Args:
        sweep_dir, planned, reports: From `check_sweep`; the directory is made when missing.

    Yields:
        What became of each job by its number: its ``overrides``, ``outcome``, ``result`` and
        ``objective``; filled when the block ends.

    Raises:
        SystemExit: A job failed; the status is 1.
    """
    mark = f".sweep-{socket.gethostname()}-"
    sweep_dir.mkdir(parents=True, exist_ok=True)
    for folder in sweep_dir.glob(f"{mark}*"):  # of sweeps that were killed
        if is_left_behind(folder.name.removeprefix(mark).partition("-")[0]):
            shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{mark}{os.getpid()}-", dir=sweep_dir) as folder_name:
        os.environ[SWEEP_VARIABLE] = str(Path(folder_name).resolve())
        jobs: dict[int, dict[str, Any]] = {}
        try:
            yield jobs
        finally:
            del os.environ[SWEEP_VARIABLE]
            files = {int(file.stem): file for file in Path(folder_name).glob("*.json")}
            jobs |= {number: json.loads(files[number].read_text()) for number in sorted(files)}
            if jobs:
                _print_table(jobs, planned, reports)
    if any(job["outcome"] == "failed" for job in jobs.values()):
        raise SystemExit(1)


def _print_table(
    jobs: Mapping[int, Mapping[str, Any]], planned: Sequence[list[str]], reports: Sequence[str]
) -> None:
    """Print a line per job: its number, outcome, objective or error, and the overrides that not all
    jobs have.
    """
    begun = {number: job["overrides"] for number, job in jobs.items()}
    given = dict(enumerate(planned)) if _are_planned(begun, planned) else begun
    common = set.intersection(*map(set, given.values()))
    rows = [("job", "became", "overrides", "objective or error")]
    for number, texts in given.items():
        job = jobs.get(number, {"outcome": "not begun", "result": ""})
        own = " ".join(text for text in texts if text not in common)
        rows.append((str(number), job["outcome"], own, job["result"]))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        fixed = (text.ljust(width) for text, width in zip(row, widths, strict=False))
        tell("  ".join([*fixed, row[3]]).rstrip())
    is_left = {"not begun", "stopped"} & {row[1] for row in rows}
    again = "the same command (runs go on unless run.overwrite=true)"
    if is_left:
        tell(f"next: {again}")
    elif {"ran", "resumed", "done"} & {row[1] for row in rows}:
        for command in reports:
            tell(f"next: {command}")


def _report_of(cfg: DictConfig) -> str | None:
    """Return the command that makes a page of the runs of a job; None if they are not logged to
    MLflow.
    """
    node = OmegaConf.to_container(cfg.get("logger") or OmegaConf.create({}), resolve=True)
    assert isinstance(node, dict)
    if not str(node.get("_target_")).endswith(".MLflowTracker"):
        return None
    found = {
        "tracking_uri": TRACKING_URI,
        "experiment": EXPERIMENT,
    }  # by the report, if it is not told another
    given = [f"store.{key}={node[key]}" for key in found if node.get(key, found[key]) != found[key]]
    return " ".join([recipe_command("report"), *map(shlex.quote, given)])


def _are_planned(begun: Mapping[int, list[str]], planned: Sequence[list[str]]) -> bool:
    """Whether these jobs are among the planned: not with ``hydra.sweeper.params`` or
    ``shuffle()``.
    """
    shared = (
        set.intersection(*map(set, planned)) if planned else set()
    )  # Hydra may spell these otherwise
    return all(
        number < len(planned)
        and set(planned[number]) - shared <= set(texts)
        and set(map(key_of, texts)) <= set(map(key_of, planned[number]))
        for number, texts in begun.items()
    )
