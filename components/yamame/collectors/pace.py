"""How fast actors and the learner are, and who waits for whom."""

import time
from collections import deque
from collections.abc import Callable

import numpy as np

_FEW = 16
"""Actors at most that get a figure each."""


class Pace:
    """What a `RayCollector` notes of its answers.

    Args:
        num_actors: Their number.
        window_s: Seconds over which speeds and the age of weights are taken.
        clock: Returns seconds; only differences matter.

    >>> seconds = iter([0.0, 2.0, 2.0, 10.0])
    >>> pace = Pace(2, clock=lambda: next(seconds))
    >>> pace.answered(0, num_steps=80, age=1)
    >>> pace.answered(1, num_steps=20, age=3)
    >>> pace.waited(0.5)
    >>> pace.collected(1.0)
    >>> for name, value in pace.metrics().items():
    ...     print(name, value)
    steps_per_s 10.0
    steps_per_s_of_slowest 2.0
    steps_per_s_of_fastest 8.0
    steps_per_s/actor_0 8.0
    steps_per_s/actor_1 2.0
    weights_age_p10 1.2
    weights_age_p50 2.0
    weights_age_p90 2.8
    weights_age_max 3.0
    waited_s 0.5
    waiting_share 0.05
    learning_share 0.9
    """

    def __init__(
        self,
        num_actors: int,
        *,
        window_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_actors, self._window_s, self._clock = num_actors, window_s, clock
        self._begun = self._read = clock()
        self._answers: deque[tuple[float, int, int, int]] = (
            deque()
        )  # when, actor, steps, age of the weights
        self._waited_s = 0.0  # since the beginning
        self._waited = self._collected = 0.0  # since metrics were read

    def answered(self, actor: int, num_steps: int, age: int) -> None:
        """An answer was taken; its weights have been replaced ``age`` times since."""
        self._answers.append((self._clock(), actor, num_steps, age))

    def waited(self, seconds: float) -> None:
        """The learner had nothing to take for so long."""
        self._waited_s += seconds
        self._waited += seconds

    def collected(self, seconds: float) -> None:
        """A call of `collect` took so long, waiting included."""
        self._collected += seconds

    def metrics(self) -> dict[str, float]:
        """Figures of the last ``window_s`` seconds, and of the time since they were read last.

        ``steps_per_s``: of all actors; of the slowest; of the fastest; of each, where there are at
        most 16. ``weights_age``: how often weights were replaced between the question and the
        taking of its answer; the 10th, 50th and 90th percentile over answers, and the most.
        ``waited_s``: seconds that the learner waited for answers since the beginning;
        ``waiting_share``: their share of the time; ``learning_share``: that spent outside of
        `collect`.
        """
        now = self._clock()
        while self._answers and self._answers[0][0] < now - self._window_s:
            self._answers.popleft()
        seconds = max(min(self._window_s, now - self._begun), 1e-9)
        steps = [0] * self._num_actors
        for _, actor, num_steps, _ in self._answers:
            steps[actor] += num_steps
        ages = [age for *_, age in self._answers] or [0]
        p10, p50, p90 = np.quantile(ages, (0.1, 0.5, 0.9))
        each = enumerate(steps if self._num_actors <= _FEW else [])
        elapsed = max(now - self._read, 1e-9)
        figures = {
            "steps_per_s": sum(steps) / seconds,
            "steps_per_s_of_slowest": min(steps) / seconds,
            "steps_per_s_of_fastest": max(steps) / seconds,
            **{f"steps_per_s/actor_{actor}": taken / seconds for actor, taken in each},
            "weights_age_p10": float(p10),
            "weights_age_p50": float(p50),
            "weights_age_p90": float(p90),
            "weights_age_max": float(max(ages)),
            "waited_s": self._waited_s,
            "waiting_share": self._waited / elapsed,
            "learning_share": 1.0 - self._collected / elapsed,
        }
        self._read, self._waited, self._collected = now, 0.0, 0.0
        return figures
