"""What a person sees of a run while it goes on: a bar in a terminal, plain lines in a log."""

import math
import sys
import time
from collections.abc import Callable, Mapping
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
from yamame.training.progress import RECENT

_FEWEST = 10
"""Episodes that have ended before their mean is shown."""


class ProgressBar(Callback):
    """Shows how far a run is.

    It says what was built. In a terminal it then draws one bar. Elsewhere it prints one plain line
    per interval, with the time of day and without control characters. Speeds are those of the last
    interval, so a resumed run does not count what was done before.

    The bar follows the limit of the budget that is nearest. Of a collector that plays beside the
    learner it tells which share of the last interval the learner waited for it.

    Args:
        interval_s: Seconds between two plain lines, and between two readings of the speed.
        stream: Where to write; the standard output when None.
        clock: Returns seconds; only differences matter.
    """

    def __init__(
        self,
        *,
        interval_s: float = 10.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.interval_s = interval_s
        self._console = Console(file=sys.stdout if stream is None else stream)
        self._clock = clock
        self._told = False
        # Time, environment steps, updates, and seconds that the learner has waited.
        self._last: tuple[float, int, int, float] | None = None
        self._speeds: tuple[float, float, float] | None = (
            None  # none before the first interval has passed
        )
        self._bar: Progress | None = None

    def on_begin(self, run: RunState) -> None:
        """Says what was built, and draws the bar, if there is a terminal."""
        self._line(built(run))
        if self._console.file.isatty():
            columns = (
                SpinnerColumn(),
                BarColumn(bar_width=20),
                TextColumn("{task.description}", markup=False),
            )
            self._bar = Progress(*columns, console=self._console, refresh_per_second=4)
            self._bar.add_task("", total=1.0)
            run.exits.enter_context(self._bar)

    def on_evaluating(self, run: RunState) -> None:
        """Tells that the run does not learn for a while."""
        text = f"evaluating {described(run.config['evaluation']['num_episodes'], None)} ({run.novelty})"
        if self._bar is None:
            self._line(text)
        else:
            self._bar.update(self._bar.task_ids[0], description=text)

    def on_evaluate(self, run: RunState, result: EvaluationResult) -> None:
        """Leaves a line with what an evaluation gave, above the bar."""
        summary = result.summary()
        name = "success" if "success_mean" in summary else "return"
        mean = format(summary[f"{name}_mean"], ".3f")
        ends = with_width(summary[f"{name}_low"], summary[f"{name}_high"])
        shown = mean if ends is None else f"{mean} [{ends[0]:.3f}, {ends[1]:.3f}]"
        at = f"{run.progress.step:,} {'steps' if run.progress.unit == 'env_steps' else 'updates'}"
        unit = "; interval over tasks" if "intervals_over_tasks" in summary else ""
        about = f"{described(result.returns.numel(), result.num_tasks)}{unit}; {run.novelty}"
        self._line(f"evaluation after {at}: {name} {shown} ({about})")

    def on_log(self, run: RunState, metrics: Mapping[str, float], step: int) -> None:
        """Tells where the run is, and how its episodes end; what is not known yet is shown as a
        dash.
        """
        env_steps, updates = run.progress.env_steps, run.progress.updates
        waited = metrics.get("collector/waited_s")
        present = (self._clock(), env_steps, updates, waited or 0.0)
        if self._last is None:
            self._last = present
        elapsed = present[0] - self._last[0]
        due = elapsed > 0 and elapsed >= self.interval_s
        if due:
            steps, made, idle = (
                new - old for new, old in zip(present[1:], self._last[1:], strict=True)
            )
            self._speeds, self._last = (steps / elapsed, made / elapsed, idle / elapsed), present
        if self._bar is None and not due and self._told:
            return
        self._told = True
        steps_per_s, updates_per_s, waits = self._speeds or (None, None, None)
        fraction = run.budget.fraction(env_steps=env_steps, updates=updates)
        left = run.budget.remaining_s(
            env_steps=env_steps,
            updates=updates,
            env_steps_per_s=steps_per_s or 0.0,
            updates_per_s=updates_per_s or 0.0,
        )
        parts = (
            f"{fraction:4.0%}",
            f"{env_steps:,} steps",
            f"{updates:,} updates",
            _recent(run),
            f"loss {_number(metrics.get('train/loss'), '.4g')}",
            f"{_number(steps_per_s, ',.0f')} steps/s",
            f"{_number(updates_per_s, '.1f')} updates/s",
            *([] if waited is None else [f"learner waits {_number(waits, '.0%')}"]),
            f"{'?' if left is None else timedelta(seconds=round(left))} left",
        )
        if self._bar is None:
            self._line("  ".join(parts))
        else:
            self._bar.update(
                self._bar.task_ids[0], completed=fraction, description="  ".join(parts)
            )

    def _line(self, text: str) -> None:
        """Prints a line; in a log with the time of day."""
        now = "" if self._console.file.isatty() else f"{time.strftime('%H:%M:%S')}  "
        self._console.out(f"{now}{text}", highlight=False)


def built(run: RunState) -> str:
    """What a run is made of, and where it lives.

    Args:
        run: One that begins; one without an agent or environments tells less.
    """
    agent, num_envs = run.components.get("agent"), run.config["schedule"].get("num_envs")
    parts = [f"{run.name}:"]
    if isinstance(agent, nn.Module):
        parts.append(f"{sum(weight.numel() for weight in agent.parameters()):,} parameters,")
    if num_envs:
        parts.append(f"{num_envs} environments,")
    return " ".join([*parts, f"on {run.config['device']}, in {run.path}"])


def _recent(run: RunState) -> str:
    """Format the mean outcome of recent episodes, and their number while it is below `RECENT`.

    The first episodes to end are the shortest, often the successful ones. So there is a dash until
    as many episodes have ended as there are environments, at least `_FEWEST` and at most `RECENT`.
    """
    name, episodes = run.progress.outcome_is, len(run.progress.outcomes)
    num_envs = run.config["schedule"].get("num_envs") or 0
    if episodes < min(max(num_envs, _FEWEST), RECENT):
        return f"{name} -"
    few = f" of {episodes}" if episodes < RECENT else ""
    return f"{name} {_number(run.progress.outcome, '.3f')}{few}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, form)
