"""Checks what a run of train needs, tries it for some seconds, and tells what the whole run will
take.

    python recipes/doctor.py env=mazerunner encoder=gru
    python recipes/doctor.py experiment=cpu_tmaze measure.seconds=60
    python recipes/doctor.py env=gym env.id=mylab.envs:make trust=[mylab.]

It takes what recipes/train.py takes. The trial is the run itself, with updates from the first
episodes on and without a tracker, in a folder below run.root that is deleted. What it foresees is
the run from its beginning, also with resume. A line that begins with `problem:` says what is to be
mended; the exit status is then 1.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.doctor.packages import require_packages

    require_packages("yamame", "train")  # before an import of a missing package fails
    from yamame.cli.front import answer

    answer("doctor", without_sweeps="the doctor looks at one run")

# isort: split
import io
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from datetime import timedelta
from pathlib import Path

import psutil
import torch
from omegaconf import DictConfig, OmegaConf
from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.cli.explain import explain_outside
from yamame.cli.front import fail
from yamame.doctor import machine, packages
from yamame.doctor.trial import Forecast, Stopwatch, forecast, shortened
from yamame.runs.api import load_recipe
from yamame.runs.build import build_agent, build_env
from yamame.runs.machine import check_machine
from yamame.system.messages import OutsideError, one_line
from yamame.system.signals import Terminated
from yamame.tracking.mlflow_store import check_store

GIGABYTE = machine.GIGABYTE
HARMLESS = ("trial: stopped", "no video")
"""How lines begin that a run tells and that are no problem."""


def doctor(cfg: DictConfig) -> None:
    """The recipe."""
    say("packages", packages.as_text())
    say("machine", machine.described(cfg))
    problems, store = [*machine.problems(cfg)], []
    with noting(store):
        check_store(cfg)
    if not problems:
        with noting(problems):
            check_machine(cfg)
        elsewhere = {"device": "cpu"} if problems else {}  # what else is wrong shows there, too
        part = OmegaConf.merge(cfg, elsewhere)
        with noting(problems), closing(build_env(part, num_envs=1, seed=0)) as env:
            build_agent(part, env)
    if not problems:
        say("trial", f"of {cfg.measure.seconds:g} s and an evaluation")
        watch = Stopwatch(cfg.measure.seconds)
        with noting(problems), folder_beside(Path(cfg.run.root)) as folder:
            problems += try_out(shortened(cfg, folder, cfg.measure.seconds), watch)
        if not problems:
            problems += tell(watch, forecast(watch, cfg), cfg)
    for problem in (problems := store + problems):
        say("problem", problem)
    if problems:
        fail("doctor", f"{len(problems)} to mend", status=1)


def say(what: str, text: str) -> None:
    """Prints a line."""
    print(f"{what + ':':<10} {text}", flush=True)


@contextmanager
def noting(problems: list[str]) -> Iterator[None]:
    """Within the block what fails becomes a line of the problems."""
    try:
        yield
    except Terminated:
        raise KeyboardInterrupt from None
    except (UsageError, FloatingPointError) as error:
        problems.append(lasting(one_line(error)))
    except OSError as error:
        problems.append(explain_outside(error))
    except OutsideError as error:
        problems.append(f"{one_line(error)}{place(error.__cause__)}")
    except Exception as error:
        problems.append(f"{type(error).__name__}: {one_line(error)}{place(error)}")


@contextmanager
def folder_beside(root: Path) -> Iterator[Path]:
    """A folder on the disk of the runs, for a while; what had to be made for it goes, too."""
    new = [path for path in (root, *root.parents) if not path.exists()]
    root.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=root) as folder:
            yield Path(folder)
    finally:
        for path in new:
            path.rmdir()


def try_out(cfg: DictConfig, watch: Stopwatch) -> list[str]:
    """Trains for a while; what a run would warn of, a line each."""
    told = io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(told):
        warnings.simplefilter("ignore")
        load_recipe("train").train(cfg, callbacks=[watch])
    lines = dict.fromkeys(told.getvalue().splitlines())
    return [lasting(line) for line in lines if line and not line.startswith(HARMLESS)]


def lasting(line: str) -> str:
    """A line without what names files of the trial."""
    return line.partition(", kept in ")[0]


def place(error: BaseException | None) -> str:
    """Where an error was raised: the innermost line that is of no library, if there is one."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    return (
        f" (at {frame.filename}:{frame.lineno})"
        if (frame := next(reversed(own or frames), None))
        else ""
    )


def tell(watch: Stopwatch, whole: Forecast, cfg: DictConfig) -> list[str]:
    """Shows what was measured and what it says of the whole run; what the machine is too small for,
    a line each.
    """
    collecting, learning = (1 / max(watch.each(part), 1e-9) for part in ("collecting", "learning"))
    say(
        "speed",
        f"{collecting:,.0f} steps/s while it collects, {learning:,.1f} updates/s while it learns",
    )
    capacity = min(whole.env_steps, cfg.replay.get("capacity") or whole.env_steps)
    replay = watch.replay_bytes / max(1, watch.timesteps) * capacity
    disk = replay + watch.checkpoint_bytes * (cfg.checkpoint.keep + 1)
    say("memory", f"{watch.memory / GIGABYTE:.2f} GB{gpu_memory(cfg)}")
    say("disk", f"{disk / GIGABYTE:.2f} GB, of which {replay / GIGABYTE:.2f} GB are replay")
    parts = ", ".join(f"{part} {spent / whole.total:.0%}" for part, spent in whole.seconds.items())
    cpu = whole.total * watch.cores
    say(
        "time",
        f"{timedelta(seconds=round(whole.total))} ({whole.total:,.0f} s, {cpu:,.0f} CPU-seconds): {parts}",
    )
    say(
        "end", f"budget.{whole.limit}, with {whole.env_steps:,} steps and {whole.updates:,} updates"
    )
    left = machine.memory_left() + psutil.Process().memory_info().rss
    too_small = {
        f"memory: must be {watch.memory / GIGABYTE:.1f} GB": left < watch.memory,
        f"run.root: must have {disk / GIGABYTE:.1f} GB of disk": machine.disk_left(
            Path(cfg.run.root)
        )
        < disk,
    }
    problems = [f"{what}, and there is less" for what, is_so in too_small.items() if is_so]
    if not whole.updates:
        plan = ", ".join(
            f"{key}={cfg.schedule[key]}" for key in ("learning_starts", "updates_per_step")
        )
        problems.append(f"schedule: must make updates in {whole.env_steps} steps, got {plan}")
    elif not watch.count("learning"):
        steps = watch.count("collecting")
        what = (
            "no update was made"
            if watch.timesteps
            else "no episode has ended, and so no update was made,"
        )
        bound = "" if watch.timesteps else ", or episodes bounded by env.time_limit"
        problems.append(
            f"measure.seconds: must be longer{bound}; {what} in the trial's {steps} steps"
        )
    return problems


def gpu_memory(cfg: DictConfig) -> str:
    """What the trial took of a GPU's memory."""
    if torch.device(cfg.device).type != "cuda":
        return ""
    return f", {torch.cuda.max_memory_allocated(cfg.device) / GIGABYTE:.2f} GB of the GPU's"


if __name__ == "__main__":
    main(doctor, config_name="doctor", needs_store=False)
