"""Throughput of actors and learner, and the time that the learner waits."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_MOST_SINGLE = 16
"""Largest number of actors for which each has a metric of its own."""


@dataclass(frozen=True)
class _Block:
    """A block of steps that the learner has taken."""

    time: float
    actor: int
    num_steps: int
    weights_age: int


class Throughput:
    """Counts the blocks of steps that a `RayCollector` receives, and the time that it waits.

    Args:
        num_actors: Number of actors.
        window_s: Seconds over which speeds and the age of weights are measured.
        clock: Returns seconds; only differences matter.

    >>> seconds = iter([0.0, 2.0, 2.0, 10.0])
    >>> throughput = Throughput(2, clock=lambda: next(seconds))
    >>> throughput.add_block(0, num_steps=80, weights_age=1)
    >>> throughput.add_block(1, num_steps=20, weights_age=3)
    >>> throughput.add_waiting(0.5)
    >>> throughput.add_collecting(1.0)
    >>> for name, value in throughput.metrics().items():
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
        self._num_actors = num_actors
        self._window_s = window_s
        self._clock = clock
        self._start = clock()
        self._blocks: deque[_Block] = deque()
        self._total_waiting_s = 0.0
        # Since `metrics` was called last:
        self._read_at = self._start
        self._waiting_s = 0.0
        self._collecting_s = 0.0

    def add_block(self, actor: int, num_steps: int, weights_age: int) -> None:
        """Count a block that was taken.

        Args:
            actor: Actor that played it.
            num_steps: Environment steps in it.
            weights_age: Number of times that weights have been replaced since it was requested.
        """
        self._blocks.append(_Block(self._clock(), actor, num_steps, weights_age))

    def add_waiting(self, seconds: float) -> None:
        """Count time in which the learner waited for a block."""
        self._total_waiting_s += seconds
        self._waiting_s += seconds

    def add_collecting(self, seconds: float) -> None:
        """Count the time of a call of `collect`, waiting included."""
        self._collecting_s += seconds

    def metrics(self) -> dict[str, float]:
        """Return figures of the last ``window_s`` seconds, and of the time since the last call.

        ``steps_per_s``: of all actors; of the slowest; of the fastest; of each, if there are at
        most 16. ``weights_age``: number of times that weights were replaced between the request of
        a block and its arrival; the 10th, 50th and 90th percentile over blocks, and the largest.
        ``waited_s``: seconds that the learner has waited for blocks since the beginning.
        ``waiting_share``: share of waiting in the time. ``learning_share``: share of the time
        outside of `collect`.
        """
        now = self._clock()
        while self._blocks and self._blocks[0].time < now - self._window_s:
            self._blocks.popleft()
        # At first the window is not full. The smallest value avoids a division by zero.
        window_s = max(min(self._window_s, now - self._start), 1e-9)
        elapsed_s = max(now - self._read_at, 1e-9)

        steps = [0] * self._num_actors
        for block in self._blocks:
            steps[block.actor] += block.num_steps
        figures = {
            "steps_per_s": sum(steps) / window_s,
            "steps_per_s_of_slowest": min(steps) / window_s,
            "steps_per_s_of_fastest": max(steps) / window_s,
        }
        if self._num_actors <= _MOST_SINGLE:
            for actor, num_steps in enumerate(steps):
                figures[f"steps_per_s/actor_{actor}"] = num_steps / window_s

        ages = [block.weights_age for block in self._blocks] or [0]
        p10, p50, p90 = np.quantile(ages, (0.1, 0.5, 0.9))
        figures["weights_age_p10"] = float(p10)
        figures["weights_age_p50"] = float(p50)
        figures["weights_age_p90"] = float(p90)
        figures["weights_age_max"] = float(max(ages))

        figures["waited_s"] = self._total_waiting_s
        figures["waiting_share"] = self._waiting_s / elapsed_s
        figures["learning_share"] = 1.0 - self._collecting_s / elapsed_s
        self._read_at = now
        self._waiting_s = 0.0
        self._collecting_s = 0.0
        return figures
