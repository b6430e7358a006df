"""What is told to others while a run goes on: the tracker, the bar and everybody's own.

A callback of one's own is given to a recipe as an entry of the group ``callbacks``, or in Python::

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

from yamame.checks import require, require_at_least
from yamame.cli.app import command
from yamame.collectors import Episodes
from yamame.evaluation import EvaluationResult
from yamame.files.config import flatten
from yamame.normalization import LARGEST
from yamame.runs.state import RunState
from yamame.system.messages import print_stderr
from yamame.tracking.history import FOLDER_TAG

_LONG_WITHOUT_AN_END = 2000
"""Steps of every environment."""
_MOST_CLIPPED = 0.01
"""Share of targets outside the bounds of binned critics that needs no warning."""


class Callback:
    """Is told what happens in a run, in the run's own thread; what it raises ends the run as a
    failure.

    Override what you need. A callback may read everything of the run, call ``run.log`` and
    ``run.stop``, and register what is to be closed with ``run.exits``. One that draws random
    numbers from torch's global generators, or changes parameters, changes the run. One with
    ``state_dict`` and ``load_state_dict`` (plain data) is saved with every checkpoint and restored
    when the run goes on.
    """

    def on_begin(self, run: RunState) -> None:
        """All parts are built, and restored if the run goes on; nothing was collected yet."""

    def on_collect(self, run: RunState, episodes: Episodes) -> None:
        """The collector has played; ``run.progress`` counts it already."""

    def on_update(self, run: RunState, metrics: Mapping[str, Tensor]) -> None:
        """An update was made. The metrics are scalars on the device: reading them waits for it."""

    def on_log(self, run: RunState, metrics: Mapping[str, float], step: int) -> None:
        """Metrics are there: once after every iteration, and what callbacks log themselves."""

    def on_evaluating(self, run: RunState) -> None:
        """Held-out tasks are about to be played."""

    def on_evaluate(self, run: RunState, result: EvaluationResult) -> None:
        """Held-out tasks were played; ``run.progress.curve[-1]`` is their summary."""

    def on_save(self, run: RunState) -> None:
        """A checkpoint is about to be written."""

    def on_saved(self, run: RunState, path: Path) -> None:
        """A checkpoint is on disk."""

    def on_end(self, run: RunState) -> None:
        """The run is over, however it ended; ``run.summary`` says how."""


class Callbacks:
    """Several, by names under which a checkpoint keeps their states."""

    def __init__(self, named: Mapping[str, Callback]) -> None:
        self.named = dict(named)

    def tell(self, run: RunState, event: str, *happened: Any) -> None:
        """Calls the method ``event`` of each, in the order in which they were given."""
        for callback in self.named.values():
            getattr(callback, event)(run, *happened)

    def tell_all(self, run: RunState, event: str) -> None:
        """As `tell`, but the others are told, too, where one raises; the first error is raised
        then.
        """
        with ExitStack() as stack:
            for callback in reversed(self.named.values()):
                stack.callback(getattr(callback, event), run)

    def state_dict(self) -> dict[str, Any]:
        """The states of those that have one."""
        return {
            name: each.state_dict()
            for name, each in self.named.items()
            if hasattr(each, "state_dict")
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict`; one that was not there stays as it is."""
        for name in state.keys() & self.named.keys():
            self.named[name].load_state_dict(state[name])  # type: ignore[attr-defined]


class Tracking(Callback):
    """Hands the run's own tracker what it records."""

    def on_begin(self, run: RunState) -> None:
        """Opens the tracker's run."""
        budget = {
            key: str(value) for key, value in flatten({"budget": run.config["budget"]}).items()
        }
        description = f"    {command()}\n\nin `{run.path.resolve()}`"
        about = {"mlflow.note.content": description, FOLDER_TAG: str(run.path.resolve())}
        told = {"command": command(), "axis": run.progress.unit, "evaluated_on": run.novelty}
        tags = {**told, **about, **budget}
        started = run.tracker.start(run.path, name=run.name, params=flatten(run.config), tags=tags)
        run.exits.enter_context(started)

    def on_log(self, run: RunState, metrics: Mapping[str, float], step: int) -> None:
        """Records them."""
        run.tracker.log(metrics, step=step)

    def on_evaluate(self, run: RunState, result: EvaluationResult) -> None:
        """Records the summary, and what the run has cost so far."""
        spent = {"env_steps": float(run.progress.env_steps), "updates": float(run.progress.updates)}
        costs = {f"cost/{key}": value for key, value in (spent | run.costs.state_dict()).items()}
        summary = {f"eval/{key}": value for key, value in result.summary().items()}
        run.tracker.log(summary | costs, step=run.progress.step)

    def on_save(self, run: RunState) -> None:
        """Makes what was recorded outlive the machine, for a run that goes on begins behind it."""
        run.tracker.flush()


class RewardWarning(Callback):
    """Tells once that there are rewards of which the learner makes nothing."""

    warned = False

    def on_collect(self, run: RunState, episodes: Episodes) -> None:
        """Looks at the returns."""
        if not self.warned and not (episodes.returns.abs() <= LARGEST).all():
            self.warned = True
            print_stderr(
                f"rewards that are NaN or beyond {LARGEST:g} are not learned from, episodes have such returns"
            )


class EndlessWarning(Callback):
    """Tells once that no episode has ended for long, without which there is nothing to learn
    from.
    """

    steps, warned = 0, False

    def on_collect(self, run: RunState, episodes: Episodes) -> None:
        """Looks whether any has."""
        ended = len(episodes.lengths) > 0 or run.progress.outcome is not None
        self.steps = 0 if ended else self.steps + episodes.num_steps
        num_envs = run.cfg.schedule.get("num_envs") or 1
        if self.steps >= _LONG_WITHOUT_AN_END * num_envs and not self.warned:
            self.warned = True
            print_stderr(
                f"no episode has ended in {self.steps} steps, and only whole ones are learned from: bound them, with "
                "env.time_limit, and evaluations with evaluation.max_steps"
            )


class ClippedTargetsWarning(Callback):
    """Warns once if more than a hundredth of the targets lie outside the bounds of binned
    critics.
    """

    warned = False

    def on_log(self, run: RunState, metrics: Mapping[str, float], step: int) -> None:
        """Checks the share that the loss reports."""
        share = metrics.get("train/clipped_targets", 0.0)
        if share > _MOST_CLIPPED and not self.warned:
            self.warned = True
            returns = run.cfg.agent.returns
            print_stderr(
                f"{share:.0%} of the critics' targets lie outside of agent.returns.min_return="
                f"{returns.get('min_return')} and agent.returns.max_return={returns.get('max_return')} and are "
                "clipped: widen these bounds, or lower agent.loss.reward_multiplier, which rewards are multiplied by"
            )


class EarlyStopping(Callback):
    """Ends a run, in order, when its evaluations get no better, or are good enough.

    Args:
        metric: A key of an evaluation's summary, as in ``evaluation.json``: ``success_mean``,
            ``return_mean``.
        patience: Evaluations in a row that may be no better than the best before; None for any
            number.
        threshold: Value at which the run has reached its aim; None for none.
        min_delta: By how much an evaluation must exceed the best to be better.

    Raises:
        ValueError: ``patience`` is not positive. On the first evaluation, it has no such metric.
    """

    def __init__(
        self,
        metric: str = "return_mean",
        *,
        patience: int | None = 5,
        threshold: float | None = None,
        min_delta: float = 0.0,
    ) -> None:
        require_at_least("EarlyStopping", 1, patience=1 if patience is None else patience)
        self.metric, self.patience, self.threshold, self.min_delta = (
            metric,
            patience,
            threshold,
            min_delta,
        )
        self.best, self.waited = float("-inf"), 0

    def on_begin(self, run: RunState) -> None:
        """Begins anew, unless the run goes on."""
        if not run.resumed:
            self.best, self.waited = float("-inf"), 0

    def on_evaluate(self, run: RunState, result: EvaluationResult) -> None:
        """Stops the run if it is time."""
        summary = result.summary()
        if self.metric not in summary:
            raise ValueError(
                f"EarlyStopping: metric must be one of {', '.join(sorted(summary))}, got {self.metric!r}"
            )
        value = summary[self.metric]
        is_better = value > self.best + self.min_delta
        self.waited = 0 if is_better else self.waited + 1
        self.best = max(self.best, value)
        if self.threshold is not None and value >= self.threshold:
            run.stop(f"{self.metric} has reached {value:.4g}")
        elif self.patience is not None and self.waited >= self.patience:
            run.stop(f"{self.metric} was no better in {self.waited} evaluations")

    def state_dict(self) -> dict[str, Any]:
        """The best value, and for how many evaluations it was the best."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict`."""
        self.best, self.waited = state["best"], state["waited"]


class CostLimit(Callback):
    """Ends a run, in order, when it has taken so much processor time: after the iteration in which
    it does.

    Args:
        cpu_s: User and system seconds of the process and its children, those before a resume
            included.

    Raises:
        ValueError: ``cpu_s`` is not positive.
    """

    def __init__(self, cpu_s: float = 600.0) -> None:
        require("CostLimit", "cpu_s", cpu_s, cpu_s > 0, "be positive")
        self.cpu_s = cpu_s

    def on_log(self, run: RunState, metrics: Mapping[str, float], step: int) -> None:
        """Stops the run if it is time."""
        if (spent := run.costs.cpu_s) >= self.cpu_s:
            run.stop(f"{spent:.0f} CPU-seconds are spent")
