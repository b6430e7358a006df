"""Budget of a run: environment steps, updates or minutes, whichever ends first."""

import time
from collections.abc import Callable

from yamame.checks import require


class Budget:
    """Limits of a run.

    Time accumulates over resumes through ``state_dict`` and ``load_state_dict``.

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
            # A bool is a number to Python, but ``minutes=true`` is a mistake.
            holds = limit is None or (not isinstance(limit, str | bool) and limit > 0)
            require("Budget", name, limit, holds, "be a number greater than 0 or null")
        is_limited = any(limit is not None for limit in limits.values())
        require("Budget", "env_steps", None, is_limited, "be given, or updates or minutes")
        self.env_steps = env_steps
        self.updates = updates
        self.minutes = minutes
        self._limits = {name: float(limit) for name, limit in limits.items() if limit is not None}
        self._clock = clock
        self._start = clock()
        self._earlier_s = 0.0

    def start(self) -> None:
        """Count time from now on, without what was built before."""
        self._start = self._clock()

    @property
    def elapsed_s(self) -> float:
        """Wall-clock seconds of this run, former sessions included."""
        return self._earlier_s + self._clock() - self._start

    def _spent(self, env_steps: int, updates: int) -> dict[str, float]:
        """Return the spent amount by the name of the limit."""
        return {"env_steps": env_steps, "updates": updates, "minutes": self.elapsed_s / 60}

    @property
    def time_spent(self) -> float:
        """Spent share of the minutes, at most 1; 0 if they are not limited."""
        if self.minutes is None:
            return 0.0
        return min(1.0, self.elapsed_s / 60 / self.minutes)

    def fraction(self, *, env_steps: int, updates: int) -> float:
        """Return the spent share of the limit that is nearest, at most 1."""
        spent = self._spent(env_steps, updates)
        return min(1.0, max(spent[name] / limit for name, limit in self._limits.items()))

    def ended(self, *, env_steps: int, updates: int) -> str | None:
        """Return the name of a limit that is reached, or None."""
        spent = self._spent(env_steps, updates)
        for name, limit in self._limits.items():
            if spent[name] >= limit:
                return name
        return None

    def remaining_s(
        self, *, env_steps: int, updates: int, env_steps_per_s: float, updates_per_s: float
    ) -> float | None:
        """Return the seconds until the first limit is reached, at these speeds.

        Returns:
            Seconds; None if no limited quantity has a speed.
        """
        spent = self._spent(env_steps, updates)
        speeds = {"env_steps": env_steps_per_s, "updates": updates_per_s, "minutes": 1 / 60}
        seconds = []
        for name, limit in self._limits.items():
            # Nothing has been done yet: the limit has no known end.
            if speeds[name] > 0:
                seconds.append((limit - spent[name]) / speeds[name])
        if not seconds:
            return None
        return max(0.0, min(seconds))

    def state_dict(self) -> dict[str, float]:
        """Return the seconds spent so far."""
        # The limits are configuration and may change on resume.
        return {"elapsed_s": self.elapsed_s}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from the seconds of former sessions."""
        self._earlier_s = state["elapsed_s"]
        self.start()
