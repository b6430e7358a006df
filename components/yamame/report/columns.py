"""Columns of marked tables that are computed from runs."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from yamame.evaluation.intervals import Interval, Resampling
from yamame.report.aggregate import aggregate
from yamame.report.content import costs_of
from yamame.report.estimates import (
    Crossings,
    compare_with_base,
    crossings,
    final,
    last_values,
    less_is_better,
)
from yamame.report.groups import Group
from yamame.report.page import interval, number, seconds, signed

_PUBLISHED = re.compile(r"(-?\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?")
_MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class RowRuns:
    """Runs of a row of a table, and what its cells are computed with.

    Attributes:
        group: Runs of the row.
        base: Runs that they are compared with.
        metric: Metric of evaluations, without ``eval/``.
        mark: Threshold of ``reached after``; None without one.
        resampling: Settings of intervals.
        published: Cell with the published number.
        seeds: Seeds that the table should have; empty for those of the group.
    """

    group: Group
    base: Group
    metric: str
    mark: float | None
    resampling: Resampling
    published: str = ""
    seeds: Sequence[str] = ()


def lacking_seeds(row: RowRuns, group: Group) -> str:
    """Return how many of the wanted seeds a group has measured, such as "2 of 3 seeds".

    Empty if it has all of them. Without wanted seeds these are all seeds of the group.
    """
    wanted = set(row.seeds or group.seeds)
    measured = set(last_values(group, row.metric))
    if wanted <= measured:
        return ""
    return f"{len(wanted & measured)} of {len(wanted)} seeds"


def _seeds(row: RowRuns) -> str:
    return ", ".join(row.group.seeds)


def _last(row: RowRuns) -> str:
    values = row.group.metrics.last_of([f"eval/{row.metric}"]).iloc[:, 0]
    return ", ".join(map(number, values))


def _best_evaluations(row: RowRuns) -> pd.DataFrame:
    """Return the best evaluation of every run: columns ``run``, ``step`` and ``value``."""
    points = row.group.metrics.points(f"eval/{row.metric}")
    # Stable, so that the first of equal evaluations counts.
    best = points.sort_values("value", ascending=less_is_better(row.metric), kind="stable")
    return best.drop_duplicates("run").sort_values("run")


def _best(row: RowRuns) -> str:
    return ", ".join(map(number, _best_evaluations(row)["value"]))


def _verdict(row: RowRuns) -> str:
    """Compare the interval of the best evaluations with a published number and twice its deviation.

    A published number stands for all numbers that are rounded to it.

    The interval is over seeds. With one seed, or if all seeds are equal, it is over the episodes of
    the best evaluations, which does not include the noise between trainings. The verdict of one
    seed is marked.
    """
    match = _PUBLISHED.fullmatch(row.published.replace(_MINUS, "-"))
    best = _best_evaluations(row)
    if match is None or best.empty:
        return ""
    scores = best[["value"]].to_numpy()  # [runs, tasks] with one task
    mean = aggregate(scores, statistic="mean", resampling=row.resampling)
    low, high = mean.ends or _over_best_episodes(row, best)

    published = float(match[1])
    deviation = float(match[2] or 0.0)
    decimals = match[1].partition(".")[2]
    rounding = 0.5 * 10.0 ** -len(decimals)
    # Two deviations: 95 % of the published runs.
    tolerance = 2 * deviation + rounding
    is_above = low > published + tolerance
    is_below = high < published - tolerance
    if less_is_better(row.metric):
        is_above, is_below = is_below, is_above
    verdict = "within"
    if is_above:
        verdict = "above"
    elif is_below:
        verdict = "below"
    return verdict if len(best) > 1 else f"{verdict} (one seed)"


def _over_best_episodes(row: RowRuns, best: pd.DataFrame) -> Interval:
    """Return the widest interval over episodes of the best evaluations of several seeds.

    Their values count as intervals if evaluations logged none.
    """
    stem = row.metric.removesuffix("_mean")
    for end in ("low", "high"):
        logged = row.group.metrics.points(f"eval/{stem}_{end}").rename(columns={"value": end})
        best = best.merge(logged, on=["run", "step"], how="left")
        # An evaluation without an interval counts as certain.
        best[end] = best[end].fillna(best["value"])
    return float(best["low"].min()), float(best["high"].max())


def _mean(row: RowRuns) -> str:
    """Return the mean of the last evaluations, with its interval over seeds.

    If several seeds do not differ, the interval is over episodes or tasks.
    """
    end = final(row.group, row.metric, row.resampling)
    if end is None:
        return number(None)
    if end.over_seeds is not None:
        return f"{number(end.mean)} {interval(end.over_seeds)} {end.method}"
    # A single seed has no interval in tables: one over episodes would look like one over seeds.
    if len(end.values) > 1 and end.over_episodes is not None:
        return f"{number(end.mean)} {interval(end.over_episodes)} {end.unit}"
    return number(end.mean)


def _difference(row: RowRuns) -> str:
    comparison = compare_with_base(row.base, row.group, row.metric, row.resampling)
    if comparison is None:
        return ""
    difference = comparison.difference
    parts = [signed(difference.value)]
    if difference.ends is not None:
        parts += [interval(difference.ends), str(difference.method)]
    lacking = lacking_seeds(row, row.base)
    if lacking:
        parts.append(f"(base: {lacking})")
    return " ".join(parts)


def _crossings(row: RowRuns) -> Crossings | None:
    return None if row.mark is None else crossings(row.group, row.metric, row.mark)


def _reached_after(row: RowRuns, cost: str, text_of: Callable[[float], str]) -> str:
    """Return the cost of the first crossing of every seed, after ``≤`` if it is an upper bound."""
    found = _crossings(row)
    if found is None:
        return ""
    cells = []
    for run in found.runs.to_dict("records"):
        value = run[cost]
        # A cost that was not logged has no bound either.
        bound = "≤" if run["is_bound"] and not math.isnan(value) else ""
        cells.append(bound + text_of(value) if run["crossed"] else "never")
    return ", ".join(cells)


def _reached_after_cpu_s(row: RowRuns) -> str:
    return _reached_after(row, "cpu_s", seconds)


def _reached_after_steps(row: RowRuns) -> str:
    return _reached_after(row, "env_steps", "{:,.0f}".format)


def _per_attempt(row: RowRuns) -> str:
    """Return the mean over seeds of the return of every trial that all seeds have had."""
    means: list[float] = []
    while True:
        last = row.group.metrics.last_of([f"eval/return_mean_trial_{len(means)}"]).iloc[:, 0]
        # Episodes of one seed may have had fewer trials than those of another.
        if last.isna().any():
            return ", ".join(map(number, means))
        means.append(float(last.to_numpy().mean()))


def _budget(row: RowRuns) -> str:
    """Return the limits that ended the runs when they were last started."""
    limits = []
    for key, unit in (("env_steps", "steps"), ("updates", "updates"), ("minutes", "min")):
        value = row.group.settings.get(f"budget.{key}", "None")
        if value != "None":
            limits.append(f"{float(value):,.6g} {unit}")
    return ", ".join(limits)


def _revision(row: RowRuns) -> str:
    return ", ".join(revision[:7] for revision in row.group.revisions)


COLUMNS: dict[str, Callable[[RowRuns], str]] = {
    "seeds": _seeds,
    "at the end": _last,
    "best": _best,
    "verdict": _verdict,
    "per attempt": _per_attempt,
    "mean": _mean,
    "difference": _difference,
    "reached after CPU-s": _reached_after_cpu_s,
    "reached after steps": _reached_after_steps,
    "steps": lambda row: number(costs_of(row.group)["env_steps"]),
    "CPU-s": lambda row: seconds(costs_of(row.group)["cpu_s"]),
    "wall-s": lambda row: seconds(costs_of(row.group)["wall_s"]),
    "budget": _budget,
    "revision": _revision,
}
"""Columns that are written:

* ``seeds``, ``budget``, ``revision`` of the runs;
* ``at the end``, ``best``: last and best evaluation of every seed;
* ``verdict``: best evaluations above, within or below a published number;
* ``per attempt``: returns of the trials of an episode;
* ``mean``, ``difference``: mean of the last evaluations and its difference to the base, with
  intervals;
* ``reached after``: first crossing of the mark by every seed, ``≤`` at its first evaluation;
* ``steps``, ``CPU-s``, ``wall-s``: mean costs.
"""
