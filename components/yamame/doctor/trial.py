"""A short trial of a run, and the forecast of the whole run."""

import io
import math
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import psutil
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from yamame.cli.nodes import plain, select
from yamame.cli.sections import AnyConfig
from yamame.collectors import Episodes
from yamame.evaluation import EvaluationResult
from yamame.runs.api import load_recipe
from yamame.runs.callbacks import Callback
from yamame.runs.limits import with_minutes
from yamame.runs.schedules import (
    LATEST_START,
    NUM_CHECKPOINTS,
    NUM_EVALUATIONS,
    STEPS_PER_EVALUATION,
)
from yamame.runs.state import RunState
from yamame.system.budget import Budget
from yamame.system.compiling import compiling_seconds

Part = Literal["starting", "collecting", "learning", "evaluating", "saving", "ending"]
PARTS: tuple[Part, ...] = get_args(Part)
_NEVER = 10**15
_FEWEST_UPDATES = 20
"""Updates that a trial measures at least."""
_PATIENCE = 4
"""Multiple of its seconds that a trial waits for the first updates."""
_HARMLESS = ("trial: stopped", "no video", "budget.", "compiling ")
"""Beginnings of lines that a run prints without a problem."""


def shortened(cfg: AnyConfig, root: Path, seconds: float) -> DictConfig:
    """Return the configuration of a trial: updates begin at once, and nothing is logged.

    Args:
        cfg: Composed configuration of ``train``.
        root: Folder that the trial may write into.
        seconds: Least duration of the trial.
    """
    schedule = cfg.schedule
    changed = {
        "run": {"name": "trial", "root": str(root), "overwrite": False},
        "resume": False,
        # Only a backstop: the stopwatch ends the trial.
        "budget": {"minutes": 10 * _PATIENCE * seconds / 60},
        "schedule": {
            "learning_starts": min(schedule.learning_starts, schedule.steps_per_iteration),
            "learning_starts_episodes": 0,
            "offline_updates": min(schedule.offline_updates, _FEWEST_UPDATES),
        },
        "evaluation": {"interval": _NEVER},
        "checkpoint": {"interval": _NEVER},
        "logger": {"_target_": "yamame.tracking.NullTracker"},
        "expected": None,
    }
    kept = plain(cfg)
    for key in ("measure", "logger"):
        kept.pop(key, None)
    return OmegaConf.merge(OmegaConf.create(kept), changed)  # type: ignore[return-value]


class Stopwatch(Callback):
    """Measures the parts of a run, and stops the run after enough measurements.

    Args:
        seconds: Seconds to measure from the first step on; up to four times as long until there are
            updates.

    Attributes:
        marks: Parts of the run in their order, each with its seconds and its number of steps,
            updates, evaluations or checkpoints.
        memory: Largest resident memory of this process and its children, in bytes.
        cores: Mean number of busy cores.
        timesteps: Timesteps of episodes that have ended, which are those in the replay.
        steps_per_episode: Mean length of these episodes; 0 before the first has ended.
        replay_bytes: Size of the replay on disk.
        checkpoint_bytes: Size of a checkpoint on disk.
        run: The run; None before it begins.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.marks: list[tuple[Part, float, int]] = []
        self.memory = 0.0
        self.cores = 0.0
        self.timesteps = 0
        self.steps_per_episode = 0.0
        self._num_episodes = 0
        self.replay_bytes = 0
        self.checkpoint_bytes = 0
        self.run: RunState | None = None
        # The imports before this line are part of starting, so the clock begins with the process.
        age = time.time() - psutil.Process().create_time()
        self._last = time.monotonic() - age
        self._compiled = compiling_seconds()
        self._warm = 0

    def on_begin(self, run: RunState) -> None:
        """Count everything until now as starting."""
        self._mark("starting", 1)
        self.run = run
        run.advises = False  # a trial is too short to learn
        self._begin = self._last
        # Evidence of skipped updates would be deleted with the folder of the trial.
        run.guard.directory = None

    def on_collect(self, run: RunState, episodes: Episodes) -> None:
        """Count steps."""
        self._mark("collecting", episodes.num_steps)
        # An episode has one timestep more than steps: the one after the last step.
        self._num_episodes += len(episodes.lengths)
        self.timesteps += int(episodes.lengths.sum()) + len(episodes.lengths)
        if self._num_episodes > 0:
            self.steps_per_episode = self.timesteps / self._num_episodes - 1

    def on_update(self, run: RunState, metrics: Mapping[str, Tensor]) -> None:
        """Count an update."""
        self._mark("learning", 1)

    def on_log(self, run: RunState, metrics: Mapping[str, float], step: int) -> None:
        """End an iteration, and the run after enough measurements."""
        self._mark("collecting", 0)
        self._weigh()
        if self._warm == 0 and self.count("learning") > 0:
            self._warm = len(self.marks)
        self.cores = run.costs.cpu_s / max(run.costs.wall_s, 1e-9)

        measured = self._last - self._begin
        has_updates = self.count("learning", self._warm) >= _FEWEST_UPDATES
        is_patient = measured < _PATIENCE * self.seconds
        if measured >= self.seconds and (has_updates or not is_patient):
            run.stop("measured")

    def on_evaluate(self, run: RunState, result: EvaluationResult) -> None:
        """Count an evaluation."""
        self._mark("evaluating", 1)
        self._weigh()

    def on_save(self, run: RunState) -> None:
        """Count the time since the last mark as saving."""
        self._mark("saving", 0)

    def on_saved(self, run: RunState, path: Path) -> None:
        """Count a checkpoint."""
        self._mark("saving", 1)
        self.checkpoint_bytes = path.stat().st_size
        self.replay_bytes = 0
        for file in (run.path / "replay").rglob("*"):
            if file.is_file():
                self.replay_bytes += file.stat().st_size

    def on_end(self, run: RunState) -> None:
        """Count the time since the last mark as ending."""
        self._mark("ending", 1)

    def _mark(self, part: Part, times: int) -> None:
        """Attribute the time since the last mark to a part."""
        now = time.monotonic()
        compiled = compiling_seconds() - self._compiled
        self.marks.append((part, now - self._last - compiled, times))
        if compiled > 0:
            # It happens once, whichever part needs the program first.
            self.marks.append(("starting", compiled, 0))
        self._last = now
        self._compiled += compiled

    def _weigh(self) -> None:
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        memory = sum(process.memory_info().rss for process in processes)
        self.memory = max(self.memory, memory)

    def count(self, part: Part, since: int = 0) -> int:
        """Return the number of steps, updates, evaluations or checkpoints of a part."""
        count = 0
        for name, _, times in self.marks[since:]:
            if name == part:
                count += times
        return count

    def spent(self, part: Part, since: int = 0) -> float:
        """Return the seconds of a part."""
        spent = 0.0
        for name, seconds, _ in self.marks[since:]:
            if name == part:
                spent += seconds
        return spent

    def each(self, part: Part) -> float:
        """Return the seconds of one step, update, evaluation or checkpoint."""
        # The first iteration with updates, and those before it, load, compile and fill caches. They
        # count only if there is nothing else.
        since = self._warm if self.count(part, self._warm) > 0 else 0
        return self.spent(part, since) / max(1, self.count(part, since))

    def warming(self) -> float:
        """Return the seconds that the first steps and updates took beyond those of later ones."""
        beyond = 0.0
        parts: tuple[Part, ...] = ("collecting", "learning")
        for part in parts:
            beyond += self.spent(part) - self.each(part) * self.count(part)
        return max(0.0, beyond)


def run_trial(cfg: AnyConfig, watch: Stopwatch) -> list[str]:
    """Train until the stopwatch stops the run.

    Args:
        cfg: Composed configuration of ``train``, whose ``run.root`` need not exist. Everything that
            is written below it is deleted.
        watch: Measures the run.

    Returns:
        Lines that the run printed as warnings.
    """
    errors = io.StringIO()
    with _temporary_folder(Path(cfg.run.root)) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with redirect_stdout(io.StringIO()), redirect_stderr(errors):
            trial = shortened(cfg, folder, watch.seconds)
            load_recipe("train").train(trial, callbacks=[watch])
    lines = []
    for line in errors.getvalue().splitlines():
        if line and not line.startswith(_HARMLESS) and line not in lines:
            lines.append(line)
    return lines


@contextmanager
def _temporary_folder(root: Path) -> Iterator[Path]:
    """Yield a folder on the disk of the runs; delete it, and parents made for it, afterwards."""
    new = [path for path in (root, *root.parents) if not path.exists()]
    root.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=root) as folder:
            yield Path(folder)
    finally:
        for path in new:  # innermost first
            path.rmdir()


@dataclass(frozen=True)
class Forecast:
    """Forecast of a whole run.

    Attributes:
        env_steps: Environment steps at its end.
        updates: Updates at its end.
        seconds: Seconds of each part.
        limit: Key of the budget that ends it.
    """

    env_steps: int
    updates: int
    seconds: Mapping[Part, float]
    limit: str

    @property
    def total(self) -> float:
        """Seconds from its start to its end."""
        return sum(self.seconds.values())


def forecast(watch: Stopwatch, cfg: AnyConfig) -> Forecast:
    """Forecast a run from a trial.

    Args:
        watch: Stopwatch of a trial that has ended.
        cfg: Configuration of the run itself.
    """
    budget = Budget(**plain(with_minutes(cfg))["budget"])
    env_steps = budget.env_steps or math.inf
    limit = "env_steps"
    steps_of_updates = _steps_of(watch, cfg, budget.updates)
    if steps_of_updates < env_steps:
        env_steps = steps_of_updates
        limit = "updates"
    ends = env_steps < math.inf

    whole = _at(watch, cfg, env_steps, limit) if ends else _at(watch, cfg, 0.0, "none")
    seconds = math.inf
    if budget.minutes is not None:
        # The minutes of a budget begin with the run, after imports and building.
        seconds = 60 * budget.minutes + watch.spent("starting")
        limit = "minutes"
    cores = watch.cores or 1.0
    if budget.cpu_s is not None and budget.cpu_s / cores < seconds:
        seconds = budget.cpu_s / cores
        limit = "cpu_s"
    if seconds == math.inf or (ends and whole.total <= seconds):
        return whole

    # The time of a run is monotonic in its steps, but no simple function of them: bisection.
    low = 0.0
    high = min(env_steps, seconds / watch.each("collecting"))
    for _ in range(60):
        middle = (low + high) / 2
        if _at(watch, cfg, middle, limit).total <= seconds:
            low = middle
        else:
            high = middle
    return _at(watch, cfg, low, limit)


def _at(watch: Stopwatch, cfg: AnyConfig, env_steps: float, limit: str) -> Forecast:
    """Forecast a run that ends after so many steps."""
    updates = _updates(watch, cfg, env_steps)
    evaluations = _evaluations(watch, cfg, env_steps)
    if cfg.checkpoint.interval is None:
        checkpoints = NUM_CHECKPOINTS + evaluations
    else:
        # A checkpoint is also written after every evaluation.
        checkpoints = max(evaluations, env_steps // cfg.checkpoint.interval + 1)
    seconds: dict[Part, float] = {
        "starting": watch.spent("starting") + watch.warming(),
        "collecting": watch.each("collecting") * env_steps,
        "learning": watch.each("learning") * updates,
        "evaluating": watch.each("evaluating") * evaluations,
        "saving": watch.each("saving") * checkpoints,
        "ending": watch.spent("ending"),
    }
    return Forecast(int(env_steps), updates, seconds, limit)


def _evaluations(watch: Stopwatch, cfg: AnyConfig, env_steps: float) -> float:
    """Return the number of evaluations in so many steps, that at the end included."""
    interval = cfg.evaluation.interval
    if interval is not None:
        return env_steps // interval + 1
    # Training takes several times as many steps between two of them as one takes.
    steps_of_one = max(1, cfg.evaluation.num_episodes * watch.steps_per_episode)
    steps_each = STEPS_PER_EVALUATION * steps_of_one
    return min(NUM_EVALUATIONS, env_steps // steps_each + 1)


def _start(watch: Stopwatch, cfg: AnyConfig, env_steps: float) -> float:
    """Return the steps before the first update of a run of so many steps."""
    num_episodes = select(cfg.schedule, "learning_starts_episodes") or 0
    steps = min(num_episodes * watch.steps_per_episode, LATEST_START * env_steps)
    return max(float(cfg.schedule.learning_starts), steps)


def _updates(watch: Stopwatch, cfg: AnyConfig, env_steps: float) -> int:
    """Return the number of updates that the schedule makes in so many steps."""
    schedule = cfg.schedule
    learned_steps = max(0.0, env_steps - _start(watch, cfg, env_steps))
    return int(learned_steps * _updates_per_step(cfg)) + int(schedule.offline_updates)


def _updates_per_step(cfg: AnyConfig) -> float:
    """Return the number of updates per step, with the first factor of a regulator."""
    # Which factor a regulator will choose is not known before it has observed anything.
    first = select(cfg, "schedule.regulator.first")
    return float(cfg.schedule.updates_per_step) * (1.0 if first is None else float(first))


def _steps_of(watch: Stopwatch, cfg: AnyConfig, updates: float | None) -> float:
    """Return the number of steps after which the schedule has made so many updates."""
    schedule = cfg.schedule
    if updates is None:
        return math.inf
    online = updates - schedule.offline_updates
    if online <= 0:
        return 0.0
    if schedule.updates_per_step == 0:
        return math.inf
    online_steps = online / _updates_per_step(cfg)
    return _start(watch, cfg, online_steps) + online_steps
