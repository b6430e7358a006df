"""Callbacks: methods that a run calls at its events.

A custom callback is an entry of the group ``callbacks`` of the configuration, or an argument in
Python::

    class Patience(yamame.Callback):
        def on_evaluate(self, run, result):
            if result.summary()["return_mean"] > 0.9:
                run.stop("solved")

    yamame.train("env=tmaze", callbacks=[Patience()])
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from yamame.checks import PositiveInt, check_bounds, require_choice
from yamame.cli.jobs import command, printed_command
from yamame.collectors import Episodes
from yamame.evaluation import EvaluationResult
from yamame.files.config import flatten
from yamame.runs.state import RunState
from yamame.system.messages import print_stderr
from yamame.tracking.history import FOLDER_TAG


class Callback:
    """Base class of callbacks. Override the methods of the events of interest.

    Methods are called in the run's own thread, and an error ends the run as failed. A callback may
    read everything of the run, call ``run.log`` and ``run.stop``, and register resources to close
    with ``run.exits``. One that draws random numbers from torch's global generators, or changes
    parameters, changes the run. The state of a callback with ``state_dict`` and ``load_state_dict``
    (plain data) is part of every checkpoint.
    """

    def on_begin(self, run: RunState) -> None:
        """Called once all parts are built and restored, before the first step."""

    def on_collect(self, run: RunState, episodes: Episodes) -> None:
        """Called after steps were collected and counted in ``run.progress``."""

    def on_update(self, run: RunState, metrics: Mapping[str, Tensor]) -> None:
        """Called after an update. Reading the metrics, scalars on the device, waits for it."""

    def on_log(self, run: RunState, metrics: Mapping[str, float], step: int) -> None:
        """Called when metrics are logged: after every iteration, and by callbacks."""

    def on_evaluating(self, run: RunState) -> None:
        """Called before an evaluation."""

    def on_evaluate(self, run: RunState, result: EvaluationResult) -> None:
        """Called after an evaluation; ``run.progress.curve[-1]`` is its summary."""

    def on_save(self, run: RunState) -> None:
        """Called before a checkpoint is written."""

    def on_saved(self, run: RunState, path: Path) -> None:
        """Called once a checkpoint is on disk."""

    def on_end(self, run: RunState) -> None:
        """Called at the end of the run, also of a failed one; see ``run.summary``."""


class Callbacks:
    """Callbacks by name. A checkpoint stores their states under these names."""

    def __init__(self, named: Mapping[str, Callback]) -> None:
        self.named = dict(named)

    def call(self, run: RunState, event: str, *arguments: Any) -> None:
        """Call the method of an event of every callback, in order, up to the first error."""
        for callback in self.named.values():
            method = getattr(callback, event)
            method(run, *arguments)

    def call_all(self, run: RunState, event: str) -> None:
        """Call the method of an event of every callback, even if one raises an error.

        For the end of a run, at which every callback must release its resources.
        """
        with ExitStack() as stack:
            # An exit stack calls the last one first, and the others even if one raises.
            for callback in reversed(self.named.values()):
                stack.callback(getattr(callback, event), run)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the callbacks that have one."""
        states = {}
        for name, callback in self.named.items():
            if hasattr(callback, "state_dict"):
                states[name] = callback.state_dict()
        return states

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`. A callback that is not in it keeps its state."""
        for name in state.keys() & self.named.keys():
            self.named[name].load_state_dict(state[name])  # type: ignore[attr-defined]


class Tracking(Callback):
    """Records a run with its tracker."""

    def on_begin(self, run: RunState) -> None:
        """Open the tracker's run."""
        folder = str(run.path.resolve())
        tags = {
            "command": command(),
            "axis": run.progress.unit,
            "evaluated_on": run.novelty,
            "mlflow.note.content": f"    {printed_command()}\n\nin `{folder}`",
            FOLDER_TAG: folder,
        }
        # Tags, because the budget of a resumed run may change, and MLflow's parameters cannot.
        for key, value in flatten({"budget": run.config["budget"]}).items():
            tags[key] = str(value)
        started = run.tracker.start(run.path, name=run.name, params=flatten(run.config), tags=tags)
        run.exits.enter_context(started)

    def on_log(self, run: RunState, metrics: Mapping[str, float], step: int) -> None:
        """Record the metrics."""
        run.tracker.log(metrics, step=step)

    def on_evaluate(self, run: RunState, result: EvaluationResult) -> None:
        """Record the summary, and the cost of the run so far."""
        metrics = {}
        for key, value in result.summary().items():
            metrics[f"eval/{key}"] = value
        metrics["cost/env_steps"] = float(run.progress.env_steps)
        metrics["cost/updates"] = float(run.progress.updates)
        for key, value in run.costs.state_dict().items():
            metrics[f"cost/{key}"] = value
        run.tracker.log(metrics, step=run.progress.step)

    def on_save(self, run: RunState) -> None:
        """Write everything recorded to disk: a resumed run records from this checkpoint on."""
        run.tracker.flush()


class EarlyStopping(Callback):
    """Stops a run when its evaluations no longer improve, or are good enough.

    Args:
        metric: Key of an evaluation's summary, as in ``evaluation.json``: ``success_mean``,
            ``return_mean``.
        patience: Evaluations in a row without improvement after which the run stops; None for no
            limit.
        threshold: Value at which the run stops; None for no threshold.
        min_delta: Improvement over the best value that counts.

    Raises:
        ArgumentError: ``patience`` is not positive; or, at the first evaluation, ``metric`` is not
            in its summary.
    """

    @check_bounds
    def __init__(
        self,
        metric: str = "return_mean",
        *,
        patience: PositiveInt | None = 5,
        threshold: float | None = None,
        min_delta: float = 0.0,
    ) -> None:
        self.metric = metric
        self.patience = patience
        self.threshold = threshold
        self.min_delta = min_delta
        self._reset()

    def _reset(self) -> None:
        self.best = float("-inf")
        self.waited = 0

    def on_begin(self, run: RunState) -> None:
        """Reset the state unless the run is resumed: one object may be used for several runs."""
        if not run.resumed:
            self._reset()
        unit = run.progress.unit
        limit = getattr(run.budget, unit)
        interval = run.cfg.evaluation.interval
        if limit is not None and interval is not None and interval >= limit:
            print_stderr(
                f"EarlyStopping cannot stop a run of budget.{unit}={limit:g}, which is first "
                f"evaluated after {interval}: set a smaller evaluation.interval"
            )

    def on_evaluate(self, run: RunState, result: EvaluationResult) -> None:
        """Stop the run if it has reached the threshold, or not improved for long."""
        summary = result.summary()
        require_choice("EarlyStopping", "metric", self.metric, tuple(sorted(summary)))
        value = summary[self.metric]

        is_better = value > self.best + self.min_delta
        self.waited = 0 if is_better else self.waited + 1
        self.best = max(self.best, value)
        if self.threshold is not None and value >= self.threshold:
            run.stop(f"{self.metric} has reached {value:.4g}")
        elif self.patience is not None and self.waited >= self.patience:
            run.stop(f"{self.metric} has not improved in {self.waited} evaluations")

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, and the number of evaluations since."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self.best = state["best"]
        self.waited = state["waited"]
