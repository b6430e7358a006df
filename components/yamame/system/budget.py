"""How long a run may take: environment steps, updates or minutes, whichever ends first."""

import time
from collections.abc import Callable

from yamame.checks import require


class Budget:
    """Limits of a run. Time accumulates over resumes through ``state_dict`` and
    ``load_state_dict``.

    Args:
        env_steps: Largest number of environment steps, or None for no limit.
        updates: Largest number of updates, or None.
        minutes: Largest wall-clock time in minutes, or None.
        clock: Returns seconds; only differences matter.

    Raises:
        ValueError: No limit is given, or one is not positive.

    >>> budget = Budget(env_steps=100, updates=10)
    >>> budget.ended(env_steps=50, updates=9), budget.ended(env_steps=50, updates=10)
    (None, 'updates')
    """

    def __init__(
        self,
        *,
        env_steps: float | None = None,
        updates: float | None = None,
        minutes: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        limits = {"env_steps": env_steps, "updates": updates, "minutes": minutes}
        for name, limit in limits.items():
            holds = limit is None or (not isinstance(limit, str | bool) and limit > 0)
            require("Budget", name, limit, holds, "be a number greater than 0 or null")
        is_limited = any(limit is not None for limit in limits.values())
        condition = "be given, or updates or minutes"
        require("Budget", "env_steps", None, is_limited, condition)
        self.env_steps, self.updates, self.minutes = env_steps, updates, minutes
        self._limits = {name: float(limit) for name, limit in limits.items() if limit is not None}
        self._clock = clock
        self._start = clock()
        self._earlier_s = 0.0

    def start(self) -> None:
        """Time counts from now on: what was built before is not the run's."""
        self._start = self._clock()

    @property
    def elapsed_s(self) -> float:
        """Wall-clock seconds of this run, those before a resume included."""
        return self._earlier_s + self._clock() - self._start

    def _spent(self, env_steps: int, updates: int) -> dict[str, float]:
        return {"env_steps": env_steps, "updates": updates, "minutes": self.elapsed_s / 60}

    @property
    def time_spent(self) -> float:
        """The spent share of the minutes, at most 1; 0 where they are not limited."""
        return 0.0 if self.minutes is None else min(1.0, self.elapsed_s / 60 / self.minutes)

    def fraction(self, *, env_steps: int, updates: int) -> float:
        """The spent fraction of the limit that is nearest, at most 1."""
        spent = self._spent(env_steps, updates)
        return min(1.0, max(spent[name] / limit for name, limit in self._limits.items()))

    def ended(self, *, env_steps: int, updates: int) -> str | None:
        """The name of a limit that is reached, or None."""
        spent = self._spent(env_steps, updates)
        return next((name for name, limit in self._limits.items() if spent[name] >= limit), None)

    def remaining_s(
        self, *, env_steps: int, updates: int, env_steps_per_s: float, updates_per_s: float
    ) -> float | None:
        """Seconds until the first limit at these speeds; None when no limit has a known end."""
        spent = self._spent(env_steps, updates)
        speeds = {"env_steps": env_steps_per_s, "updates": updates_per_s, "minutes": 1 / 60}
        limits = {name: limit for name, limit in self._limits.items() if speeds[name] > 0}
        ends = [(limit - spent[name]) / speeds[name] for name, limit in limits.items()]
        return max(0.0, min(ends)) if ends else None

    def state_dict(self) -> dict[str, float]:
        """The seconds spent so far. The limits themselves are configuration and may change on
        resume.
        """
        return {"elapsed_s": self.elapsed_s}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continues from the seconds spent before."""
        self._earlier_s = state["elapsed_s"]
        self.start()
