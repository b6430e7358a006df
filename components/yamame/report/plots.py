"""What a section shows as pictures: learning curves, metrics of training, in-context curves."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from yamame.evaluation.intervals import Resampling
from yamame.report.curves import (
    Curve,
    families,
    learning_curve_of,
    training_curve_of,
    trial_curve_of,
)
from yamame.report.groups import Section
from yamame.tracking.history import Axis

TRAINING = {
    "loss": "loss",
    "td_error": "absolute TD error",
    "q_value": "value of the taken action",
    "target_value": "target value",
    "entropy": "entropy, nats",
    "filter_weight": "mean weight of cloning",
    "return_std": "spread of the targets",
}
"""Metrics of training that are drawn where they are logged, of the gamma that acts, with what they are."""
_AXES: dict[Axis, str] = {
    "env_steps": "environment steps",
    "updates": "updates",
    "cpu_s": "CPU seconds",
    "wall_s": "wall-clock seconds",
}


@dataclass(frozen=True)
class Line:
    """A curve with a name.

    Attributes:
        name: What the legend says.
        curve: The curve.
        index: Which colour, dash and marker it gets.
        shade: In [0, 1] to be coloured by a scale instead; None for the colour of the index.
    """

    name: str
    curve: Curve
    index: int
    shade: float | None = None


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
    """

    name: str
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    expected: tuple[float, float] | None = None
    whole: bool = False
    share: bool = False

    @property
    def alt(self) -> str:
        """What the picture shows, in words."""
        ends = "; ".join(
            f"{line.name} goes from {line.curve.y[0]:.3g} to {line.curve.y[-1]:.3g}" for line in self.lines
        )
        return f"{self.title}: {self.y_label} against {self.x_label}. {ends}."


def learning_plots(section: Section, metric: str, prefix: str, resampling: Resampling) -> list[Plot]:
    """An evaluation metric against the section's axis and against both kinds of seconds, where these were logged."""
    expected = section.expected
    interval = expected.interval if expected is not None and expected.metric == metric else None
    axes: tuple[Axis, ...] = (section.base.runs[0].axis, "cpu_s", "wall_s")
    plots = []
    for axis in axes:
        lines = _lines(section, (learning_curve_of(g, metric, resampling, axis=axis) for g in section.groups))
        plots.append(
            Plot(
                f"{prefix}-{_file_name(metric)}-{axis}",
                f"{describe(metric).partition(',')[0]} against {_AXES[axis]}",
                _AXES[axis],
                describe(metric),
                lines,
                expected=interval,
                share=metric.startswith("success"),
            )
        )
    return [plot for plot in plots if plot.lines]


def training_plots(section: Section, prefix: str, resampling: Resampling) -> list[Plot]:
    """The metrics of `TRAINING` with a line per group, then those that are logged per gamma with a line per gamma."""
    label = _AXES[section.base.runs[0].axis]
    plots = []
    for metric, meaning in TRAINING.items():
        curves = (training_curve_of(group, f"train/{metric}", resampling) for group in section.groups)
        lines = _lines(section, curves)
        plots.append(Plot(f"{prefix}-train-{metric}", metric.replace("_", " "), label, meaning, lines))
    for family, members in families(section.groups).items():
        title = family.replace("_", " ")
        for group in section.groups:
            known = [
                (index, gamma, curve)
                for index, (gamma, name) in enumerate(members.items())
                if (curve := training_curve_of(group, name, resampling)) is not None
            ]
            plots.append(
                Plot(
                    f"{prefix}-train-{_file_name(family)}-by-gamma-{group.letter}",
                    f"{title} per gamma, {group.letter}  {group.label}",
                    label,
                    TRAINING.get(family, title),
                    [
                        Line(f"gamma {gamma}", curve, index, shade=place / max(1, len(known) - 1))
                        for place, (index, gamma, curve) in enumerate(known)
                    ],
                )
            )
    return [plot for plot in plots if plot.lines]


def trial_plots(section: Section, prefix: str, resampling: Resampling) -> list[Plot]:
    """The in-context curve, where episodes had several trials."""
    lines = _lines(section, (trial_curve_of(group, resampling) for group in section.groups))
    title = "in-context curve of the last evaluation"
    plot = Plot(f"{prefix}-trials", title, "trial", "return of the trial", lines, whole=True)
    return [plot] if lines else []


def _lines(section: Section, curves: Iterable[Curve | None]) -> list[Line]:
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
