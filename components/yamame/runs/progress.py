"""What a person sees of a run: a bar in a terminal, plain lines in a log, a table at the end."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TextIO

import rich.progress
from rich import box
from rich.console import Console
from rich.table import Table

from yamame.runs.budget import Budget

_PLAIN_WIDTH = 100


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
        self.stream = sys.stdout if stream is None else stream
        self._clock = clock
        self._reading: tuple[float, int, int] | None = None
        self._speeds = (0.0, 0.0)
        self._bar = _make_bar(self.stream) if self.stream.isatty() else None

    def update(
        self, *, env_steps: int, updates: int, success: float | None = None, loss: float | None = None
    ) -> None:
        """Tells where the run is. ``None`` means not known yet."""
        now = self._clock()
        if self._reading is None:
            self._reading = (now, env_steps, updates)
        elapsed = now - self._reading[0]
        due = elapsed > 0 and elapsed >= self.interval_s
        if due:
            done = (env_steps - self._reading[1], updates - self._reading[2])
            self._speeds = (done[0] / elapsed, done[1] / elapsed)
            self._reading = (now, env_steps, updates)
        if self._bar is None and not due:
            return
        text = self._text(env_steps, updates, success, loss)
        if self._bar is None:
            print(text, file=self.stream, flush=True)
        else:
            fraction = self.budget.fraction(env_steps=env_steps, updates=updates)
            self._bar.update(self._bar.task_ids[0], completed=fraction, description=text)

    def _text(self, env_steps: int, updates: int, success: float | None, loss: float | None) -> str:
        fraction = self.budget.fraction(env_steps=env_steps, updates=updates)
        left = self.budget.remaining_s(
            env_steps=env_steps,
            updates=updates,
            env_steps_per_s=self._speeds[0],
            updates_per_s=self._speeds[1],
        )
        parts = [
            f"{fraction:4.0%}",
            f"{env_steps:,} steps",
            f"{updates:,} updates",
            f"success {_number(success, '.3f')}",
            f"loss {_number(loss, '.4g')}",
            f"{self._speeds[0]:,.0f} steps/s",
            f"{self._speeds[1]:.1f} updates/s",
            f"{_duration(left)} left",
        ]
        return "  ".join(parts)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._bar.add_task("", total=1.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _make_bar(stream: TextIO) -> rich.progress.Progress:
    bar = rich.progress.BarColumn(bar_width=20)
    text = rich.progress.TextColumn("{task.description}", markup=False)
    return rich.progress.Progress(bar, text, console=Console(file=stream), refresh_per_second=4)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def _duration(seconds: float | None) -> str:
    """Hours, minutes and seconds.

    >>> _duration(3725.0), _duration(59.4), _duration(None)
    ('1:02:05', '0:59', '?')
    """
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def print_table(title: str, rows: Mapping[str, Any], *, stream: TextIO | None = None) -> None:
    """Prints names and values, floats with four digits: the end of a run. No control characters in a log."""
    stream = sys.stdout if stream is None else stream
    terminal = stream.isatty()
    console = Console(
        file=stream, force_terminal=terminal, width=None if terminal else _PLAIN_WIDTH, highlight=False
    )
    table = Table(
        title=title, show_header=False, title_justify="left", box=box.ROUNDED if terminal else box.ASCII
    )
    table.add_column("name")
    table.add_column("value", justify="right")
    for name, value in rows.items():
        shown = f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)
        table.add_row(name, shown, style=None)
    console.print(table, markup=False)
