"""What a person sees of a run while it goes on: a bar in a terminal, plain lines in a log."""

import math
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from yamame.training.budget import Budget


class ProgressBar:
    """Shows how far a run is. A context manager; call `update` as often as you like.

    In a terminal it draws one bar. Elsewhere it prints one plain line per interval, without control
    characters. Speeds are those of the last interval, so a resumed run does not count what was done before.

    Args:
        budget: The run's budget; the bar follows the limit that is nearest.
        interval_s: Seconds between two plain lines, and between two readings of the speed.
        stream: Where to write; the standard output when None.
        clock: Returns seconds; only differences matter.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        interval_s: float = 10.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.budget = budget
        self.interval_s = interval_s
        self._console = Console(file=sys.stdout if stream is None else stream)
        self._clock = clock
        self._last: tuple[float, int, int] | None = None  # time, environment steps, updates
        self._speeds = (0.0, 0.0)
        self._bar: Progress | None = None
        if self._console.file.isatty():
            columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
            self._bar = Progress(*columns, console=self._console, refresh_per_second=4)
            self._bar.add_task("", total=1.0)

    def update(
        self,
        *,
        env_steps: int,
        updates: int,
        outcome: float | None = None,
        outcome_is: str = "success",
        loss: float | None = None,
    ) -> None:
        """Tells where the run is, and how its episodes end. ``None`` means not known yet."""
        now = self._clock()
        if self._last is None:
            self._last = (now, env_steps, updates)
        elapsed = now - self._last[0]
        due = elapsed > 0 and elapsed >= self.interval_s
        if due:
            self._speeds = ((env_steps - self._last[1]) / elapsed, (updates - self._last[2]) / elapsed)
            self._last = (now, env_steps, updates)
        if self._bar is None and not due:
            return
        fraction = self.budget.fraction(env_steps=env_steps, updates=updates)
        left = self.budget.remaining_s(
            env_steps=env_steps,
            updates=updates,
            env_steps_per_s=self._speeds[0],
            updates_per_s=self._speeds[1],
        )
        parts = (
            f"{fraction:4.0%}",
            f"{env_steps:,} steps",
            f"{updates:,} updates",
            f"{outcome_is} {_number(outcome, '.3f')}",
            f"loss {_number(loss, '.4g')}",
            f"{self._speeds[0]:,.0f} steps/s",
            f"{self._speeds[1]:.1f} updates/s",
            f"{'?' if left is None else timedelta(seconds=round(left))} left",
        )
        if self._bar is None:
            self._console.out("  ".join(parts), highlight=False)
        else:
            self._bar.update(self._bar.task_ids[0], completed=fraction, description="  ".join(parts))

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _number(value: float | None, form: str) -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, form)
