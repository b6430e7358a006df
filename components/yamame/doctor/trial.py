"""A run of some seconds, measured, and what it says of the whole one."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import psutil
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from yamame.collectors import Episodes
from yamame.evaluation import EvaluationResult
from yamame.runs.callbacks import Callback
from yamame.runs.state import RunState
from yamame.system.budget import Budget

Part = Literal["starting", "collecting", "learning", "evaluating", "saving", "ending"]
PARTS: tuple[Part, ...] = get_args(Part)
_NEVER = 10**15
_UPDATES = 20  # measured at least
_PATIENCE = 4  # times the seconds, where there are no updates yet


def shortened(cfg: DictConfig, root: Path, seconds: float) -> DictConfig:
    """The configuration of a trial: that of the run, but updates begin at once, and nothing is
    kept.

    Args:
        cfg: The composed configuration of ``train``.
        root: Where the trial may write.
        seconds: How long it is to go on, at least.
    """
    schedule = cfg.schedule
    changed = {
        "run": {"name": "trial", "root": str(root), "overwrite": False},
        "resume": False,
        "budget": {"minutes": 10 * _PATIENCE * seconds / 60},
        "schedule": {
            "learning_starts": min(schedule.learning_starts, schedule.steps_per_iteration),
            "offline_updates": min(schedule.offline_updates, _UPDATES),
        },
        "evaluation": {"interval": _NEVER},
        "checkpoint": {"interval": _NEVER},
        "logger": {"_target_": "yamame.tracking.NullTracker"},
        "expected": None,
    }
    trial = OmegaConf.create(
        {key: node for key, node in cfg.items() if key not in ("measure", "logger")}
    )
    return OmegaConf.merge(trial, changed)  # type: ignore[return-value]


class Stopwatch(Callback):
    """Measures what the parts of a run take, and stops it when it has seen enough.

    Args:
        seconds: For how long to measure, from the first step on; up to four times as long until
            there are updates.

    Attributes:
        marks: Parts of the run in their order, each with its seconds and how many steps, updates,
            evaluations or checkpoints it was.
        memory: Largest resident memory of this process and those it started, in bytes.
        cores: How many were busy on average.
        timesteps: Of episodes that have ended, and so are in the replay.
        replay_bytes, checkpoint_bytes: On disk at the end.
        run: The run, since it has begun.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.marks: list[tuple[Part, float, int]] = []
        self.memory = self.cores = 0.0
        self.timesteps = self.replay_bytes = self.checkpoint_bytes = 0
        self.run: RunState | None = None
        self._last = psutil.Process().create_time() - time.time() + time.monotonic()
        self._warm = 0

    def on_begin(self, run: RunState) -> None:
        """Everything was imported, built and restored."""
        self._mark("starting", 1)
        self.run, self._begun = run, self._last

    def on_collect(self, run: RunState, episodes: Episodes) -> None:
        """Steps were played."""
        self._mark("collecting", episodes.num_steps)
        self.timesteps += int(episodes.lengths.sum()) + len(episodes.lengths)

    def on_update(self, run: RunState, metrics: Mapping[str, Tensor]) -> None:
        """An update was made."""
        self._mark("learning", 1)

    def on_log(self, run: RunState, metrics: Mapping[str, float], step: int) -> None:
        """An iteration has ended; the last one where enough was measured."""
        self._mark("collecting", 0)
        self._weigh()
        self._warm = self._warm or (len(self.marks) if self.count("learning") else 0)
        measured = self._last - self._begun
        self.cores = run.costs.cpu_s / max(run.costs.wall_s, 1e-9)
        enough = (
            self.count("learning", self._warm) >= _UPDATES or measured >= _PATIENCE * self.seconds
        )
        if enough and measured >= self.seconds:
            run.stop("measured")

    def on_evaluate(self, run: RunState, result: EvaluationResult) -> None:
        """Held-out tasks were played."""
        self._mark("evaluating", 1)
        self._weigh()

    def on_save(self, run: RunState) -> None:
        """A checkpoint is about to be written."""
        self._mark("saving", 0)

    def on_saved(self, run: RunState, path: Path) -> None:
        """A checkpoint was written."""
        self._mark("saving", 1)
        self.checkpoint_bytes = path.stat().st_size
        self.replay_bytes = sum(
            f.stat().st_size for f in (run.path / "replay").rglob("*") if f.is_file()
        )

    def on_end(self, run: RunState) -> None:
        """Everything is closed."""
        self._mark("ending", 1)

    def _mark(self, part: Part, times: int) -> None:
        """What has passed since the last mark was of this part."""
        now = time.monotonic()
        self.marks.append((part, now - self._last, times))
        self._last = now

    def _weigh(self) -> None:
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        self.memory = max(self.memory, sum(each.memory_info().rss for each in processes))

    def count(self, part: Part, since: int = 0) -> int:
        """How often a part took place."""
        return sum(times for name, _, times in self.marks[since:] if name == part)

    def spent(self, part: Part, since: int = 0) -> float:
        """Seconds of a part."""
        return sum(seconds for name, seconds, _ in self.marks[since:] if name == part)

    def each(self, part: Part) -> float:
        """Seconds of one step, update, evaluation or checkpoint.

        Steps and updates of the first iteration with updates and of those before it count only
        where there are no others, for they load, compile and fill caches.
        """
        since = self._warm if self.count(part, self._warm) else 0
        return self.spent(part, since) / max(1, self.count(part, since))

    def warming(self) -> float:
        """Seconds that the first steps and updates took beyond those of later ones."""
        parts: tuple[Part, ...] = ("collecting", "learning")
        return max(
            0.0, sum(self.spent(part) - self.each(part) * self.count(part) for part in parts)
        )


@dataclass(frozen=True)
class Forecast:
    """What a whole run will take.

    Attributes:
        env_steps, updates: At its end.
        seconds: Per part.
        limit: The key of the budget that ends it.
    """

    env_steps: int
    updates: int
    seconds: Mapping[Part, float]
    limit: str

    @property
    def total(self) -> float:
        """Seconds from its start to its end."""
        return sum(self.seconds.values())


def forecast(watch: Stopwatch, cfg: DictConfig) -> Forecast:
    """What the run of a configuration will take, by what a trial took.

    A budget of minutes, which is counted from the beginning of the run on, ends it where the others
    would come later.

    Args:
        watch: Of a trial that has ended.
        cfg: The configuration of the run itself.
    """
    budget = Budget(**cfg.budget)

    def at(env_steps: float, limit: str) -> Forecast:
        return Forecast(
            int(env_steps), _updates(cfg, env_steps), _seconds(watch, cfg, env_steps), limit
        )

    def in_time(whole: Forecast) -> bool:
        return whole.total - watch.spent("starting") <= 60 * (budget.minutes or math.inf)

    most = {"env_steps": budget.env_steps or math.inf, "updates": _steps_of(cfg, budget.updates)}
    limit = min(most, key=lambda name: most[name])
    whole = at(most[limit], limit) if most[limit] < math.inf else None
    if budget.minutes is None or (whole is not None and in_time(whole)):
        return whole or at(0, "none")
    low, high = 0.0, min(most[limit], 60 * budget.minutes / watch.each("collecting"))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if in_time(at(middle, "")) else (low, middle)
    return at(low, "minutes")


def _updates(cfg: DictConfig, env_steps: float) -> int:
    """Updates that the schedule makes in so many steps."""
    schedule = cfg.schedule
    return int(max(0.0, env_steps - schedule.learning_starts) * schedule.updates_per_step) + int(
        schedule.offline_updates
    )


def _steps_of(cfg: DictConfig, updates: float | None) -> float:
    """Steps after which the schedule has made so many updates."""
    schedule = cfg.schedule
    if updates is None or (updates > schedule.offline_updates and not schedule.updates_per_step):
        return math.inf
    beyond = max(0.0, updates - schedule.offline_updates)
    return schedule.learning_starts + beyond / schedule.updates_per_step if beyond else 0.0


def _seconds(watch: Stopwatch, cfg: DictConfig, env_steps: float) -> dict[Part, float]:
    evaluations = env_steps // cfg.evaluation.interval + 1
    checkpoints = env_steps // min(cfg.evaluation.interval, cfg.checkpoint.interval) + 1
    return {
        "starting": watch.spent("starting") + watch.warming(),
        "collecting": watch.each("collecting") * env_steps,
        "learning": watch.each("learning") * _updates(cfg, env_steps),
        "evaluating": watch.each("evaluating") * evaluations,
        "saving": watch.each("saving") * checkpoints,
        "ending": watch.spent("ending"),
    }
