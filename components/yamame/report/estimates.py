"""The numbers of a report: last evaluations of a group, threshold crossings, comparisons.

An interval over seeds takes whole runs as its observations: Student's t (Welch's for a difference)
with fewer than ten of them, a bootstrap from ten on, and no interval for a single run or if all
runs have the same value. An interval over episodes describes how precisely the held-out tasks of
these runs were measured. It says nothing about other seeds.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from yamame.evaluation.intervals import Interval, Method, Resampling, with_width
from yamame.report.aggregate import (
    Estimate,
    aggregate,
    difference_of_means,
    probability_of_improvement,
)
from yamame.report.expected import Expected
from yamame.report.groups import Group
from yamame.report.settings import Difference, differences

Unit = Literal["episodes", "tasks"]


def less_is_better(metric: str) -> bool:
    """Return True if smaller values of a metric are better, such as the length of an episode.

    >>> less_is_better("length_mean"), less_is_better("success_mean")
    (True, False)
    """
    return metric.startswith("length")


def is_share(metric: str) -> bool:
    """Return True if a metric lies between 0 and 1.

    >>> is_share("success_mean"), is_share("return_mean")
    (True, False)
    """
    return metric.startswith("success")


class Final(NamedTuple):
    """A metric of the last evaluation.

    Attributes:
        values: Seed to value, for the runs with a finite value.
        mean: Mean of the values.
        over_seeds: Interval over seeds; None with fewer than two runs, or if their values are
            equal.
        over_episodes: Interval over episodes (or tasks, see ``unit``); None if evaluations logged
            no interval, or if the outcomes of all episodes are equal.
        method: Method of the interval over seeds; None without one.
        unit: Observations of ``over_episodes``: ``episodes``, or ``tasks`` if evaluations repeat
            tasks.
    """

    values: dict[str, float]
    mean: float
    over_seeds: Interval | None
    over_episodes: Interval | None
    method: Method | None = None
    unit: Unit = "episodes"


def last_values(group: Group, metric: str) -> dict[str, float]:
    """Return seed to value of the last evaluation, for the runs with a finite value."""
    last = group.metrics.last_of([f"eval/{metric}"]).iloc[:, 0]
    return last.set_axis(group.seeds).dropna().to_dict()


def final(group: Group, metric: str, resampling: Resampling) -> Final | None:
    """Summarise the last evaluations of a group; None if no run has a finite value."""
    values = last_values(group, metric)
    if not values:
        return None
    scores = np.array(list(values.values()))[:, None]  # [runs, tasks] with one task
    mean = aggregate(scores, statistic="mean", resampling=resampling)
    ends = mean.ends
    # Student's interval does not know that a share lies between 0 and 1.
    if ends is not None and is_share(metric):
        ends = max(ends[0], 0.0), min(ends[1], 1.0)
    over_episodes = _over_episodes(group, metric)
    unit = interval_unit(group)
    return Final(values, mean.value, ends, over_episodes, mean.method, unit)


def interval_unit(group: Group) -> Unit:
    """Return the observations of the intervals that evaluations have logged."""
    over_tasks = group.metrics.last_of(["eval/intervals_over_tasks"]).fillna(0.0)
    return "tasks" if over_tasks.to_numpy().any() else "episodes"


def _over_episodes(group: Group, metric: str) -> Interval | None:
    stem = metric.removesuffix("_mean")
    if metric == stem:
        return None
    names = [f"eval/{metric}", f"eval/{stem}_low", f"eval/{stem}_high"]
    logged = group.metrics.last_of(names)
    logged = logged[logged[f"eval/{metric}"].notna()]
    if logged.isna().to_numpy().any():
        return None

    _, lows, highs = logged.to_numpy().T
    # Runs of a group are evaluated on the same tasks in the same order, so the error due to their
    # choice does not average out over runs.
    return with_width(float(lows.mean()), float(highs.mean()))


class Crossings(NamedTuple):
    """First crossings of a threshold, on straight lines between evaluations.

    Attributes:
        threshold: The threshold.
        runs: One row per run. ``crossed``: whether it crossed the threshold; ``env_steps`` and
            ``cpu_s``: where, NaN if it did not or if the cost was not logged; ``is_bound``: whether
            it had crossed it by its first evaluation, so that these are upper bounds.
    """

    threshold: float
    runs: pd.DataFrame

    @property
    def num_runs(self) -> int:
        """Number of all runs."""
        return len(self.runs)

    @property
    def env_steps(self) -> list[float]:
        """Environment steps of the runs that crossed the threshold."""
        return self.runs.loc[self.runs["crossed"], "env_steps"].tolist()

    @property
    def cpu_s(self) -> list[float]:
        """CPU seconds of the runs that crossed the threshold."""
        return self.runs.loc[self.runs["crossed"], "cpu_s"].tolist()

    def median(self) -> tuple[float, float]:
        """Return median steps and CPU seconds over all runs.

        A run that did not cross the threshold counts as infinite.
        """
        never = [np.inf] * (self.num_runs - len(self.env_steps))
        env_steps = np.median([*self.env_steps, *never])
        cpu_s = np.median([*self.cpu_s, *never])
        return float(env_steps), float(cpu_s)


def crossings(group: Group, metric: str, threshold: float) -> Crossings:
    """Find where the runs of a group first crossed a threshold.

    A run that reaches it in its first evaluation crosses it there.
    """
    points = group.metrics.points(f"eval/{metric}")
    for cost in ("env_steps", "cpu_s"):
        logged = group.metrics.points(f"cost/{cost}").rename(columns={"value": cost})
        points = points.merge(logged, on=["run", "step"], how="left")
    counts_env_steps = points["run"].map(group.metrics.axes) == "env_steps"
    points["env_steps"] = points["env_steps"].mask(counts_env_steps, points["step"])

    # Each row gets the evaluation before it; NaN for the first of a run.
    before = points.groupby("run")[["value", "env_steps", "cpu_s"]].shift()
    sign = -1 if less_is_better(metric) else 1
    reached = sign * points["value"] >= sign * threshold
    first = points[reached].drop_duplicates("run", keep="first")
    before = before.loc[first.index]

    share = (threshold - before["value"]) / (first["value"] - before["value"])
    at_evaluation = (share == 1.0) | before["value"].isna()
    found = pd.DataFrame({"run": first["run"]})
    for cost in ("env_steps", "cpu_s"):
        # Not interpolated at an evaluation: before it, the cost may not have been logged.
        between = before[cost] + share * (first[cost] - before[cost])
        found[cost] = first[cost].where(at_evaluation, between)

    # A run that never crossed gets a row, too.
    runs = found.set_index("run").reindex(range(len(group.runs)))
    runs["crossed"] = runs.index.isin(found["run"])
    runs["is_bound"] = runs.index.isin(found.loc[before["value"].isna(), "run"])
    return Crossings(threshold, runs)


def thresholds_for(
    metric: str, fractions: Sequence[float], expected: Expected | None
) -> list[float]:
    """Return the thresholds whose first crossing is reported, ascending.

    They are fractions of 1 for a success rate, else fractions of the lower end of the expected
    interval if that is positive. The lower end itself is always included. For metrics where less is
    better, the only threshold is the upper end.
    """
    low, high = -np.inf, np.inf
    if expected is not None and expected.metric == metric:
        low, high = expected.interval
    if less_is_better(metric):
        return [high] if np.isfinite(high) else []

    whole = 1.0 if is_share(metric) else low
    values: set[float] = set()
    if 0 < whole < np.inf:
        values.update(fraction * whole for fraction in fractions)
    if np.isfinite(low):
        values.add(low)
    return sorted(values)


class Comparison(NamedTuple):
    """A group in comparison with the base of its section.

    Attributes:
        differing: Parameters that differ.
        difference: Mean of the group minus mean of the base.
        base_better: Probability that a run of the base does better.
    """

    differing: list[Difference]
    difference: Estimate
    base_better: Estimate


def compare_with_base(
    base: Group, group: Group, metric: str, resampling: Resampling
) -> Comparison | None:
    """Compare the last values of a metric with those of the base.

    Returns:
        None for the base itself, and if one of the two has no finite value.
    """
    ours = np.array(list(last_values(group, metric).values()))
    theirs = np.array(list(last_values(base, metric).values()))
    if group is base or not len(ours) or not len(theirs):
        return None
    difference = difference_of_means(ours, theirs, resampling=resampling)
    # Probability of improvement takes larger scores as better.
    sign = -1.0 if less_is_better(metric) else 1.0
    base_better = probability_of_improvement(
        sign * theirs[:, None], sign * ours[:, None], resampling=resampling
    )
    return Comparison(differences(base.settings, group.settings), difference, base_better)
