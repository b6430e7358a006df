"""Choice of the points of a metric that MLflow stores."""

from collections.abc import Mapping

_NEVER_THINNED = ("eval/", "cost/")
_INTERVALS_PER_DOUBLING = 256


def interval_of(step: int) -> int:
    """Return the number of the interval that a step lies in. Intervals grow with the step.

    Up to 512 every step is an interval; then 256 intervals share every doubling: 5,000 up to 10^8.

    >>> [interval_of(step) for step in (-1, 0, 511, 512, 513, 514, 1024, 10**8)]
    [-1, 0, 511, 512, 512, 513, 768, 4989]
    """
    # Of larger steps the leading nine bits are kept.
    shift = max(0, step.bit_length() - _INTERVALS_PER_DOUBLING.bit_length())
    return shift * _INTERVALS_PER_DOUBLING + (step >> shift)


class Thinning:
    """Stores all points of evaluations and costs, and of other metrics the first per interval.

    The choice depends on steps alone, so a run that continues from a checkpoint stores the same
    points. No step is stored twice.

    Args:
        last_steps: Last stored step of each metric.
    """

    def __init__(self, last_steps: Mapping[str, int] | None = None) -> None:
        self._last_steps = dict(last_steps or {})

    def accept(self, name: str, step: int) -> bool:
        """Return whether a point is stored; it then is the last one of its metric."""
        last = self._last_steps.get(name, -1)  # before step 0
        # They are few, and tables and curves of results are made from them.
        if name.startswith(_NEVER_THINNED):
            accepted = step > last
        else:
            accepted = interval_of(step) > interval_of(last)

        if accepted:
            self._last_steps[name] = step
        return accepted
