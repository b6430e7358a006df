"""Budget of a run: steps, updates, minutes or CPU-seconds, whichever ends first."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from yamame.checks import require

_HAS_LIMIT = "be given, or updates, minutes or cpu_s"


class Budget:
    """Limits of a run.

    Time accumulates over resumes through ``state_dict`` and ``load_state_dict``. Minutes count from
    the first `start`. CPU-seconds count from the beginning of the process, but those before the
    first `start` are part of no share, so that every schedule begins at 0. Neither counts within
    `paused`.

    Args:
        env_steps: Largest number of environment steps, or None for no limit.
        updates: Largest number of updates, or None.
        minutes: Largest wall-clock time in minutes, or None.
        cpu_s: Largest number of CPU-seconds, or None.
        clock: Returns seconds; only differences matter.
        cpu_clock: Returns the CPU-seconds of the run, those of former sessions included.

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
        cpu_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ):
        limits = {"env_steps": env_steps, "updates": updates, "minutes": minutes, "cpu_s": cpu_s}
        for name, limit in limits.items():
            # A bool is a number to Python, but ``minutes=true`` is a mistake.
            holds = limit is None or (not isinstance(limit, str | bool) and 0 < limit < math.inf)
            require("Budget", name, limit, holds, "be a finite number greater than 0 or null")
        is_limited = any(limit is not None for limit in limits.values())
        require("Budget", "env_steps", None, is_limited, _HAS_LIMIT)
        self.env_steps = env_steps
        self.updates = updates
        self.minutes = minutes
        self.cpu_s = cpu_s
        self._limits = {name: float(limit) for name, limit in limits.items() if limit is not None}
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._start = clock()
        self._earlier_s = 0.0
        # CPU-seconds at the first start of the run; None before it.
        self._building_cpu_s: float | None = None
        self._cpu_at_start = 0.0
        self._paused_cpu_s = 0.0

    def start(self) -> None:
        """Count minutes from now on, without what was built before."""
        self._start = self._clock()
        if self.cpu_s is None:
            return
        self._cpu_at_start = self._cpu_s()
        if self._building_cpu_s is None:
            self._building_cpu_s = self._cpu_at_start

    def _cpu_s(self) -> float:
        """Return the CPU-seconds that count."""
        return self._cpu_clock() - self._paused_cpu_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count neither minutes nor CPU-seconds within the block."""
        began = self._clock()
        cpu_began = self._cpu_clock()
        try:
            yield
        finally:
            self._start += self._clock() - began
            self._paused_cpu_s += self._cpu_clock() - cpu_began

    @property
    def building_cpu_s(self) -> float:
        """CPU-seconds before the first `start`; 0 without a limit of CPU-seconds."""
        return self._building_cpu_s or 0.0

    @property
    def is_timed(self) -> bool:
        """True if a clock may end the run, which then cannot be reproduced exactly."""
        return self.minutes is not None or self.cpu_s is not None

    @property
    def has_only_time(self) -> bool:
        """True if neither steps nor updates are limited."""
        return not {"env_steps", "updates"} & self._limits.keys()

    @property
    def elapsed_s(self) -> float:
        """Wall-clock seconds of this run, former sessions included."""
        return self._earlier_s + self.session_s

    @property
    def session_s(self) -> float:
        """Wall-clock seconds since the last `start`."""
        return self._clock() - self._start

    def _spent(self, env_steps: float, updates: float) -> dict[str, float]:
        """Return the spent amount by the name of the limit."""
        cpu_s = 0.0 if self.cpu_s is None else self._cpu_s()
        return {
            "env_steps": env_steps,
            "updates": updates,
            "minutes": self.elapsed_s / 60,
            "cpu_s": cpu_s,
        }

    @property
    def time_spent(self) -> float:
        """Spent share of the minutes, at most 1; 0 if they are not limited."""
        if self.minutes is None:
            return 0.0
        return min(1.0, self.elapsed_s / 60 / self.minutes)

    def fraction(self, *, env_steps: float, updates: float) -> float:
        """Return the spent share of the limit that is nearest, in [0, 1]."""
        spent = self._spent(env_steps, updates)
        shares = []
        for name, limit in self._limits.items():
            unavoidable = 0.0
            if name == "cpu_s":
                # Before the start, all that is spent is unavoidable.
                building = self._building_cpu_s
                unavoidable = spent[name] if building is None else building
            if limit <= unavoidable:
                return 1.0
            shares.append((spent[name] - unavoidable) / (limit - unavoidable))
        return min(1.0, max(0.0, *shares))

    def ended(self, *, env_steps: int, updates: int) -> str | None:
        """Return the name of a limit that is reached, or None."""
        spent = self._spent(env_steps, updates)
        for name, limit in self._limits.items():
            if spent[name] >= limit:
                return name
        return None

    def left(self, *, env_steps: int, updates: int) -> dict[str, float]:
        """Return the amount that is left of each limit; negative if more was spent.

        >>> Budget(updates=10).left(env_steps=50, updates=12)
        {'updates': -2.0}
        """
        spent = self._spent(env_steps, updates)
        return {name: limit - spent[name] for name, limit in self._limits.items()}

    def remaining_s(
        self, *, env_steps: int, updates: int, env_steps_per_s: float, updates_per_s: float
    ) -> float | None:
        """Return the seconds until the first limit is reached, at these speeds.

        Returns:
            Seconds; None if no limited quantity has a speed.
        """
        spent = self._spent(env_steps, updates)
        session_s = self.session_s
        cpu_per_s = (spent["cpu_s"] - self._cpu_at_start) / session_s if session_s > 0 else 0.0
        speeds = {
            "env_steps": env_steps_per_s,
            "updates": updates_per_s,
            "minutes": 1 / 60,
            "cpu_s": cpu_per_s,
        }
        seconds = []
        for name, limit in self._limits.items():
            # Nothing has been done yet: the limit has no known end.
            if speeds[name] > 0:
                seconds.append((limit - spent[name]) / speeds[name])
        if not seconds:
            return None
        return max(0.0, min(seconds))

    def state_dict(self) -> dict[str, float]:
        """Return the seconds spent so far, and CPU-seconds before the first step and in pauses."""
        # The limits are configuration and may change on resume.
        return {
            "elapsed_s": self.elapsed_s,
            "building_cpu_s": self._building_cpu_s or 0.0,
            "paused_cpu_s": self._paused_cpu_s,
        }

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue from the seconds of former sessions."""
        self._earlier_s = state["elapsed_s"]
        self._building_cpu_s = state.get("building_cpu_s", 0.0)
        self._paused_cpu_s = state.get("paused_cpu_s", 0.0)
        self.start()
