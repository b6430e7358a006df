"""Curves of a group: the mean of its runs on a common axis, with an interval, and every run alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from yamame.runs.report.estimates import Resampling
from yamame.runs.report.groups import Group
from yamame.runs.report.history import Axis

Array = npt.NDArray[np.float64]
_MOST_POINTS = 200
_TRIAL = re.compile(r"eval/return_mean_trial_(\d+)")
_FAMILY = re.compile(r"train/(.+?)_(?:gamma_)?(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Curve:
    """A line over an axis.

    Attributes:
        x: ``[N]``, increasing.
        y: ``[N]``, the mean over runs.
        low: ``[N]``, lower end of the interval; empty where there is none.
        high: ``[N]``, upper end.
        runs: Every run as ``(x, y)``.
    """

    x: Array
    y: Array
    low: Array = field(default_factory=lambda: np.empty(0))
    high: Array = field(default_factory=lambda: np.empty(0))
    runs: tuple[tuple[Array, Array], ...] = ()


def mean_curve(
    lines: Sequence[tuple[Array, Array]],
    resampling: Resampling,
    *,
    alone: tuple[Array, Array] | None = None,
) -> Curve | None:
    """The mean of several lines where all of them are known; between their points they are straight.

    Args:
        lines: ``(x, y)`` of every run, finite, with increasing ``x``.
        resampling: How the interval over runs is made.
        alone: Both ends of the interval of a single line.

    None where there is no line, or no place that all of them know.
    """
    if not lines or any(not len(x) for x, _ in lines):
        return None
    start, end = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    grid = np.unique(np.concatenate([x for x, _ in lines]))
    grid = grid[(grid >= start) & (grid <= end)]
    if not len(grid):
        return None
    if len(lines) > 1 and len(grid) > _MOST_POINTS:
        grid = np.linspace(start, end, _MOST_POINTS)
    table = np.stack([np.interp(grid, x, y) for x, y in lines])
    if len(lines) > 1:
        low, high = resampling.interval(resampling.means(table))
    else:
        low, high = alone if alone is not None else (np.empty(0), np.empty(0))
    return Curve(grid, table.mean(0), low, high, tuple(lines))


def learning_curve_of(
    group: Group, metric: str, resampling: Resampling, *, axis: Axis = "env_steps"
) -> Curve | None:
    """An evaluation metric over environment steps, updates, CPU seconds or wall-clock seconds.

    The band of a single run is that over its episodes.
    """
    lines = [line for run in group.runs if len((line := run.along(f"eval/{metric}", axis))[0])]
    alone = None
    if len(lines) == 1:
        (run,) = (run for run in group.runs if len(run.along(f"eval/{metric}", axis)[0]))
        stem = metric.removesuffix("_mean")
        ends = [run.along(f"eval/{stem}_{end}", axis) for end in ("low", "high")]
        if all(np.array_equal(x, lines[0][0]) for x, _ in ends):
            alone = ends[0][1], ends[1][1]
    return mean_curve(lines, resampling, alone=alone)


def training_curve_of(group: Group, metric: str, resampling: Resampling) -> Curve | None:
    """A metric of training over the steps of the runs, averaged in windows so that at most 60 points are left."""
    lines = [_thinned(*run.along(metric, run.axis), most=60) for run in group.runs]
    return mean_curve([line for line in lines if len(line[0])], resampling)


def trial_curve_of(group: Group, resampling: Resampling) -> Curve | None:
    """The in-context curve: the mean return of every trial of an episode, in the last evaluation."""
    numbers = sorted(
        {int(found[1]) for run in group.runs for name in run.metrics if (found := _TRIAL.fullmatch(name))}
    )
    lines = []
    for run in group.runs:
        values = [run.last(f"eval/return_mean_trial_{number}") for number in numbers]
        known = [(number, value) for number, value in zip(numbers, values, strict=True) if value is not None]
        if known:
            lines.append((np.array([n + 1 for n, _ in known], float), np.array([v for _, v in known])))
    return mean_curve(lines, resampling)


def families(groups: Sequence[Group]) -> dict[str, dict[str, str]]:
    """Metrics of training that are logged once per discount factor: name to discount factor to metric.

    A name ends in the discount factor, as ``train/q_value_0.9`` or ``train/q_value_gamma_0.9``.
    """
    names = {name for group in groups for run in group.runs for name in run.metrics}
    found = [(match[1], match[2], name) for name in sorted(names) if (match := _FAMILY.fullmatch(name))]
    return {
        family: dict(
            sorted(
                ((gamma, name) for other, gamma, name in found if other == family), key=lambda e: float(e[0])
            )
        )
        for family in sorted({family for family, _, _ in found})
    }


def _thinned(x: Array, y: Array, *, most: int) -> tuple[Array, Array]:
    if len(x) <= most:
        return x, y
    parts = [np.array_split(array, most) for array in (x, y)]
    return np.array([part.mean() for part in parts[0]]), np.array([part.mean() for part in parts[1]])
