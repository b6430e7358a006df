"""How far a run is: what its schedule and its report count."""

import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

_RECENT = 100


class Progress:
    """Counters of a run, saved and restored as one.

    Attributes:
        env_steps: Environment steps, over all rows.
        updates: Gradient updates.
        evaluated_at: ``env_steps`` at the last evaluation.
        saved_at: ``env_steps`` at the last checkpoint.
        aborted: Episodes that were dropped because the environment failed.
        curve: One mapping per evaluation, of ``env_steps`` and the summary.

    >>> progress = Progress()
    >>> progress.outcome is None
    True
    >>> progress.add_outcomes([0.0, 1.0])
    >>> progress.outcome
    0.5
    """

    def __init__(self) -> None:
        self.env_steps = 0
        self.updates = 0
        self.evaluated_at = 0
        self.saved_at = 0
        self.aborted = 0
        self.outcomes: deque[float] = deque(maxlen=_RECENT)
        self.curve: list[dict[str, float]] = []

    def add_outcomes(self, outcomes: Iterable[float]) -> None:
        """Adds the success or return of episodes that ended."""
        self.outcomes.extend(outcomes)

    @property
    def outcome(self) -> float | None:
        """Mean outcome of the latest training episodes; None before the first."""
        return statistics.fmean(self.outcomes) if self.outcomes else None

    def state_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**vars(self), "outcomes": list(self.outcomes), "curve": [dict(p) for p in self.curve]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict`."""
        vars(self).update(state, outcomes=deque(state["outcomes"], maxlen=_RECENT))
