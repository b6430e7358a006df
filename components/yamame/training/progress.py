"""How far a run is: what its schedule and its report count."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

RECENT = 100
"""Training episodes whose mean outcome is told."""


class Progress:
    """Counters of a run, saved and restored as one.

    Args:
        unit: The counter by which intervals, metrics and checkpoints of the run go.

    Attributes:
        env_steps: Environment steps, over all environments.
        updates: Gradient updates that were made; one that was refused is none.
        unlogged: What the updates wrote since metrics were logged last.
        evaluating: Whether an evaluation was due that has not ended.
        evaluated_at: `step` of the last evaluation.
        saved_at: `step` of the last checkpoint.
        aborted: Episodes that were dropped because the environment failed.
        outcomes: Success or return of the latest training episodes.
        outcome_is: Which of the two they are.
        curve: One mapping per evaluation, of `step` under the name of its unit and of the summary.
        stopped: Why the run was ended before its budget was; None if it was not.
        callbacks: The state of those that have one, by name.

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
        self.saved_at = 0
        self.aborted = 0
        self.outcomes: deque[float] = deque(maxlen=RECENT)
        self.outcome_is = "success"
        self.curve: list[dict[str, float]] = []
        self.stopped: str | None = None
        self.callbacks: dict[str, Any] = {}

    @property
    def step(self) -> int:
        """How far the run is, in its unit."""
        return self.updates if self.unit == "updates" else self.env_steps

    @property
    def outcome(self) -> float | None:
        """Mean outcome of the latest training episodes; None before the first."""
        return sum(self.outcomes) / len(self.outcomes) if self.outcomes else None

    def count(self, episodes: Any) -> None:
        """Adds what a collector has played, as `yamame.collectors.Episodes`."""
        self.env_steps += episodes.num_steps
        self.aborted += episodes.num_aborted
        outcomes = episodes.returns if episodes.success is None else episodes.success.float()
        self.outcome_is = "return" if episodes.success is None else "success"
        self.outcomes.extend(outcomes.tolist())

    def take_means(self) -> dict[str, float]:
        """The mean of every metric over the updates since this was asked last."""
        made, self.unlogged = self.unlogged, []
        if not made:
            return {}
        # One transfer for all of them, and then a row for each: a mean of a column would add in
        # another order.
        rows = [torch.stack([_scalar(m[key]) for key in made[0]]) for m in made]
        device = rows[-1].device  # those of a checkpoint are on the CPU
        numbers = torch.stack([row.to(device) for row in rows]).cpu()
        return dict(
            zip(made[0], (float(row.mean()) for row in numbers.T.contiguous()), strict=True)
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the counters as plain data."""
        # The keys are part of the format of checkpoints, whatever the attributes are called.
        return {
            "unit": self.unit,
            "env_steps": self.env_steps,
            "updates": self.updates,
            "unlogged": [dict(metrics) for metrics in self.unlogged],
            "evaluating": self.evaluating,
            "evaluated_at": self.evaluated_at,
            "saved_at": self.saved_at,
            "aborted": self.aborted,
            "outcomes": list(self.outcomes),
            "outcome_is": self.outcome_is,
            "curve": [dict(point) for point in self.curve],
            "stopped": self.stopped,
            "callbacks": self.callbacks,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`; keys that an earlier version did not have keep their values."""
        for name in self.state_dict().keys() & state.keys():
            setattr(self, name, state[name])
        self.outcomes = deque(state["outcomes"], maxlen=RECENT)


def _scalar(metric: Tensor) -> Tensor:
    """The metric, or its mean where it has dimensions."""
    return metric if metric.ndim == 0 else metric.mean()
