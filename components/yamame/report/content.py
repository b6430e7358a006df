"""Content of a report, before it is written as HTML: numbers, comparisons, pictures and videos."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from yamame.checks import SettingError
from yamame.evaluation.intervals import Method, Resampling
from yamame.report.artifacts import Artifact, RunProblem, Video, read_diagnoses, read_video
from yamame.report.estimates import (
    Comparison,
    Crossings,
    Final,
    compare_with_base,
    crossings,
    final,
    less_is_better,
    thresholds_for,
)
from yamame.report.expected import Expected
from yamame.report.groups import Group, LeftOut, Section
from yamame.report.memory import memory_plots
from yamame.report.plots import Plot, learning_plots, training_plots, trial_plots
from yamame.system.messages import one_line
from yamame.tracking.history import RunHistory

UNKNOWN = "unknown"


class Verdict(NamedTuple):
    """Result of an experiment in comparison with its expectation.

    Attributes:
        section: Title of the section.
        expected: The expectation.
        outcome: ``reached``, ``below``, ``above``, or ``unknown`` if the metric was not measured.
        mean: Mean over the seeds of the base group; None if unknown.
        num_seeds: Number of these seeds.
        ends: Interval over seeds of the mean; None with fewer than two, or if they do not differ.
        method: Method of the interval.
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
        expected = f"expected {low:.4g} to {high:.4g}"
        seeds = "1 seed" if self.num_seeds == 1 else f"{self.num_seeds} seeds"
        if self.mean is None:
            measured = "not measured"
        elif self.ends is None:
            measured = f"{self.mean:.4g}, {seeds}, no interval"
        else:
            ends = f"[{self.ends[0]:.4g}, {self.ends[1]:.4g}]"
            measured = f"{self.mean:.4g} {ends} {self.method}, {seeds}"
        return f"{self.section}: {self.outcome} ({self.expected.metric} {measured}; {expected})"


@dataclass(frozen=True)
class GroupResult:
    """Numbers of one group.

    Attributes:
        group: The group.
        finals: Metric to its last evaluation: the section's metric, ``success_mean`` and
            ``return_mean``.
        costs: ``env_steps``, ``cpu_s`` and ``wall_s`` at the last evaluation, mean over seeds; None
            if unknown.
        crossings: First crossings of the thresholds, ascending.
        comparison: Comparison with the base; None for the base itself.
        video: Video of the best run that has one.
    """

    group: Group
    finals: dict[str, Final | None]
    costs: dict[str, float | None]
    crossings: list[Crossings]
    comparison: Comparison | None = None
    video: Video | None = None


@dataclass(frozen=True)
class SectionResult:
    """Numbers and pictures of one section; the first result is that of the base."""

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
        """Plots of evaluations, each also a file beside the page."""
        return [*self.learning, *self.trials, *self.memory]

    @property
    def best(self) -> list[GroupResult]:
        """Groups with the best mean of the last evaluation; empty if no group has one."""
        sign = -1.0 if less_is_better(self.metric) else 1.0
        best: list[GroupResult] = []
        best_score = -np.inf
        for entry in self.results:
            end = entry.finals[self.metric]
            if end is None:
                continue
            score = sign * end.mean
            if score > best_score:
                best, best_score = [entry], score
            elif score == best_score:  # exactly, as counts of episodes often are
                best.append(entry)
        return best

    @property
    def is_tied(self) -> bool:
        """True if several groups were compared and all have the same mean."""
        return len(self.best) == len(self.results) > 1

    @property
    def metrics(self) -> list[str]:
        """Metrics of evaluations that at least one group has."""
        names = []
        for name in self.results[0].finals:
            if any(entry.finals[name] for entry in self.results):
                names.append(name)
        return names


@dataclass(frozen=True)
class Content:
    """Everything on a page.

    Attributes:
        sections: Results by section.
        left_out: Runs that do not count.
        unmeasured: Verdicts of experiments without a run that counts.
        resampling: Settings of intervals.
        problems: Runs with artifacts that cannot be read.
    """

    sections: list[SectionResult]
    left_out: list[LeftOut]
    unmeasured: list[Verdict]
    resampling: Resampling
    problems: list[RunProblem]

    @property
    def title(self) -> str:
        """Experiments that are compared, and the groups of a single one."""
        titles: list[str] = []
        for result in self.sections:
            # Sections that differ in the environment alone have the same title.
            if result.section.title not in titles:
                titles.append(result.section.title)
        if not titles:
            return "no run that counts"
        title = ", ".join(titles[:3])
        if len(titles) > 3:
            title += f" and {len(titles) - 3} more"
        if len(self.sections) == 1:
            labels = [entry.group.label for entry in self.sections[0].results]
            if len(labels) < 4:
                title += f": {', '.join(labels)}"
        return title

    @property
    def verdicts(self) -> list[Verdict]:
        """Verdicts of sections with an expectation, then of experiments without a counting run."""
        verdicts = []
        for result in self.sections:
            if result.verdict is not None:
                verdicts.append(result.verdict)
        return verdicts + self.unmeasured


def build_content(
    sections: Sequence[Section],
    left_out: Sequence[LeftOut],
    *,
    thresholds: Sequence[float] = (0.5, 0.9, 0.95),
    metric: str | None = None,
    resampling: Resampling | None = None,
    artifact: Artifact = lambda run_id, name: None,
) -> Content:
    """Compute the numbers and the plots of a report.

    Args:
        sections: Sections from `make_sections`.
        left_out: Runs that do not count, from `make_sections`.
        thresholds: Fractions, see `thresholds_for`.
        metric: Metric of evaluations to compare by, without ``eval/``. None takes the metric of the
            section's expectation, else success, else the return.
        resampling: Settings of intervals.
        artifact: Reads an artifact by run id and name; the source of videos and diagnoses.

    Raises:
        UsageError: No run that counts has logged the metric.
    """
    logged: set[str] = set()
    for section in sections:
        for group in section.groups:
            logged |= group.evaluated
    if metric is not None and logged and metric not in logged:
        # Not those of single trials: there may be hundreds.
        names = [name for name in sorted(logged) if "_trial_" not in name]
        raise SettingError("metric", metric, f"be one of {', '.join(names)}")

    resampling = resampling or Resampling()
    problems: list[RunProblem] = []
    results = []
    all_left_out = list(left_out)
    for number, section in enumerate(sections, start=1):
        found: list[RunProblem] = []

        def compute(
            section: Section, number: int = number, found: list[RunProblem] = found
        ) -> SectionResult:
            found.clear()
            return _section_result(
                section,
                metric or metric_of(section),
                prefix=f"section-{number}",
                thresholds=thresholds,
                resampling=resampling,
                artifact=artifact,
                problems=found,
            )

        result = _computed(section, compute, all_left_out)
        if result is not None:
            results.append(result)
            problems += found
    experiments = unmeasured(sections, all_left_out)
    return Content(results, all_left_out, experiments, resampling, problems)


def _computed(
    section: Section, compute: Callable[[Section], SectionResult], left_out: list[LeftOut]
) -> SectionResult | None:
    """Compute a section, without the runs that make it fail; None if none remains.

    Args:
        section: The section.
        compute: Function that computes a section.
        left_out: A line is appended for each run that is left out.
    """
    try:
        return compute(section)
    except Exception:  # foreign runs may hold any number and any text
        # Computed alone, an odd run fails as well, in most cases.
        sound = []
        for group in section.groups:
            runs = []
            for run in group.runs:
                try:
                    compute(Section((replace(group, runs=(run,)),)))
                except Exception as error:
                    left_out.append(LeftOut(run, f"it cannot be compared: {one_line(error)}"))
                else:
                    runs.append(run)
            if runs:
                sound.append(replace(group, runs=tuple(runs)))
    if not sound:
        return None

    try:
        return compute(Section(tuple(sound)))
    except Exception as error:
        for group in sound:
            for run in group.runs:
                left_out.append(LeftOut(run, f"its section cannot be compared: {one_line(error)}"))
        return None


def metric_of(section: Section) -> str:
    """Return the default metric to compare groups by.

    It is the metric of the experiment's expectation, also if overrides change the experiment; else
    success; else the return.
    """
    if section.expected is not None:
        return section.expected.metric
    # An ablation is measured by the metric of its experiment, although nothing is expected of it.
    declared = Expected.from_params(section.base.runs[-1].params)
    if declared is not None and declared.metric in section.base.evaluated:
        return declared.metric
    has_success = any("success_mean" in group.evaluated for group in section.groups)
    return "success_mean" if has_success else "return_mean"


def _section_result(
    section: Section,
    metric: str,
    *,
    prefix: str,
    thresholds: Sequence[float],
    resampling: Resampling,
    artifact: Artifact,
    problems: list[RunProblem],
) -> SectionResult:
    """Compute a section; artifacts that cannot be read are appended to ``problems``."""
    levels = thresholds_for(metric, thresholds, section.expected)
    results = []
    diagnoses = {}
    for group in section.groups:
        finals = {}
        for name in (metric, "success_mean", "return_mean"):
            finals[name] = final(group, name, resampling)
        diagnoses[group.letter] = read_diagnoses(group, artifact, problems)
        result = GroupResult(
            group=group,
            finals=finals,
            costs=costs_of(group),
            crossings=[crossings(group, metric, level) for level in levels],
            comparison=compare_with_base(section.base, group, metric, resampling),
            video=read_video(_best_first(group, metric), artifact, problems),
        )
        results.append(result)

    return SectionResult(
        section=section,
        metric=metric,
        results=results,
        learning=learning_plots(section, metric, prefix, resampling),
        training=training_plots(section, prefix, resampling),
        trials=trial_plots(section, prefix, resampling),
        memory=memory_plots(section, prefix, resampling, diagnoses),
        verdict=_verdict(section, resampling),
    )


def costs_of(group: Group) -> dict[str, float | None]:
    """Return costs up to the last evaluation, mean over the seeds that logged them.

    None for a cost that no run logged.
    """
    means: dict[str, float | None] = {}
    for name, values in group.metrics.costs().items():
        known = values.dropna().to_numpy()
        # NumPy's mean: that of pandas may add in another order and differ in the last digit.
        means[str(name)] = float(known.mean()) if len(known) else None
    return means


def _best_first(group: Group, metric: str) -> list[RunHistory]:
    """Return the runs by their last evaluation, the best first and unknown ones last."""
    values = group.metrics.last_of([f"eval/{metric}"]).iloc[:, 0]
    # Stable and with NaN last: equal runs stay in the order of their seeds.
    order = values.sort_values(ascending=less_is_better(metric), kind="stable").index
    return [group.runs[position] for position in order]


def _verdict(section: Section, resampling: Resampling) -> Verdict | None:
    """Judge the mean over seeds of the section's base group; None without an expectation."""
    expected = section.expected
    if expected is None:
        return None
    reached = final(section.base, expected.metric, resampling)
    if reached is None:
        return Verdict(section.title, expected)
    return Verdict(
        section.title,
        expected,
        outcome=expected.judge(reached.mean),
        mean=reached.mean,
        num_seeds=len(reached.values),
        ends=reached.over_seeds,
        method=reached.method,
    )


def unmeasured(sections: Sequence[Section], left_out: Sequence[LeftOut]) -> list[Verdict]:
    """Return verdicts of experiments of which runs were started, but none counts."""
    measured = set()
    for section in sections:
        for group in section.groups:
            if group.expected is not None:
                measured.add(group.section_key)

    verdicts: dict[tuple[object, ...], Verdict] = {}
    for entry in left_out:
        if entry.run.problem:
            continue  # its experiment is not known
        group = Group("", "", (entry.run,))
        if group.section_key not in measured and group.expected is not None:
            verdicts[group.section_key] = Verdict(group.title, group.expected)
    return list(verdicts.values())


def falls_short(verdicts: Sequence[Verdict]) -> bool:
    """Return True if an experiment has a worse result than expected, or was not measured."""
    for verdict in verdicts:
        worse = "above" if less_is_better(verdict.expected.metric) else "below"
        if verdict.outcome in (worse, UNKNOWN):
            return True
    return False
