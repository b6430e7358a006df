"""What a page says, before it is written as HTML: per section its numbers, comparisons, pictures and film."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from yamame.runs.errors import UsageError
from yamame.runs.report.curves import (
    families,
    learning_curve_of,
    training_curve_of,
    trial_curve_of,
)
from yamame.runs.report.estimates import (
    Comparison,
    Final,
    Passed,
    Resampling,
    compare,
    final,
    less_is_better,
    passed,
    thresholds_for,
)
from yamame.runs.report.groups import Group, LeftOut, Section
from yamame.runs.report.history import Axis, RunHistory
from yamame.runs.report.pictures import Plot, lines
from yamame.runs.report.verdicts import Verdict, unmeasured, verdict

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
_FILM = "episodes.gif"


@dataclass(frozen=True)
class GroupResult:
    """The numbers of one group.

    Attributes:
        group: The group.
        finals: Metric to its end; the section's metric, ``success_mean`` and ``return_mean``.
        costs: ``env_steps``, ``cpu_s`` and ``wall_s`` at the last evaluation, the mean over seeds; None if unknown.
        passed: First passings of the thresholds, ascending.
        comparison: With the base; None for the base itself.
        film: A film of its best run, and the seed of that run.
    """

    group: Group
    finals: dict[str, Final | None]
    costs: dict[str, float | None]
    passed: list[Passed]
    comparison: Comparison | None = None
    film: tuple[bytes, str] | None = None


@dataclass(frozen=True)
class SectionResult:
    """The numbers and pictures of one section."""

    section: Section
    metric: str
    results: list[GroupResult]
    learning: list[Plot]
    training: list[Plot]
    trials: list[Plot]
    verdict: Verdict | None


@dataclass(frozen=True)
class Content:
    """All that a page says."""

    sections: list[SectionResult]
    left_out: list[LeftOut]
    unmeasured: list[Verdict]
    resampling: Resampling

    @property
    def verdicts(self) -> list[Verdict]:
        """Those of the sections that expect something, then of the experiments of which no run counts."""
        judged = [result.verdict for result in self.sections if result.verdict is not None]
        return judged + self.unmeasured


def build_content(
    sections: Sequence[Section],
    left_out: Sequence[LeftOut],
    *,
    thresholds: Sequence[float] = (0.5, 0.9, 0.95),
    metric: str | None = None,
    resampling: Resampling | None = None,
    artifact: Callable[[str, str], bytes | None] = lambda run_id, name: None,
) -> Content:
    """Computes everything.

    Args:
        sections: From `make_sections`.
        left_out: From `make_sections`.
        thresholds: Fractions, see `thresholds_for`.
        metric: Metric of evaluations to compare by, without ``eval/``; None for what a section expects, else success,
            else the return.
        resampling: How intervals are made.
        artifact: Gives the content of an artifact by the id of a run and a name.

    Raises:
        UsageError: No run that counts has logged the metric.
    """
    _check_metric(metric, sections)
    chosen = Resampling() if resampling is None else resampling
    results = [
        _section_result(number, section, metric, thresholds, chosen, artifact)
        for number, section in enumerate(sections, start=1)
    ]
    return Content(results, list(left_out), unmeasured(sections, left_out), chosen)


def _check_metric(metric: str | None, sections: Sequence[Section]) -> None:
    runs = [run for section in sections for group in section.groups for run in group.runs]
    known = {name.removeprefix("eval/") for run in runs for name in run.metrics if name.startswith("eval/")}
    if metric is not None and known and metric not in known:
        shown = ", ".join(sorted(name for name in known if "_trial_" not in name))
        raise UsageError(f"metric: must be one of {shown}, got {metric!r}")


def _section_result(
    number: int,
    section: Section,
    metric: str | None,
    thresholds: Sequence[float],
    resampling: Resampling,
    artifact: Callable[[str, str], bytes | None],
) -> SectionResult:
    metric = metric or _metric_of(section)
    levels = thresholds_for(metric, thresholds, section.expected)
    names = dict.fromkeys([metric, "success_mean", "return_mean"])
    finals = {
        group.letter: {name: final(group, name, resampling) for name in names} for group in section.groups
    }
    ends = {letter: entry[metric] for letter, entry in finals.items()}
    results = [
        GroupResult(
            group=group,
            finals=finals[group.letter],
            costs=_costs(group),
            passed=[passed(group, metric, level) for level in levels],
            comparison=None
            if group is section.base
            else compare(section, group, ends, resampling, lower=less_is_better(metric)),
            film=_film(group, metric, artifact),
        )
        for group in section.groups
    ]
    draw = _Drawing(section, f"section-{number}", resampling)
    return SectionResult(
        section,
        metric,
        results,
        draw.learning(metric),
        draw.training(),
        draw.trials(),
        verdict(section, resampling),
    )


def _metric_of(section: Section) -> str:
    if section.expected is not None:
        return section.expected.metric
    logged = {name for group in section.groups for run in group.runs for name in run.metrics}
    return "success_mean" if "eval/success_mean" in logged else "return_mean"


def _costs(group: Group) -> dict[str, float | None]:
    names: tuple[Axis, ...] = ("env_steps", "cpu_s", "wall_s")
    costs: dict[str, float | None] = {}
    for name in names:
        known = [value for run in group.runs if (value := _cost(run, name)) is not None]
        costs[name] = float(np.mean(known)) if known else None
    return costs


def _cost(run: RunHistory, name: Axis) -> float | None:
    if name != run.axis:
        return run.last(f"cost/{name}")
    return float(max(series.steps[-1] for key, series in run.metrics.items() if key.startswith("eval/")))


def _film(
    group: Group, metric: str, artifact: Callable[[str, str], bytes | None]
) -> tuple[bytes, str] | None:
    """The film of the best run that has one."""
    sign = -1.0 if less_is_better(metric) else 1.0

    def worth(run: RunHistory) -> float:
        value = run.last(f"eval/{metric}")
        return -np.inf if value is None else sign * value

    for run in sorted(group.runs, key=worth, reverse=True):
        film = artifact(run.run_id, _FILM)
        if film is not None:
            return film, run.seed
    return None


class _Drawing:
    """The pictures of one section."""

    def __init__(self, section: Section, prefix: str, resampling: Resampling) -> None:
        self.section, self.prefix, self.resampling = section, prefix, resampling
        self.axis = section.base.runs[0].axis
        self.named = [(_name(group), index, group) for index, group in enumerate(section.groups)]

    def learning(self, metric: str) -> list[Plot]:
        expected = self.section.expected
        interval = expected.interval if expected is not None and expected.metric == metric else None
        plots = []
        axes: tuple[Axis, ...] = (self.axis, "cpu_s", "wall_s")
        for axis in axes:
            label = _AXES[axis]
            curves = [
                (name, index, learning_curve_of(group, metric, self.resampling, axis=axis))
                for name, index, group in self.named
            ]
            name = f"{self.prefix}-{_file_name(metric)}-{axis}"
            plots.append(
                Plot(
                    name,
                    f"{describe(metric).partition(',')[0]} against {label}",
                    label,
                    describe(metric),
                    lines(curves),
                    interval,
                    share=metric.startswith("success"),
                )
            )
        return [plot for plot in plots if plot.lines]

    def training(self) -> list[Plot]:
        plots = []
        for metric, label in TRAINING.items():
            curves = [
                (name, index, training_curve_of(group, f"train/{metric}", self.resampling))
                for name, index, group in self.named
            ]
            name = f"{self.prefix}-train-{metric}"
            plots.append(Plot(name, metric.replace("_", " "), _AXES[self.axis], label, lines(curves)))
        for family, members in families(self.section.groups).items():
            plots += [self._per_gamma(family, members, name, group) for name, _, group in self.named]
        return [plot for plot in plots if plot.lines]

    def _per_gamma(self, family: str, members: dict[str, str], name: str, group: Group) -> Plot:
        curves = [
            (f"gamma {gamma}", index, training_curve_of(group, metric, self.resampling))
            for index, (gamma, metric) in enumerate(members.items())
        ]
        label = TRAINING.get(family, family.replace("_", " "))
        return Plot(
            f"{self.prefix}-train-{_file_name(family)}-by-gamma-{group.letter}",
            f"{family.replace('_', ' ')} per gamma, {name}",
            _AXES[self.axis],
            label,
            lines(curves, shaded=True),
        )

    def trials(self) -> list[Plot]:
        curves = [(name, index, trial_curve_of(group, self.resampling)) for name, index, group in self.named]
        title = "in-context curve of the last evaluation"
        plot = Plot(
            f"{self.prefix}-trials", title, "trial", "return of the trial", lines(curves), levels=True
        )
        return [plot] if plot.lines else []


def _name(group: Group) -> str:
    return f"{group.letter}  {group.label}"


def _file_name(metric: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "-", metric)[:80]


def describe(metric: str) -> str:
    """A metric of an evaluation in words, with its unit.

    >>> describe("success_mean"), describe("return_mean"), describe("length_mean")
    ('success, share of tasks', 'return, sum of rewards', 'length mean')
    """
    known = {"success_mean": "success, share of tasks", "return_mean": "return, sum of rewards"}
    return known.get(metric, metric.replace("_", " "))
