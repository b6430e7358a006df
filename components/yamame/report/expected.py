"""Expected results: the node ``expected`` of a configuration, checked before a run begins."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from yamame.checks import SettingError, UsageError, require_setting

_FIELDS = ("metric", "interval", "source", "cost")


@dataclass(frozen=True)
class Expected:
    """The interval in which a metric of the last evaluation should lie.

    Attributes:
        metric: Name of a metric of an evaluation, without ``eval/``.
        interval: Both ends, inclusive; infinite for an open end.
        source: Source of the interval.
        cost: Cost of the run, in words.

    >>> Expected.from_config({"metric": "return_mean", "interval": [20, None]}).interval
    (20.0, inf)
    """

    metric: str
    interval: tuple[float, float]
    source: str = ""
    cost: str = ""

    @classmethod
    def from_config(cls, node: Mapping[str, Any] | None) -> Self | None:
        """Read the node of a configuration; None if an experiment has no expectation.

        Args:
            node: ``metric`` and ``interval`` (two numbers, null for an open end); optionally
                ``source`` and ``cost``.

        Raises:
            UsageError: The node is malformed. The message has the key and the value.
        """
        if node is None:
            return None
        if not isinstance(node, Mapping):
            raise SettingError("expected", node, f"be null or have {', '.join(_FIELDS)}")
        for name in node.keys() - set(_FIELDS):
            message = f"expected has {', '.join(_FIELDS)}, not {name!r}"
            raise UsageError(message, key=f"expected.{name}")
        metric = node.get("metric")
        if not isinstance(metric, str) or not metric or metric.startswith("eval/"):
            raise SettingError("expected.metric", metric, "name a metric without eval/")
        texts = {name: node.get(name) or "" for name in ("source", "cost")}
        for name, text in texts.items():
            require_setting(f"expected.{name}", text, isinstance(text, str), "be text")
        return cls(metric, _interval(node.get("interval")), **texts)

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self | None:
        """Read the node from the flat parameters of a run; None if it is absent or malformed."""
        node: dict[str, Any] = {}
        for name in _FIELDS:
            text = params.get(f"expected.{name}", "None")
            if text != "None":
                node[name] = text
        ends: list[float | None] = []
        try:
            for end in str(node.get("interval")).strip("[]()").split(","):
                text = end.strip()
                ends.append(None if text == "None" else float(text))
            node["interval"] = ends
            return cls.from_config(node)
        except (UsageError, ValueError):
            return None

    def judge(self, value: float) -> str:
        """Return the position of a finite value: ``reached``, ``below`` or ``above``.

        >>> Expected("success_mean", (0.9, 1.0)).judge(0.9)
        'reached'
        """
        low, high = self.interval
        # The mean of values that lie on an end may miss it by a rounding error.
        slack = 1e-9 * max(1.0, abs(value))
        if value < low - slack:
            return "below"
        return "above" if value > high + slack else "reached"


def _interval(ends: Any) -> tuple[float, float]:
    condition = "be two ends in order, null for an open one"
    problem = SettingError("expected.interval", ends, condition)
    if not isinstance(ends, list | tuple) or len(ends) != 2 or all(end is None for end in ends):
        raise problem
    for end in ends:
        # A boolean is an int to Python, but no end.
        if isinstance(end, bool) or not isinstance(end, int | float | None):
            raise problem
    low = -math.inf if ends[0] is None else float(ends[0])
    high = math.inf if ends[1] is None else float(ends[1])
    if not low <= high:  # also false for NaN
        raise problem
    return low, high
