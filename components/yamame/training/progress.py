"""Progress of a run: the counters of its schedule and its report."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

RECENT = 100
"""Number of latest training episodes in the mean outcome."""


class Progress:
    """Counters of a run, saved and restored as one.

    Args:
        unit: Counter that intervals, metrics and checkpoints of the run refer to.

    Attributes:
        env_steps: Environment steps, over all environments.
        updates: Gradient updates that were made; skipped ones do not count.
        unlogged: Metrics of the updates since metrics were last logged.
        evaluating: An evaluation has begun and not ended.
        evaluated_at: `step` of the last evaluation.
        evaluated_share: Spent share of the budget at the last evaluation.
        evaluation_steps: Environment steps that the last evaluation took; None before the first.
        evaluation_share: Share of the budget that it took.
        saved_at: `step` of the last checkpoint.
        saved_share: Spent share of the budget at the last checkpoint.
        episodes: Episodes of training that have ended, without those that were dropped.
        episode_steps: Steps of these episodes.
        learning_began: ``env_steps`` from which updates are counted; None before learning begins.
        updates_allowed: Updates that the steps since then allow, if their number is regulated.
        observed_updates: ``updates`` when overfitting was last observed.
        observed_steps: ``env_steps`` when overfitting was last observed.
        unobserved: Printed reason why overfitting was not observed: ``few`` episodes have ended, or
            the replay buffer is ``full``; empty if none was printed.
        aborted: Episodes that were dropped because the environment failed.
        outcomes: Success or return of the latest training episodes.
        outcome_name: Name of the outcome, ``success`` or ``return``.
        curve: One mapping per evaluation, of `step` under the name of its unit and of the summary.
        stopped: Reason why the run was ended before its budget was; None if it was not.
        callbacks: States of callbacks that have one, by name.

    >>> progress = Progress("updates")
    >>> progress.env_steps, progress.updates = 512, 20
    >>> progress.step
    20
    >>> progress.outcomes.extend([0.0, 1.0])
    >>> progress.outcome
    0.5
    """

    def __init__(self, unit: Literal["env_steps", "updates"] = "env_steps") -> None:
        self.unit = unit
        self.env_steps = 0
        self.updates = 0
        self.unlogged: list[dict[str, Tensor]] = []
        self.evaluating = False
        self.evaluated_at = 0
        self.evaluated_share = 0.0
        self.evaluation_steps: int | None = None
        self.evaluation_share = 0.0
        self.saved_at = 0
        self.saved_share = 0.0
        self.episodes = 0
        self.episode_steps = 0
        self.learning_began: int | None = None
        self.updates_allowed = 0.0
        self.observed_updates = 0
        self.observed_steps = 0
        self.unobserved = ""
        self.aborted = 0
        self.outcomes: deque[float] = deque(maxlen=RECENT)
        self.outcome_name = "success"
        self.curve: list[dict[str, float]] = []
        self.stopped: str | None = None
        self.callbacks: dict[str, Any] = {}

    @property
    def step(self) -> int:
        """Value of the counter of the unit."""
        return self.updates if self.unit == "updates" else self.env_steps

    @property
    def outcome(self) -> float | None:
        """Mean outcome of the latest training episodes; None before the first."""
        if not self.outcomes:
            return None
        return sum(self.outcomes) / len(self.outcomes)

    @property
    def outcome_is(self) -> str:
        """Former name of `outcome_name`, removed in the next version."""
        return self.outcome_name

    def count(self, episodes: Any) -> None:
        """Add the steps and outcomes of `yamame.collectors.Episodes`."""
        self.env_steps += episodes.num_steps
        self.episodes += len(episodes.lengths)
        self.episode_steps += int(episodes.lengths.sum())
        self.aborted += episodes.num_aborted
        if episodes.success is None:
            self.outcome_name = "return"
            self.outcomes.extend(episodes.returns.tolist())
        else:
            self.outcome_name = "success"
            self.outcomes.extend(episodes.success.float().tolist())

    def take_means(self) -> dict[str, float]:
        """Return the mean of every metric over the updates since the last call."""
        updates = self.unlogged
        self.unlogged = []
        if not updates:
            return {}
        names = list(updates[0])
        rows = []
        for metrics in updates:
            rows.append(torch.stack([_scalar(metrics[name]) for name in names]))
        # Metrics that were restored from a checkpoint are on the CPU, others on the device.
        device = rows[-1].device
        # One transfer for all of them.
        table = torch.stack([row.to(device) for row in rows]).cpu()
        means = {}
        # A row for each metric: the mean of a column would add in another order.
        for name, values in zip(names, table.T.contiguous(), strict=True):
            means[name] = float(values.mean())
        return means

    def state_dict(self) -> dict[str, Any]:
        """Return all counters as plain data."""
        # The names are keys of checkpoints: an attribute that is renamed keeps its key.
        return {
            "unit": self.unit,
            "env_steps": self.env_steps,
            "updates": self.updates,
            # Copies, because a state may be kept while the run continues.
            "unlogged": [dict(metrics) for metrics in self.unlogged],
            "evaluating": self.evaluating,
            "evaluated_at": self.evaluated_at,
            "evaluated_share": self.evaluated_share,
            "evaluation_steps": self.evaluation_steps,
            "evaluation_share": self.evaluation_share,
            "saved_at": self.saved_at,
            "saved_share": self.saved_share,
            "episodes": self.episodes,
            "episode_steps": self.episode_steps,
            "learning_began": self.learning_began,
            "updates_allowed": self.updates_allowed,
            "observed_updates": self.observed_updates,
            "observed_steps": self.observed_steps,
            "unobserved": self.unobserved,
            "aborted": self.aborted,
            "outcomes": list(self.outcomes),
            "outcome_is": self.outcome_name,
            "curve": [dict(summary) for summary in self.curve],
            "stopped": self.stopped,
            "callbacks": self.callbacks,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`. Counters that it lacks stay as they are."""
        # Missing keys are counters that are newer than the checkpoint.
        self.unit = state.get("unit", self.unit)
        self.env_steps = state.get("env_steps", self.env_steps)
        self.updates = state.get("updates", self.updates)
        self.unlogged = state.get("unlogged", self.unlogged)
        self.evaluating = state.get("evaluating", self.evaluating)
        self.evaluated_at = state.get("evaluated_at", self.evaluated_at)
        self.evaluated_share = state.get("evaluated_share", self.evaluated_share)
        self.evaluation_steps = state.get("evaluation_steps", self.evaluation_steps)
        self.evaluation_share = state.get("evaluation_share", self.evaluation_share)
        self.saved_at = state.get("saved_at", self.saved_at)
        self.saved_share = state.get("saved_share", self.saved_share)
        self.episodes = state.get("episodes", self.episodes)
        self.episode_steps = state.get("episode_steps", self.episode_steps)
        self.learning_began = state.get("learning_began", self.learning_began)
        self.updates_allowed = state.get("updates_allowed", self.updates_allowed)
        self.observed_updates = state.get("observed_updates", self.observed_updates)
        self.observed_steps = state.get("observed_steps", self.observed_steps)
        self.unobserved = state.get("unobserved", self.unobserved)
        self.aborted = state.get("aborted", self.aborted)
        self.outcomes = deque(state["outcomes"], maxlen=RECENT)
        self.outcome_name = state.get("outcome_is", self.outcome_name)
        self.curve = state.get("curve", self.curve)
        self.stopped = state.get("stopped", self.stopped)
        self.callbacks = state.get("callbacks", self.callbacks)


def _scalar(metric: Tensor) -> Tensor:
    """Return a metric, or its mean if it has dimensions."""
    return metric if metric.ndim == 0 else metric.mean()
