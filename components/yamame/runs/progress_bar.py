"""Progress of a run for people: a bar in a terminal, plain lines in a log."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from torch import nn

from yamame.evaluation import EvaluationResult
from yamame.evaluation.intervals import with_width
from yamame.evaluation.result import described
from yamame.runs.callbacks import Callback
from yamame.runs.state import RunState
from yamame.system.messages import discard_stdout, printable
from yamame.training.progress import RECENT

_FEWEST = 10
"""Episodes that must have ended before their mean is shown."""
_MOST_TRIALS = 12
"""Trials of an episode whose returns are shown in a line."""


@dataclass(frozen=True)
class _Reading:
    """Counters at one moment."""

    time_s: float
    env_steps: int
    updates: int
    waited_s: float
    """Seconds that the learner has waited for the collector."""

    def speeds_since(self, former: "_Reading") -> "_Speeds":
        """Return the speeds since an earlier reading."""
        elapsed = self.time_s - former.time_s
        return _Speeds(
            env_steps=(self.env_steps - former.env_steps) / elapsed,
            updates=(self.updates - former.updates) / elapsed,
            waiting=(self.waited_s - former.waited_s) / elapsed,
        )


@dataclass(frozen=True)
class _Speeds:
    """Speeds per second; None before the first interval has passed."""

    env_steps: float | None = None
    updates: float | None = None
    waiting: float | None = None
    """Share of the time that the learner has waited for the collector."""


class _Console(Console):
    """Console whose output may lose its reader, as in ``yamame train | head``."""

    def on_broken_pipe(self) -> None:
        """Let the run go on; rich would end the process."""
        self.quiet = True
        discard_stdout()


class ProgressBar(Callback):
    """Shows the progress of a run.

    In a terminal it draws a bar, which is removed at the end of the run. Elsewhere it prints a
    plain line per interval, with the time of day and without control characters. Speeds are those
    of the last interval, so that a resumed run does not count the steps of earlier sessions. The
    bar is that of the limit of the budget that will be reached first. With an asynchronous
    collector, the share of the last interval that the learner has waited for it is shown as well.

    Args:
        interval_s: Seconds between two plain lines, and between two measurements of the speeds.
        stream: Stream to write to; None for the standard output.
        clock: Function that returns seconds; only differences matter.
    """

    def __init__(
        self,
        *,
        interval_s: float = 10.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.interval_s = interval_s
        self._console = _Console(file=sys.stdout if stream is None else stream)
        self._clock = clock
        self._has_logged = False
        self._last: _Reading | None = None
        self._speeds = _Speeds()
        self._bar: Progress | None = None
        self._progress = ""  # last text of the bar, apart from evaluations

    def on_begin(self, run: RunState) -> None:
        """Print a description of the run, and draw the bar in a terminal."""
        for line in describe_run(run):
            self._line(line)
        if self._console.file.isatty():
            columns = (
                SpinnerColumn(),
                BarColumn(bar_width=20),
                # Names may have brackets, which rich would read as markup.
                TextColumn("{task.description}", markup=False),
            )
            # Removed at the end: it would stay with what was done last.
            self._bar = Progress(
                *columns, console=self._console, refresh_per_second=4, transient=True
            )
            self._bar.add_task("", total=1.0)
            run.exits.enter_context(self._bar)

    def on_evaluating(self, run: RunState) -> None:
        """Print that the run is evaluated, because it does not learn meanwhile."""
        episodes = described(run.config["evaluation"]["num_episodes"], None)
        text = f"evaluating {episodes} ({run.novelty})"
        if self._bar is None:
            self._line(text)
        else:
            self._bar.update(self._bar.task_ids[0], description=text)

    def on_evaluate(self, run: RunState, result: EvaluationResult) -> None:
        """Print the result of an evaluation, above the bar."""
        summary = result.summary()
        name = "success" if "success_mean" in summary else "return"
        value = format(summary[f"{name}_mean"], ".3f")
        interval = with_width(summary[f"{name}_low"], summary[f"{name}_high"])
        if interval is not None:
            value = f"{value} [{interval[0]:.3f}, {interval[1]:.3f}]"

        trials = [summary[key] for key in summary if key.startswith("return_mean_trial_")]
        if 1 < len(trials) <= _MOST_TRIALS:
            # Success is that of the last one.
            value = f"{value}, return per trial {' '.join(format(mean, '.3f') for mean in trials)}"

        unit = "steps" if run.progress.unit == "env_steps" else "updates"
        about = described(result.returns.numel(), result.num_tasks)
        if "intervals_over_tasks" in summary:
            about = f"{about}; interval over tasks"
        at = f"{run.progress.step:,} {unit}"
        self._line(f"evaluation after {at}: {name} {value} ({about}; {run.novelty})")
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=self._progress)

    def on_log(self, run: RunState, metrics: Mapping[str, float], step: int) -> None:
        """Show progress, recent episodes and speeds; a dash stands for an unknown number."""
        waited = metrics.get("collector/waited_s")
        is_due = self._measure(run, waited or 0.0)
        if self._bar is None and not is_due and self._has_logged:
            return
        self._has_logged = True

        env_steps, updates = run.progress.env_steps, run.progress.updates
        fraction = run.budget.fraction(env_steps=env_steps, updates=updates)
        left = None
        # Without a speed, a limit of steps or updates may be nearer than that of the time.
        if self._speeds.env_steps is not None or run.budget.has_only_time:
            left = run.budget.remaining_s(
                env_steps=env_steps,
                updates=updates,
                env_steps_per_s=self._speeds.env_steps or 0.0,
                updates_per_s=self._speeds.updates or 0.0,
            )
        parts = [
            f"{fraction:4.0%}",
            f"{env_steps:,} steps",
            f"{updates:,} updates",
            _recent(run),
            f"loss {_number(metrics.get('train/loss'), '.4g')}",
            f"{_number(self._speeds.env_steps, ',.0f')} steps/s",
            f"{_number(self._speeds.updates, '.1f')} updates/s",
        ]
        if waited is not None:
            parts.append(f"learner waits {_number(self._speeds.waiting, '.0%')}")
        parts.append(f"{'?' if left is None else timedelta(seconds=round(left))} left")

        text = "  ".join(parts)
        if self._bar is None:
            self._line(text)
        else:
            self._progress = text
            self._bar.update(self._bar.task_ids[0], completed=fraction, description=text)

    def _measure(self, run: RunState, waited_s: float) -> bool:
        """Measure the speeds if the interval has passed; return whether it has."""
        progress = run.progress
        now = _Reading(self._clock(), progress.env_steps, progress.updates, waited_s)
        if self._last is None:
            self._last = now
        elapsed = now.time_s - self._last.time_s
        if elapsed <= 0 or elapsed < self.interval_s:  # an interval of 0 is allowed
            return False
        self._speeds = now.speeds_since(self._last)
        self._last = now
        return True

    def _line(self, text: str) -> None:
        """Print a line; in a log with the time of day."""
        if not self._console.file.isatty():
            text = f"{time.strftime('%H:%M:%S')}  {text}"
        # A log that is closed or full is no reason to end a run.
        with contextlib.suppress(OSError, ValueError):
            # Without colours for numbers. Custom environments describe themselves.
            self._console.out(printable(text), highlight=False)


def describe_run(run: RunState) -> list[str]:
    """Describe the place and the size of a run that begins, in two lines.

    The place, which ends in the name of the run, has its own line, so that it is not wrapped.
    """
    parts = []
    agent = run.components.get("agent")
    if isinstance(agent, nn.Module):
        parts.append(f"{sum(weight.numel() for weight in agent.parameters()):,} parameters")
    num_envs = run.config["schedule"].get("num_envs")
    if num_envs:
        parts.append(f"{num_envs} environments")
    parts.append(f"on {run.config['device']}")
    return [str(run.path), ", ".join(parts)]


def _recent(run: RunState) -> str:
    """Format the mean outcome of recent episodes, and their number while it is below `RECENT`.

    Before it is shown, the line has the number of episodes that have ended and that of the episodes
    from which it is shown.
    """
    name = run.progress.outcome_name
    episodes = len(run.progress.outcomes)
    # The first episodes to end are the shortest, often the successful ones: their mean would be too
    # high until about every environment has ended one.
    num_envs = run.config["schedule"].get("num_envs") or 0
    fewest = min(max(num_envs, _FEWEST), RECENT)
    if episodes == 0:
        # Recipes without environments have no episodes to wait for.
        return f"{name} - (no episode yet)" if num_envs else f"{name} -"
    if episodes < fewest:
        return f"{name} - ({episodes} of {fewest} episodes)"
    unit = "episode" if episodes == 1 else "episodes"
    few = f" ({episodes} {unit})" if episodes < RECENT else ""
    return f"{name} {_number(run.progress.outcome, '.3f')}{few}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, form)
