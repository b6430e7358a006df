"""Recipes that consist of several runs."""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from omegaconf import DictConfig
from torch import Tensor

from yamame.checks import SettingError
from yamame.cli.jobs import parts_of_one
from yamame.cli.names import file_name
from yamame.files.identity import is_one_of, key_of, makes_another_name
from yamame.files.run_directory import check_run
from yamame.runs import api
from yamame.runs.callbacks import Callback
from yamame.runs.run import Run
from yamame.runs.state import RunState
from yamame.system import signals


def train_or_resume(
    *overrides: str,
    callbacks: Sequence[Callback] = (),
    on_interrupt: Callable[[], str] | None = None,
) -> Run:
    """Train one of the runs of a recipe; resume it if it was interrupted, load it if it is done.

    The run prints one line at its end, in place of a table.

    Args:
        overrides: As for `yamame.train`.
        callbacks: As for `yamame.train`.
        on_interrupt: Returns a line to print when the run is interrupted.

    Raises:
        UsageError: The overrides are wrong.
        SystemExit: The run was interrupted. The status tells a scheduler to start the command
            again.
    """
    try:
        with parts_of_one():
            return api.train(*overrides, "resume=auto", callbacks=callbacks)
    except KeyboardInterrupt:
        if on_interrupt is not None:
            print(on_interrupt())
        raise SystemExit(signals.EXIT_STATUS) from None


def group_folder(run: DictConfig, overrides: Sequence[str], *, prefix: str) -> Path:
    """Return the folder of runs that share overrides.

    Args:
        run: Section ``run`` of the configuration: ``root``, and ``name`` or null.
        overrides: Overrides that the runs share; without ``run.name``, the folder is named after
            them.
        prefix: Begins such a name.

    Raises:
        UsageError: ``run.name`` cannot be the name of a folder, or the folder holds a link or a
            pipe.
    """
    name = str(run.name or "")
    if "/" in name or name.startswith("."):
        raise SettingError("run.name", name, "be the name of a folder")
    if name:
        folder = Path(run.root) / name
        check_run(folder)
        return folder

    named = []
    for text in overrides:
        key = key_of(text)
        # A run may continue with a different budget under its name, but compared runs share one.
        if makes_another_name(key) or is_one_of(key, ("budget", "evaluation", "callbacks")):
            named.append(text)
    return Path(run.root) / file_name([prefix, *sorted(named)])


class TimeSlice(Callback):
    """Interrupt the runs of this process after some minutes, so that they can be resumed later.

    Args:
        minutes: Minutes from now on; None for no limit.

    Attributes:
        run: The run that began last; None before the first.
    """

    def __init__(self, minutes: float | None) -> None:
        self.run: RunState | None = None
        self._end = float("inf")
        if minutes is not None:
            self._end = time.monotonic() + 60 * minutes

    def on_begin(self, run: RunState) -> None:
        """Store the state of the run at its beginning in this slice."""
        self.run = run
        self._begin = time.monotonic()
        self._updates_before = run.progress.updates
        self._share_before = self._share(run)

    def on_update(self, run: RunState, metrics: Mapping[str, Tensor]) -> None:
        """Interrupt the run if the time is over."""
        # Once: a second signal would end the process before the run is saved.
        if signals.received() is None and time.monotonic() > self._end:
            signal.raise_signal(signal.SIGTERM)

    def describe_rest(self) -> str:
        """Describe how far the run is, and how long the rest takes at the speed of this slice."""
        if self.run is None:
            return "not begun"
        progress = self.run.progress
        budget = self.run.budget
        share = self._share(self.run)
        done = (
            f"{progress.env_steps:,} steps and {progress.updates:,} updates, {share:.2%} of the run"
        )
        made = progress.updates - self._updates_before
        passed_s = time.monotonic() - self._begin
        if budget.has_only_time and share > self._share_before:
            seconds = passed_s * (1.0 - share) / (share - self._share_before)
        elif made > 0 and budget.env_steps:
            seconds = passed_s / made * max(0.0, progress.updates / share - progress.updates)
        else:
            return f"{done}; no update was made in this piece"
        return f"{done}; the rest takes {timedelta(seconds=round(seconds))} at this rate"

    @staticmethod
    def _share(run: RunState) -> float:
        """Return the spent share of the budget."""
        progress = run.progress
        return run.budget.fraction(env_steps=progress.env_steps, updates=progress.updates)
