"""What a section shows as pictures: learning curves, metrics of training, in-context curves.

A curve of a group is the mean of its runs on a common axis, with an interval, and every run alone.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from yamame.evaluation.intervals import Array, Method, Resampling
from yamame.report.estimates import is_share
from yamame.report.groups import Group, Section
from yamame.tracking.history import Axis

_MOST_POINTS, _MOST_TRAINING_POINTS = 200, 60
_TRIAL = re.compile(r"eval/return_mean_trial_(\d+)")
_FAMILY = re.compile(r"train/(.+?)_(?:gamma_)?(\d+(?:\.\d+)?)")
TRAINING = {
    "loss": "loss",
    "td_error": "absolute TD error",
    "q_value": "value of the taken action",
    "target_value": "target value",
    "entropy": "entropy, nats",
    "filter_weight": "mean weight of cloning",
    "return_std": "spread of the targets",
    "clipped_targets": "share of targets outside of the bins",
}
"""Metrics of training that are drawn where they are logged, of the gamma that acts, with what they
are.
"""
_AXES: dict[Axis, str] = {
    "env_steps": "environment steps",
    "updates": "updates",
    "cpu_s": "CPU seconds",
    "wall_s": "wall-clock seconds",
}


@dataclass(frozen=True)
class Curve:
    """A line over an axis.

    Attributes:
        x: ``[N]``, increasing.
        y: ``[N]``, the mean over runs.
        band: ``[N]`` twice, the lower and the upper ends of the interval; None where there is none.
        runs: Every run as ``(x, y)``.
        method: How the band was made; None where there is none.
    """

    x: Array
    y: Array
    band: tuple[Array, Array] | None = None
    runs: tuple[tuple[Array, Array], ...] = ()
    method: Method | None = None


@dataclass(frozen=True)
class Line:
    """A curve with a name.

    Attributes:
        name: What the legend says.
        curve: The curve.
        index: Which colour, dash and marker it gets.
    """

    name: str
    curve: Curve
    index: int


@dataclass(frozen=True)
class Plot:
    """A picture to be drawn.

    Attributes:
        name: Of the file, without its ending.
        title: What it shows.
        x_label: With its unit.
        y_label: With its unit.
        lines: At least one.
        expected: An interval to be shaded; infinite ends bound nothing.
        whole: Whole numbers only on the horizontal axis.
        share: The vertical axis goes from 0 to 1.
        family: What it shows beside others of its kind, as one of small pictures; empty for one
            that stands alone.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    expected: tuple[float, float] | None = None
    whole: bool = False
    share: bool = False
    family: str = ""

    @property
    def alt(self) -> str:
        """What the picture shows, in words."""
        ends = "; ".join(
            f"{line.name} goes from {line.curve.y[0]:.3g} to {line.curve.y[-1]:.3g}"
            for line in self.lines
            if len(line.curve.y)
        )
        return f"{self.title}: {self.y_label} against {self.x_label}. {ends}."


def learning_plots(
    section: Section, metric: str, prefix: str, resampling: Resampling
) -> list[Plot]:
    """An evaluation metric against the section's axis and against both kinds of seconds, where
    these were logged.
    """
    expected = section.expected
    interval = expected.interval if expected is not None and expected.metric == metric else None
    axes: tuple[Axis, ...] = (section.base.runs[0].axis, "cpu_s", "wall_s")
    meaning, plots = describe(metric), []
    for axis in axes:
        curves = (
            learning_curve_of(group, metric, resampling, axis=axis) for group in section.groups
        )
        lines, label = group_lines(section, curves), _AXES[axis]
        name = f"{prefix}-{_file_name(metric)}-{axis}"
        title = f"{meaning.partition(',')[0]} against {label}"
        plots.append(Plot(name, title, label, meaning, lines, interval, share=is_share(metric)))
    return [plot for plot in plots if plot.lines]


def training_plots(section: Section, prefix: str, resampling: Resampling) -> list[Plot]:
    """The metrics of `TRAINING`, then those that are logged per gamma, a plot each; a line per
    group everywhere.
    """
    label = _AXES[section.base.runs[0].axis]
    plots = []
    for metric, meaning in TRAINING.items():
        curves = (
            training_curve_of(group, f"train/{metric}", resampling) for group in section.groups
        )
        lines = group_lines(section, curves)
        plots.append(
            Plot(f"{prefix}-train-{metric}", metric.replace("_", " "), label, meaning, lines)
        )
    for family, members in families(section.groups).items():
        title = family.replace("_", " ")
        meaning = TRAINING.get(family, title)
        for gamma, metric in members.items():
            name = f"{prefix}-train-{_file_name(family)}-gamma-{gamma}"
            lines = group_lines(
                section, (training_curve_of(g, metric, resampling) for g in section.groups)
            )
            plots.append(
                Plot(name, f"{title}, gamma {gamma}", label, meaning, lines, family=meaning)
            )
    return [plot for plot in plots if plot.lines]


def trial_plots(section: Section, prefix: str, resampling: Resampling) -> list[Plot]:
    """The in-context curve, where episodes had several trials."""
    lines = group_lines(section, (trial_curve_of(group, resampling) for group in section.groups))
    title = "in-context curve of the last evaluation"
    plot = Plot(f"{prefix}-trials", title, "trial", "return of the trial", lines, whole=True)
    return [plot] if lines else []


def group_lines(section: Section, curves: Iterable[Curve | None]) -> list[Line]:
    """A line per group that has a curve."""
    return [
        Line(f"{group.letter}  {group.label}", curve, index)
        for index, (group, curve) in enumerate(zip(section.groups, curves, strict=True))
        if curve is not None
    ]


def _file_name(metric: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "-", metric)[:80]


def describe(metric: str) -> str:
    """A metric of an evaluation in words, with its unit.

    >>> describe("success_mean"), describe("return_mean"), describe("length_mean")
    ('success, share of tasks', 'return, sum of rewards', 'length mean')
    """
    known = {"success_mean": "success, share of tasks", "return_mean": "return, sum of rewards"}
    return known.get(metric, metric.replace("_", " "))


def mean_curve(
    lines: Sequence[tuple[Array, Array]],
    resampling: Resampling,
    *,
    alone: tuple[Array, Array] | None = None,
    share: bool = False,
) -> Curve | None:
    """The mean of several lines where all of them are known; between their points they are
    straight.

    Args:
        lines: ``(x, y)`` of every run, finite, with increasing ``x``.
        resampling: How the interval over runs is made.
        alone: Both ends of the interval over the episodes of a single line.
        share: Whether values lie between 0 and 1.

    None where there is no line; without points where there is no place that all of them know.
    """
    if not lines or any(not len(x) for x, _ in lines):
        return None
    start, end = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    grid = np.unique(np.concatenate([x for x, _ in lines]))
    grid = grid[(grid >= start) & (grid <= end)]
    if not len(grid):
        return Curve(grid, grid, None, tuple(lines))
    if len(lines) > 1 and len(grid) > _MOST_POINTS:
        grid = np.linspace(start, end, _MOST_POINTS)
    table = np.stack([np.interp(grid, x, y) for x, y in lines])
    method = resampling.method(len(lines))
    if method is None:
        return Curve(
            grid, table.mean(0), alone, tuple(lines), None if alone is None else "episodes"
        )
    low, high = resampling.interval([table], np.mean)
    if share:
        low, high = low.clip(0.0, 1.0), high.clip(0.0, 1.0)
    return Curve(grid, table.mean(0), (low, high), tuple(lines), method)


def learning_curve_of(
    group: Group, metric: str, resampling: Resampling, *, axis: Axis = "env_steps"
) -> Curve | None:
    """An evaluation metric over environment steps, updates, CPU seconds or wall-clock seconds.

    The band of a single run is that over its episodes.
    """
    known = [
        (run, line) for run in group.runs if len((line := run.along(f"eval/{metric}", axis))[0])
    ]
    alone = None
    if len(known) == 1:
        run, (x, _) = known[0]
        stem = metric.removesuffix("_mean")
        low, high = (run.along(f"eval/{stem}_{end}", axis) for end in ("low", "high"))
        if np.array_equal(low[0], x) and np.array_equal(high[0], x):
            alone = low[1], high[1]
    return mean_curve([line for _, line in known], resampling, alone=alone, share=is_share(metric))


def training_curve_of(group: Group, metric: str, resampling: Resampling) -> Curve | None:
    """A metric of training over the steps of the runs, averaged in windows so that at most 60
    points are left.
    """
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
    """The in-context curve: the mean return of every trial of an episode, in the last
    evaluation.
    """
    lines = []
    for run in group.runs:
        names = [(int(match[1]), name) for name in run.metrics if (match := _TRIAL.fullmatch(name))]
        points = [
            (n + 1, value) for n, name in sorted(names) if (value := run.last(name)) is not None
        ]
        if points:
            x, y = np.array(points, float).T
            lines.append((x, y))
    return mean_curve(lines, resampling)


def families(groups: Sequence[Group]) -> dict[str, dict[str, str]]:
    """Metrics of training that are logged once per discount factor: name to discount factor to
    metric.

    A name ends in the discount factor, as ``train/q_value_0.9`` or ``train/q_value_gamma_0.9``.
    """
    names = {name for group in groups for run in group.runs for name in run.metrics}
    matches = [match for name in names if (match := _FAMILY.fullmatch(name))]
    result: dict[str, dict[str, str]] = {}
    for match in sorted(matches, key=lambda match: (match[1], float(match[2]))):
        result.setdefault(match[1], {})[match[2]] = match[0]
    return result
