"""Curves of a group: the mean of its runs on a common axis, with an interval, and every run alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from yamame.evaluation.intervals import Array, Resampling
from yamame.report.groups import Group
from yamame.tracking.history import Axis

_MOST_POINTS, _MOST_TRAINING_POINTS = 200, 60
_TRIAL = re.compile(r"eval/return_mean_trial_(\d+)")
_FAMILY = re.compile(r"train/(.+?)_(?:gamma_)?(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Curve:
    """A line over an axis.

    Attributes:
        x: ``[N]``, increasing.
        y: ``[N]``, the mean over runs.
        band: ``[N]`` twice, the lower and the upper ends of the interval; None where there is none.
        runs: Every run as ``(x, y)``.
    """

    x: Array
    y: Array
    band: tuple[Array, Array] | None = None
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
        low, high = resampling.interval([table], np.mean)
        alone = low, high
    return Curve(grid, table.mean(0), alone, tuple(lines))


def learning_curve_of(
    group: Group, metric: str, resampling: Resampling, *, axis: Axis = "env_steps"
) -> Curve | None:
    """An evaluation metric over environment steps, updates, CPU seconds or wall-clock seconds.

    The band of a single run is that over its episodes.
    """
    known = [(run, line) for run in group.runs if len((line := run.along(f"eval/{metric}", axis))[0])]
    alone = None
    if len(known) == 1:
        run, (x, _) = known[0]
        stem = metric.removesuffix("_mean")
        low, high = (run.along(f"eval/{stem}_{end}", axis) for end in ("low", "high"))
        if np.array_equal(low[0], x) and np.array_equal(high[0], x):
            alone = low[1], high[1]
    return mean_curve([line for _, line in known], resampling, alone=alone)


def training_curve_of(group: Group, metric: str, resampling: Resampling) -> Curve | None:
    """A metric of training over the steps of the runs, averaged in windows so that at most 60 points are left."""
    lines = []
    for run in group.runs:
        x, y = run.along(metric, run.axis)
        if len(x) > _MOST_TRAINING_POINTS:
            x, y = (
                np.array([part.mean() for part in np.array_split(values, _MOST_TRAINING_POINTS)])
                for values in (x, y)
            )
        if len(x):
            lines.append((x, y))
    return mean_curve(lines, resampling)


def trial_curve_of(group: Group, resampling: Resampling) -> Curve | None:
    """The in-context curve: the mean return of every trial of an episode, in the last evaluation."""
    lines = []
    for run in group.runs:
        names = [(int(match[1]), name) for name in run.metrics if (match := _TRIAL.fullmatch(name))]
        points = [(n + 1, value) for n, name in sorted(names) if (value := run.last(name)) is not None]
        if points:
            x, y = np.array(points, float).T
            lines.append((x, y))
    return mean_curve(lines, resampling)


def families(groups: Sequence[Group]) -> dict[str, dict[str, str]]:
    """Metrics of training that are logged once per discount factor: name to discount factor to metric.

    A name ends in the discount factor, as ``train/q_value_0.9`` or ``train/q_value_gamma_0.9``.
    """
    names = {name for group in groups for run in group.runs for name in run.metrics}
    matches = [match for name in names if (match := _FAMILY.fullmatch(name))]
    result: dict[str, dict[str, str]] = {}
    for match in sorted(matches, key=lambda match: (match[1], float(match[2]))):
        result.setdefault(match[1], {})[match[2]] = match[0]
    return result
