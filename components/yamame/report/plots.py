"""Plots of a section: learning curves, metrics of training, in-context curves.

The curve of a group is the mean of its runs on a common axis, with an interval, and every run by
itself.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from yamame.evaluation.intervals import Array, Method, Resampling
from yamame.report.estimates import interval_unit, is_share
from yamame.report.groups import Group, Section
from yamame.tracking.history import Axis
from yamame.tracking.metrics import label_of

FEWEST_SEEDS = 3
"""Runs from which on an interval is shown: that of two is wider than what is possible."""
_MOST_POINTS = 200
_MOST_TRAINING_POINTS = 60
_LONGEST_NAME = 80
_TRIAL = re.compile(r"eval/return_mean_trial_(\d+)")
_FAMILY = re.compile(r"train/(.+?)_(?:gamma_)?(\d+(?:\.\d+)?)")
TRAINING = (
    "loss",
    "td_error",
    "q_value",
    "target_value",
    "entropy",
    "filter_weight",
    "return_std",
    "clipped_targets",
    "kl_approx",
    "clip_fraction",
)
"""Metrics of training that are drawn if logged; `yamame.tracking.metrics` has their labels. Without
a discount factor in the name a metric is that of the acting one.
"""
_AXES: dict[Axis, str] = {
    "env_steps": "environment steps",
    "updates": "updates",
    "cpu_s": "CPU seconds",
    "wall_s": "wall-clock seconds",
}

Points = tuple[Array, Array]


@dataclass(frozen=True)
class Curve:
    """A line over an axis.

    Attributes:
        x: ``[N]``, increasing.
        y: ``[N]``, mean over runs.
        band: Lower and upper ends of the interval, each ``[N]``; None without an interval.
        runs: Points ``(x, y)`` of every run.
        method: Method of the interval; None without one.
    """

    x: Array
    y: Array
    band: tuple[Array, Array] | None = None
    runs: tuple[Points, ...] = ()
    method: Method | None = None


@dataclass(frozen=True)
class Line:
    """A curve with a name.

    Attributes:
        name: Text in the legend.
        curve: The curve.
        index: Number of the colour, dash and marker.
    """

    name: str
    curve: Curve
    index: int


@dataclass(frozen=True)
class Plot:
    """A picture to be drawn.

    Attributes:
        name: Name of the file, without suffix.
        title: Title.
        x_label: Label of the horizontal axis, with its unit.
        y_label: Label of the vertical axis, with its unit.
        lines: At least one line.
        expected: Interval to be shaded; an infinite end is open.
        whole: True for whole numbers only on the horizontal axis.
        share: True for a vertical axis from 0 to 1.
        family: Title of the row of small pictures it belongs to; empty for a large picture.
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
        """Description in words, for readers who do not see the picture."""
        texts = []
        for line in self.lines:
            y = line.curve.y
            if len(y):
                texts.append(f"{line.name} goes from {y[0]:.3g} to {y[-1]:.3g}")
        return f"{self.title}: {self.y_label} against {self.x_label}. {'; '.join(texts)}."


def learning_plots(
    section: Section, metric: str, prefix: str, resampling: Resampling
) -> list[Plot]:
    """Plot a metric of evaluations against the section's axis, CPU and wall-clock seconds.

    An axis that no run logged has no plot.
    """
    expected = section.expected
    interval = None
    if expected is not None and expected.metric == metric:
        interval = expected.interval
    meaning = describe(metric)
    axes: tuple[Axis, ...] = (section.base.runs[0].axis, "cpu_s", "wall_s")
    plots = []
    for axis in axes:
        curves = []
        for group in section.groups:
            curves.append(learning_curve_of(group, metric, resampling, axis=axis))
        label = _AXES[axis]
        plot = Plot(
            name=f"{prefix}-{_file_name(metric)}-{axis}",
            title=f"{meaning.partition(',')[0]} against {label}",
            x_label=label,
            y_label=meaning,
            lines=group_lines(section, curves),
            expected=interval,
            share=is_share(metric),
        )
        plots.append(plot)
    return [plot for plot in plots if plot.lines]


def training_plots(section: Section, prefix: str, resampling: Resampling) -> list[Plot]:
    """Plot the metrics of `TRAINING`, then the metrics that are logged per discount factor."""
    label = _AXES[section.base.runs[0].axis]

    def lines_of(metric: str) -> list[Line]:
        curves = [training_curve_of(group, metric, resampling) for group in section.groups]
        return group_lines(section, curves)

    plots = []
    for metric in TRAINING:
        title = metric.replace("_", " ")
        name = f"train/{metric}"
        plots.append(Plot(f"{prefix}-train-{metric}", title, label, label_of(name), lines_of(name)))

    for family, members in families(section.groups).items():
        title = family.replace("_", " ")
        meaning = label_of(f"train/{family}")
        for gamma, metric in members.items():
            plot = Plot(
                name=f"{prefix}-train-{_file_name(family)}-gamma-{gamma}",
                title=f"{title}, gamma {gamma}",
                x_label=label,
                y_label=meaning,
                lines=lines_of(metric),
                family=meaning,  # titles of small pictures are their discount factors
            )
            plots.append(plot)
    return [plot for plot in plots if plot.lines]


def trial_plots(section: Section, prefix: str, resampling: Resampling) -> list[Plot]:
    """Plot the in-context curve, if episodes have several trials."""
    lines = group_lines(section, [trial_curve_of(group, resampling) for group in section.groups])
    if not lines:
        return []
    title = "in-context curve of the last evaluation"
    return [Plot(f"{prefix}-trials", title, "trial", "return of the trial", lines, whole=True)]


def group_lines(section: Section, curves: Iterable[Curve | None]) -> list[Line]:
    """Return a line per group that has a curve.

    Args:
        section: The section.
        curves: One entry per group; None for a group without a curve.
    """
    lines = []
    for index, (group, curve) in enumerate(zip(section.groups, curves, strict=True)):
        if curve is not None:
            lines.append(Line(f"{group.letter}  {group.label}", curve, index))
    return lines


def _file_name(metric: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "-", metric)[:_LONGEST_NAME]


def describe(metric: str) -> str:
    """Return a metric of an evaluation in words, with its unit if it is known.

    >>> describe("success_mean"), describe("return_mean"), describe("energy_used")
    ('success, share of episodes', 'return, sum of rewards', 'energy used')
    """
    return label_of(f"eval/{metric}")


def mean_curve(
    lines: Sequence[Points],
    resampling: Resampling,
    *,
    alone: tuple[Array, Array] | None = None,
    alone_method: Method = "episodes",
    share: bool = False,
) -> Curve | None:
    """Return the mean of several lines where all of them are known, by linear interpolation.

    Args:
        lines: Points ``(x, y)`` of every run, finite, with ascending ``x``.
        resampling: Settings of the interval over runs.
        alone: Both ends of the interval of a single line.
        alone_method: Method of that interval.
        share: True if values lie between 0 and 1.

    Returns:
        None if there is no line or a line has no points. A curve without points if no position lies
        on all lines. Two lines have no interval.
    """
    positions = [x for x, _ in lines]
    if not lines or min(map(len, positions)) == 0:
        return None
    runs = tuple(lines)
    # Beyond the shortest run the mean would be one of fewer runs, and jump.
    start = max(x[0] for x in positions)
    end = min(x[-1] for x in positions)
    grid = np.unique(np.concatenate(positions))
    grid = grid[(grid >= start) & (grid <= end)]
    if not len(grid):
        return Curve(grid, grid, runs=runs)
    # The points of a single run are drawn as they are.
    if len(lines) > 1 and len(grid) > _MOST_POINTS:
        grid = np.linspace(start, end, _MOST_POINTS)

    table = np.stack([np.interp(grid, x, y) for x, y in lines])  # [runs, N]
    mean = table.mean(0)
    method = resampling.method(len(lines))
    if method is None:
        return Curve(grid, mean, alone, runs, None if alone is None else alone_method)
    if len(lines) < FEWEST_SEEDS:
        return Curve(grid, mean, runs=runs)
    low, high = resampling.interval([table], np.mean)
    if share:
        # Student's interval does not know that a share lies between 0 and 1.
        low = low.clip(0.0, 1.0)
        high = high.clip(0.0, 1.0)
    return Curve(grid, mean, (low, high), runs, method)


def _lines_by_run(group: Group, metric: str, axis: Axis) -> dict[int, Points]:
    """Return the points of a metric by position of the run, for runs that have any."""
    points = group.metrics.on_axis(metric, axis)
    lines = {}
    for run, rows in points.groupby("run"):
        lines[int(run)] = (rows["x"].to_numpy(), rows["value"].to_numpy())
    return lines


def learning_curve_of(
    group: Group, metric: str, resampling: Resampling, *, axis: Axis = "env_steps"
) -> Curve | None:
    """Return the curve of a metric of evaluations over an axis.

    The band of a single run is the interval over its episodes.
    """
    lines = _lines_by_run(group, f"eval/{metric}", axis)
    alone = None
    if len(lines) == 1:
        ((run, (x, _)),) = lines.items()
        stem = metric.removesuffix("_mean")
        nothing = (np.empty(0), np.empty(0))
        low = _lines_by_run(group, f"eval/{stem}_low", axis).get(run, nothing)
        high = _lines_by_run(group, f"eval/{stem}_high", axis).get(run, nothing)
        # An interval that some evaluations lack is not drawn.
        if np.array_equal(low[0], x) and np.array_equal(high[0], x):
            alone = (low[1], high[1])
    return mean_curve(
        list(lines.values()),
        resampling,
        alone=alone,
        alone_method=interval_unit(group),
        share=is_share(metric),
    )


def training_curve_of(group: Group, metric: str, resampling: Resampling) -> Curve | None:
    """Return the curve of a metric of training over steps, averaged in at most 60 windows."""
    lines = []
    for _, rows in group.metrics.points(metric).groupby("run"):
        x = rows["step"].to_numpy()
        y = rows["value"].to_numpy()
        if len(x) > _MOST_TRAINING_POINTS:
            # Each run is averaged by itself, so that its noise stays visible in the mean of runs.
            x = _window_means(x)
            y = _window_means(y)
        lines.append((x, y))
    return mean_curve(lines, resampling)


def _window_means(values: Array) -> Array:
    windows = np.array_split(values, _MOST_TRAINING_POINTS)
    return np.array(list(map(np.mean, windows)))


def trial_curve_of(group: Group, resampling: Resampling) -> Curve | None:
    """Return the in-context curve: mean return of every trial in the last evaluation."""
    trials = {}
    for name in group.metrics.names:
        match = _TRIAL.fullmatch(name)
        if match is not None:
            trials[name] = int(match[1]) + 1.0
    returns = group.metrics.last_of(list(trials)).rename(columns=trials).sort_index(axis=1)
    lines = []
    for _, row in returns.iterrows():
        known = row.dropna()
        if len(known):
            lines.append((known.index.to_numpy(float), known.to_numpy()))
    return mean_curve(lines, resampling)


def families(groups: Sequence[Group]) -> dict[str, dict[str, str]]:
    """Find the metrics of training that are logged once per discount factor.

    Names end in the discount factor, such as ``train/q_value_0.9`` or ``train/q_value_gamma_0.9``.

    Returns:
        Name without the discount factor, to discount factor, to metric.
    """
    names: set[str] = set()
    for group in groups:
        names.update(group.metrics.names)
    matches = []
    for name in names:
        match = _FAMILY.fullmatch(name)
        if match is not None:
            matches.append(match)
    # By value, so that gamma 0.99 precedes 0.999 and follows 0.9.
    matches.sort(key=lambda match: (match[1], float(match[2]), match[0]))

    result: dict[str, dict[str, str]] = {}
    for match in matches:
        family, gamma = match.groups()
        result.setdefault(family, {})[gamma] = match[0]
    return result
