"""What an experiment should reach: the node ``expected`` of a configuration, checked before a run
begins.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from yamame.checks import UsageError

_FIELDS = ("metric", "interval", "source", "cost")


@dataclass(frozen=True)
class Expected:
    """The interval that a metric of the last evaluation should lie in.

    Attributes:
        metric: Name of a metric of an evaluation, without ``eval/``.
        interval: Both ends, which belong to it; an infinite end bounds nothing.
        source: Where the interval comes from.
        cost: What the run costs, in words.

    >>> Expected.from_config({"metric": "return_mean", "interval": [20, None]}).interval
    (20.0, inf)
    """

    metric: str
    interval: tuple[float, float]
    source: str = ""
    cost: str = ""

    @classmethod
    def from_config(cls, node: Mapping[str, Any] | None) -> Self | None:
        """Reads the node; None where an experiment promises nothing.

        Args:
            node: ``metric`` and ``interval`` (two numbers, null for an open end), ``source`` and
                ``cost`` by choice.

        Raises:
            UsageError: Names the key and the value.
        """
        if node is None:
            return None
        if not isinstance(node, Mapping):
            raise UsageError(f"expected: must be null or have {', '.join(_FIELDS)}, got {node!r}")
        for name in node.keys() - set(_FIELDS):
            raise UsageError(f"expected.{name}: expected has {', '.join(_FIELDS)}, not {name!r}")
        metric = node.get("metric")
        if not isinstance(metric, str) or not metric or metric.startswith("eval/"):
            raise UsageError(f"expected.metric: must name a metric without eval/, got {metric!r}")
        texts = {name: node.get(name) or "" for name in ("source", "cost")}
        for name, text in texts.items():
            if not isinstance(text, str):
                raise UsageError(f"expected.{name}: must be text, got {text!r}")
        return cls(metric, _interval(node.get("interval")), **texts)

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self | None:
        """Reads the node back from the flat parameters of a run; None where it is absent or
        malformed.
        """
        texts = {name: params.get(f"expected.{name}", "None") for name in _FIELDS}
        node: dict[str, Any] = {name: text for name, text in texts.items() if text != "None"}
        try:
            ends = [end.strip() for end in texts["interval"].strip("[]()").split(",")]
            node["interval"] = [None if end == "None" else float(end) for end in ends]
            return cls.from_config(node)
        except (UsageError, ValueError):
            return None

    def judge(self, value: float) -> str:
        """Where a finite value lies: ``reached``, ``below`` or ``above``.

        >>> Expected("success_mean", (0.9, 1.0)).judge(0.9)
        'reached'
        """
        low, high = self.interval
        # The mean of values that lie on an end may miss it by a rounding error.
        slack = 1e-9 * max(1.0, abs(value))
        return "below" if value < low - slack else "above" if value > high + slack else "reached"


def _interval(ends: Any) -> tuple[float, float]:
    problem = f"expected.interval: must be two ends in order, null for an open one, got {ends!r}"
    if not isinstance(ends, list | tuple) or len(ends) != 2 or all(end is None for end in ends):
        raise UsageError(problem)
    if any(isinstance(end, bool) or not isinstance(end, int | float | None) for end in ends):
        raise UsageError(problem)
    low = -math.inf if ends[0] is None else float(ends[0])
    high = math.inf if ends[1] is None else float(ends[1])
    if not low <= high:  # NaN neither
        raise UsageError(problem)
    return low, high
