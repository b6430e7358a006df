"""What a page says, before it is written as HTML: per section its numbers, comparisons, pictures
and video.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from yamame.checks import UsageError
from yamame.evaluation.intervals import Method, Resampling
from yamame.report.estimates import (
    Comparison,
    Final,
    Passed,
    compare,
    final,
    less_is_better,
    passed,
    thresholds_for,
)
from yamame.report.expected import Expected
from yamame.report.groups import Group, LeftOut, Section
from yamame.report.memory import memory_plots
from yamame.report.plots import Plot, learning_plots, training_plots, trial_plots
from yamame.tracking.history import Axis, RunHistory

Artifact = Callable[[str, str], bytes | None]
"""Gives the content of an artifact by the id of a run and a name; None where there is none."""
UNKNOWN = "unknown"
_VIDEO = "episodes.gif"
_GIF = (b"GIF87a", b"GIF89a")


class Verdict(NamedTuple):
    """What became of an experiment.

    Attributes:
        section: Title of the section.
        expected: What it should reach.
        outcome: ``reached``, ``below``, ``above``, or ``unknown`` where the metric was never
            measured.
        mean: Mean over the seeds of the base group; None where unknown.
        num_seeds: How many seeds that are.
        ends: The interval over seeds of the mean; None with fewer than two, or if they do not
            differ.
        method: How it was made.
    """

    section: str
    expected: Expected
    outcome: str = UNKNOWN
    mean: float | None = None
    num_seeds: int = 0
    ends: tuple[float, float] | None = None
    method: Method | None = None

    def __str__(self) -> str:
        low, high = self.expected.interval
        seeds = "1 seed" if self.num_seeds == 1 else f"{self.num_seeds} seeds"
        if self.ends is None:
            interval, seeds = "", f"{seeds}, no interval"
        else:
            interval = f" [{self.ends[0]:.4g}, {self.ends[1]:.4g}] {self.method}"
        measured = "not measured" if self.mean is None else f"{self.mean:.4g}{interval}, {seeds}"
        return f"{self.section}: {self.outcome} ({self.expected.metric} {measured}; expected {low:.4g} to {high:.4g})"


class Video(NamedTuple):
    """A video (GIF) of the agent of one run, and the seed of that run."""

    content: bytes
    seed: str


@dataclass(frozen=True)
class GroupResult:
    """The numbers of one group.

    Attributes:
        group: The group.
        finals: Metric to its end; the section's metric, ``success_mean`` and ``return_mean``.
        costs: ``env_steps``, ``cpu_s`` and ``wall_s`` at the last evaluation, the mean over seeds;
            None if unknown.
        passed: First crossings of the thresholds, ascending.
        comparison: With the base; None for the base itself.
        video: That of its best run that has one.
    """

    group: Group
    finals: dict[str, Final | None]
    costs: dict[str, float | None]
    passed: list[Passed]
    comparison: Comparison | None = None
    video: Video | None = None


@dataclass(frozen=True)
class SectionResult:
    """The numbers and pictures of one section; the first result is that of the base."""

    section: Section
    metric: str
    results: list[GroupResult]
    learning: list[Plot]
    training: list[Plot]
    trials: list[Plot]
    memory: list[Plot]
    verdict: Verdict | None

    @property
    def pictures(self) -> list[Plot]:
        """What evaluations say, each a file beside the page."""
        return [*self.learning, *self.trials, *self.memory]

    @property
    def best(self) -> list[GroupResult]:
        """The groups with the best mean in the end; none where none has an end."""
        sign = -1.0 if less_is_better(self.metric) else 1.0
        ends = [
            (sign * end.mean, entry) for entry in self.results if (end := entry.finals[self.metric])
        ]
        return [entry for mean, entry in ends if mean == max(ends, key=lambda pair: pair[0])[0]]

    @property
    def is_tied(self) -> bool:
        """Whether several groups were compared and all have the same mean in the end."""
        return len(self.best) == len(self.results) > 1

    @property
    def metrics(self) -> list[str]:
        """The metrics of evaluations of which some group has an end."""
        return [
            name
            for name in self.results[0].finals
            if any(entry.finals[name] for entry in self.results)
        ]


@dataclass(frozen=True)
class Content:
    """All that a page says."""

    sections: list[SectionResult]
    left_out: list[LeftOut]
    unmeasured: list[Verdict]
    resampling: Resampling

    @property
    def title(self) -> str:
        """What is compared: the experiments, and the groups of a single one."""
        titles = list(dict.fromkeys(result.section.title for result in self.sections)) or [
            "no run that counts"
        ]
        labels = [entry.group.label for result in self.sections for entry in result.results]
        groups = f": {', '.join(labels)}" if len(self.sections) == 1 and len(labels) < 4 else ""
        more = f" and {len(titles) - 3} more" if len(titles) > 3 else ""
        return ", ".join(titles[:3]) + more + groups

    @property
    def verdicts(self) -> list[Verdict]:
        """Those of the sections that expect something, then of the experiments of which no run
        counts.
        """
        return [
            result.verdict for result in self.sections if result.verdict is not None
        ] + self.unmeasured


def build_content(
    sections: Sequence[Section],
    left_out: Sequence[LeftOut],
    *,
    thresholds: Sequence[float] = (0.5, 0.9, 0.95),
    metric: str | None = None,
    resampling: Resampling | None = None,
    artifact: Artifact = lambda run_id, name: None,
) -> Content:
    """Computes everything.

    Args:
        sections: From `make_sections`.
        left_out: From `make_sections`.
        thresholds: Fractions, see `thresholds_for`.
        metric: Metric of evaluations to compare by, without ``eval/``; None for what a section
            expects, else success, else the return.
        resampling: How intervals are made.
        artifact: Where videos and diagnoses of memory come from.

    Raises:
        UsageError: No run that counts has logged the metric.
    """
    logged = {
        name for section in sections for group in section.groups for name in _evaluated(group)
    }
    if metric is not None and logged and metric not in logged:
        names = ", ".join(sorted(name for name in logged if "_trial_" not in name))
        raise UsageError(f"metric: must be one of {names}, got {metric!r}")
    resampling = resampling or Resampling()
    results = [
        _section_result(
            number, section, metric or metric_of(section), thresholds, resampling, artifact
        )
        for number, section in enumerate(sections, start=1)
    ]
    return Content(results, list(left_out), unmeasured(sections, left_out), resampling)


def _evaluated(group: Group) -> set[str]:
    """The metrics of evaluations that its runs have logged."""
    names = (name for run in group.runs for name in run.metrics)
    return {name.removeprefix("eval/") for name in names if name.startswith("eval/")}


def metric_of(section: Section) -> str:
    """Returns the metric that groups are compared by, unless another is asked for.

    It is the one that the experiment declares, also where overrides make another experiment of it;
    else success, else the return.
    """
    declared = section.expected or Expected.from_params(section.base.runs[-1].params)
    if declared is not None and (section.expected or declared.metric in _evaluated(section.base)):
        return declared.metric
    has_success = any("success_mean" in _evaluated(group) for group in section.groups)
    return "success_mean" if has_success else "return_mean"


def _section_result(
    number: int,
    section: Section,
    metric: str,
    thresholds: Sequence[float],
    resampling: Resampling,
    artifact: Artifact,
) -> SectionResult:
    names = dict.fromkeys([metric, "success_mean", "return_mean"])
    levels = thresholds_for(metric, thresholds, section.expected)
    results = [
        GroupResult(
            group=group,
            finals={name: final(group, name, resampling) for name in names},
            costs=costs_of(group),
            passed=[passed(group, metric, level) for level in levels],
            comparison=compare(section.base, group, metric, resampling),
            video=_video(group, metric, artifact),
        )
        for group in section.groups
    ]
    prefix = f"section-{number}"
    return SectionResult(
        section,
        metric,
        results,
        learning_plots(section, metric, prefix, resampling),
        training_plots(section, prefix, resampling),
        trial_plots(section, prefix, resampling),
        memory_plots(section, prefix, resampling, artifact),
        _verdict(section, resampling),
    )


def costs_of(group: Group) -> dict[str, float | None]:
    """What its runs took up to their last evaluation, the means over seeds; None where that was not
    logged.
    """

    def cost(run: RunHistory, name: Axis) -> float | None:
        if name != run.axis:
            return run.last(f"cost/{name}")
        return float(
            max(series.steps[-1] for key, series in run.metrics.items() if key.startswith("eval/"))
        )

    names: tuple[Axis, ...] = ("env_steps", "cpu_s", "wall_s")
    known = {
        name: [value for run in group.runs if (value := cost(run, name)) is not None]
        for name in names
    }
    return {name: float(np.mean(values)) if values else None for name, values in known.items()}


def _video(group: Group, metric: str, artifact: Artifact) -> Video | None:
    sign = -1.0 if less_is_better(metric) else 1.0

    def worth(run: RunHistory) -> float:
        value = run.last(f"eval/{metric}")
        return -np.inf if value is None else sign * value

    for run in sorted(group.runs, key=worth, reverse=True):
        content = artifact(run.run_id, _VIDEO)
        if content is not None and content.startswith(_GIF):  # not every file of this name is one
            return Video(content, run.seed)
    return None


def _verdict(section: Section, resampling: Resampling) -> Verdict | None:
    """Judges the mean over seeds of the section's base group; None where nothing is expected."""
    expected = section.expected
    if expected is None:
        return None
    reached = final(section.base, expected.metric, resampling)
    if reached is None:
        return Verdict(section.title, expected)
    outcome, ends = expected.judge(reached.mean), reached.over_seeds
    return Verdict(
        section.title, expected, outcome, reached.mean, len(reached.values), ends, reached.method
    )


def unmeasured(sections: Sequence[Section], left_out: Sequence[LeftOut]) -> list[Verdict]:
    """Verdicts of the experiments of which runs were started, but none counts."""
    measured = {
        group.place
        for section in sections
        for group in section.groups
        if group.expected is not None
    }
    verdicts: dict[tuple[object, ...], Verdict] = {}
    for entry in left_out:
        group = Group("", "", (entry.run,))
        if group.place not in measured and group.expected is not None:
            verdicts[group.place] = Verdict(group.title, group.expected)
    return list(verdicts.values())


def falls_short(verdicts: Sequence[Verdict]) -> bool:
    """Whether any experiment came out worse than expected, or was not measured at all."""
    return any(
        verdict.outcome
        in ("above" if less_is_better(verdict.expected.metric) else "below", UNKNOWN)
        for verdict in verdicts
    )
