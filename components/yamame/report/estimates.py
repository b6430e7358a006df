"""The numbers of a report: what a group reached in the end, when, and how it compares with the
base.

An interval over seeds takes whole runs as its observations: Student's t (Welch's for a difference)
with fewer than ten of them, a bootstrap from there on, and none with one or if all runs have the
same value. An interval over episodes says how well the held-out tasks of these very runs were
measured, nothing of other seeds.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from yamame.evaluation.intervals import Interval, Method, Resampling, wilson_interval, with_width
from yamame.report.aggregate import (
    Estimate,
    aggregate,
    difference_of_means,
    probability_of_improvement,
)
from yamame.report.expected import Expected
from yamame.report.groups import Group
from yamame.report.settings import Difference, differences
from yamame.tracking.history import RunHistory


def less_is_better(metric: str) -> bool:
    """Whether the smaller value of a metric is the better one, as of the length of an episode.

    >>> less_is_better("length_mean"), less_is_better("success_mean")
    (True, False)
    """
    return metric.startswith("length")


def is_share(metric: str) -> bool:
    """Whether a metric lies between 0 and 1.

    >>> is_share("success_mean"), is_share("return_mean")
    (True, False)
    """
    return metric.startswith("success")


class Final(NamedTuple):
    """A metric of the last evaluation.

    Attributes:
        values: Seed to value, for the runs that have a finite one.
        mean: Their mean.
        over_seeds: Its interval, None with fewer than two runs, or if their values are equal.
        over_episodes: Its interval, None if evaluations logged none, or if the outcomes of all
            episodes are equal.
        method: How the interval over seeds was made, None where there is none.
    """

    values: dict[str, float]
    mean: float
    over_seeds: Interval | None
    over_episodes: Interval | None
    method: Method | None = None


def last_values(group: Group, metric: str) -> dict[str, float]:
    """Seed to value in the last evaluation, for the runs that have a finite one."""
    return {
        run.seed: value for run in group.runs if (value := run.last(f"eval/{metric}")) is not None
    }


def final(group: Group, metric: str, resampling: Resampling) -> Final | None:
    """The end of a group's runs; None where no run has a finite value."""
    values = last_values(group, metric)
    if not values:
        return None
    mean = aggregate(
        [[value] for value in values.values()], statistic="mean", resampling=resampling
    )
    runs = [run for run in group.runs if run.seed in values]
    ends = mean.ends
    if ends is not None and is_share(metric):
        ends = max(ends[0], 0.0), min(ends[1], 1.0)
    return Final(
        values, mean.value, ends, _over_episodes(runs, metric, resampling.confidence), mean.method
    )


def _over_episodes(runs: Sequence[RunHistory], metric: str, confidence: float) -> Interval | None:
    stem = metric.removesuffix("_mean")
    names = [f"eval/{metric}", f"eval/{stem}_low", f"eval/{stem}_high", "eval/num_episodes"]
    logged = [[run.last(name) for name in names] for run in runs]
    if metric == stem or any(None in values for values in logged):
        return None
    means, lows, highs, episodes = np.array(logged, float).T
    if any(run.last("eval/intervals_over_tasks") for run in runs):
        # Runs of a group play the same tasks, so the errors that these few tasks make do not
        # average out over runs.
        return with_width(float(lows.mean()), float(highs.mean()))
    if stem == "success":
        successes = int(np.rint(means * episodes).sum())
        return wilson_interval(successes, int(episodes.sum()), confidence=confidence)
    # Runs are independent: the half-widths of their means add up in squares.
    below, above = (
        np.sqrt(np.square(side).sum()) / len(runs) for side in (means - lows, highs - means)
    )
    return with_width(float(means.mean() - below), float(means.mean() + above))


class Passed(NamedTuple):
    """When the runs of a group first crossed a threshold, on a straight line from one evaluation to
    the next.

    Attributes:
        threshold: The threshold.
        env_steps: Environment steps, one per run that did, NaN where they were not logged.
        cpu_s: CPU seconds, NaN where they were not logged.
        num_runs: Runs in all.
    """

    threshold: float
    env_steps: list[float]
    cpu_s: list[float]
    num_runs: int

    def median(self) -> tuple[float, float]:
        """Median steps and CPU seconds over all runs; infinite where half of them or more never
        did.
        """
        missing = [np.inf] * (self.num_runs - len(self.env_steps))
        return float(np.median([*self.env_steps, *missing])), float(
            np.median([*self.cpu_s, *missing])
        )


def passed(group: Group, metric: str, threshold: float) -> Passed:
    """When a group first crossed a threshold; a run whose first evaluation reaches it, at that
    evaluation.
    """
    sign = -1 if less_is_better(metric) else 1
    steps, cpu = [], []
    for run in group.runs:
        places, values = run.along(f"eval/{metric}", run.axis)
        reached = np.flatnonzero(sign * values >= sign * threshold)
        if len(reached):
            before, after = max(int(reached[0]) - 1, 0), int(reached[0])
            rise = values[after] - values[before]
            share = float((threshold - values[before]) / rise) if rise else 1.0
            ends = float(places[before]), float(places[after])
            logged = [run.at("cost/env_steps", step) for step in ends]
            steps.append(_between(ends if run.axis == "env_steps" else logged, share))
            cpu.append(_between([run.at("cost/cpu_s", step) for step in ends], share))
    return Passed(threshold, steps, cpu, len(group.runs))


def _between(ends: Sequence[float], share: float) -> float:
    """A place between two others; the second alone where all of the way is gone."""
    before, after = ends
    return after if share == 1.0 else before + share * (after - before)


def thresholds_for(
    metric: str, fractions: Sequence[float], expected: Expected | None
) -> list[float]:
    """The values whose first crossing is of interest, ascending.

    They are fractions of 1 for a success rate, else of the lower end of what is expected where that
    is positive. The lower end itself is always one. Where less is better, it is the upper end
    alone.
    """
    if less_is_better(metric):
        high = (
            expected.interval[1] if expected is not None and expected.metric == metric else np.inf
        )
        return [high] if np.isfinite(high) else []
    low = expected.interval[0] if expected is not None and expected.metric == metric else -np.inf
    whole = 1.0 if is_share(metric) else low
    values = {fraction * whole for fraction in fractions} if 0 < whole < np.inf else set()
    return sorted(values | ({low} if np.isfinite(low) else set()))


class Comparison(NamedTuple):
    """A group beside the base of its section.

    Attributes:
        differing: The parameters that differ.
        difference: Mean of the group minus mean of the base.
        base_better: Probability that a run of the base does better.
    """

    differing: list[Difference]
    difference: Estimate
    base_better: Estimate


def compare(base: Group, group: Group, metric: str, resampling: Resampling) -> Comparison | None:
    """Compares a group with the base by the last values of a metric; None for the base, and where
    one has none.
    """
    a, b = (np.array(list(last_values(each, metric).values())) for each in (group, base))
    if group is base or not len(a) or not len(b):
        return None
    sign = -1.0 if less_is_better(metric) else 1.0
    difference = difference_of_means(a, b, resampling=resampling)
    better = probability_of_improvement(sign * b[:, None], sign * a[:, None], resampling=resampling)
    return Comparison(differences(base.settings, group.settings), difference, better)
