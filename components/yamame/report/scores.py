"""Scores of runs on the tasks of a suite, between random actions and the best known result.

A score is ``(metric - random) / (best - random)``, at least 0 and at most 1. Scores of a task are
averaged over its seeds, then over tasks. The mean has two intervals: one over tasks, for how far
other tasks of this kind may lie from these (it resamples the means of tasks, so it contains the
spread between seeds), and one over seeds, for how far other seeds may lie on the same tasks.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import numpy as np

from yamame.checks import UsageError, require
from yamame.evaluation.intervals import Array, Resampling
from yamame.files.atomic import atomic_writer
from yamame.files.paths import read_regular
from yamame.report.aggregate import Estimate, aggregate
from yamame.report.csv_files import csv_bytes, unguarded
from yamame.report.page import interval, number, signed

ALL_BUDGETS = "all"
"""Label of the mean over all budgets of a suite."""
_LARGEST_FILE = 2**26


@dataclass(frozen=True)
class Anchors:
    """Results of a metric that score 0 and 1.

    Args:
        random: Result of uniform random actions.
        best: Best known result; below ``random`` if less is better.

    Raises:
        ArgumentError: They are equal or not finite.

    >>> Anchors(random=-0.5, best=1.0).score(0.25), Anchors(random=100.0, best=20.0).score(10.0)
    (0.5, 1.0)
    """

    random: float
    best: float

    def __post_init__(self) -> None:
        holds = math.isfinite(self.best - self.random) and self.best != self.random
        require("Anchors", "best", self.best, holds, f"be finite and not random={self.random}")

    def score(self, value: float) -> float:
        """Return the score of a result, in [0, 1]."""
        share = (value - self.random) / (self.best - self.random)
        return min(1.0, max(0.0, share))


@dataclass(frozen=True)
class ScoredRun:
    """Result of a run, a row of the CSV file of a suite.

    Attributes:
        suite: Title of the suite in lower case.
        task: Name of the task.
        seed: Seed of the run.
        budget: Limit in CPU-seconds; None without one.
        metric: Metric of evaluations.
        value: The metric in the last evaluation.
        score: Its score; None for a task without anchors.
        env_steps, updates, cpu_s: Costs of the run.
        best: The metric in the best evaluation; None in files of earlier versions.
    """

    suite: str
    task: str
    seed: int
    budget: float | None
    metric: str
    value: float
    score: float | None
    env_steps: int
    updates: int
    cpu_s: float
    best: float | None = None


@dataclass(frozen=True)
class Mean:
    """Mean score over tasks.

    Attributes:
        budget: Limit in CPU-seconds, or `ALL_BUDGETS`.
        num_tasks: Number of tasks.
        over_tasks: Mean with its interval over tasks.
        over_seeds: Mean with its interval over seeds; without ends if tasks differ in their number
            of seeds.
    """

    budget: str
    num_tasks: int
    over_tasks: Estimate
    over_seeds: Estimate


@dataclass(frozen=True)
class Difference:
    """Mean scores minus those of a baseline, paired by task.

    Attributes:
        budget: Limit in CPU-seconds, or `ALL_BUDGETS`.
        tasks: Differences by task.
        mean: Their mean with its interval over tasks.
    """

    budget: str
    tasks: dict[str, float]
    mean: Estimate


def budget_label(budget: float | None) -> str:
    """Format a limit in CPU-seconds.

    >>> budget_label(60.0), budget_label(None)
    ('60 CPU-s', '')
    """
    return "" if budget is None else f"{budget:g} CPU-s"


def write_scores(path: Path, runs: Sequence[ScoredRun]) -> None:
    """Write the CSV file of runs, atomically."""
    columns = [field.name for field in fields(ScoredRun)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(path) as file:
        file.write(csv_bytes(columns, [astuple(run) for run in runs]))


def read_scores(path: Path) -> list[ScoredRun]:
    """Read a file of `write_scores`.

    Raises:
        UsageError: There is no such file, or a row is not of a scored run.
    """
    try:
        text = read_regular(path, most=_LARGEST_FILE).decode()
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", key="baseline") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} must be UTF-8 text", key="baseline") from error
    runs = []
    for line, row in enumerate(csv.DictReader(io.StringIO(text)), start=2):
        try:
            runs.append(_run_of(row))
        except (KeyError, ValueError, AttributeError) as error:
            message = f"line {line} of {path} must be a run of a suite"
            remedy = "name a file that leaderboard.py has written"
            raise UsageError(message, key="baseline", remedy=remedy) from error
    return runs


def _run_of(row: Mapping[str, str]) -> ScoredRun:
    value = float(row["value"])
    cpu_s = float(row["cpu_s"])
    if not math.isfinite(value + cpu_s):
        raise ValueError(value)
    return ScoredRun(
        suite=unguarded(row["suite"]),
        task=unguarded(row["task"]),
        seed=int(row["seed"]),
        budget=float(row["budget"]) if row["budget"] else None,
        metric=unguarded(row["metric"]),
        value=value,
        score=float(row["score"]) if row["score"] else None,
        env_steps=int(row["env_steps"]),
        updates=int(row["updates"]),
        cpu_s=cpu_s,
        best=float(row["best"]) if row.get("best") else None,
    )


def rescored(
    runs: Sequence[ScoredRun], suite: str, anchors: Mapping[str, tuple[str, Anchors]]
) -> list[ScoredRun]:
    """Return the runs of a suite with scores by its present anchors, which may have changed.

    Args:
        runs: Runs of any suites.
        suite: Title of the suite in lower case.
        anchors: Metric and anchors by task. Runs of other tasks or metrics are left out.
    """
    kept = []
    for run in runs:
        metric, ends = anchors.get(run.task, ("", None))
        if run.suite == suite and ends is not None and run.metric == metric:
            kept.append(replace(run, score=ends.score(run.value)))
    return kept


def mean_scores(runs: Sequence[ScoredRun], resampling: Resampling) -> list[Mean]:
    """Compute the mean score of every budget, and with several budgets that of all.

    Runs without a score are left out.

    Args:
        runs: Runs of one suite.
        resampling: Settings of intervals.
    """
    means = []
    for budget, tasks in _by_budget(runs).items():
        task_means = [float(np.mean(list(scores.values()))) for scores in tasks.values()]
        over_tasks = _over(task_means, resampling)
        seeds = {frozenset(scores) for scores in tasks.values()}
        over_seeds = Estimate(over_tasks.value, None, None)
        if len(seeds) == 1:
            columns = [[scores[seed] for seed in sorted(scores)] for scores in tasks.values()]
            over_seeds = aggregate(np.array(columns).T, statistic="mean", resampling=resampling)
        means.append(Mean(budget, len(tasks), over_tasks, over_seeds))
    return means


def differences(
    runs: Sequence[ScoredRun], baseline: Sequence[ScoredRun], resampling: Resampling
) -> list[Difference]:
    """Compare the mean scores of two settings, paired by task.

    Only tasks and budgets that both have count.

    Args:
        runs: Runs of one setting.
        baseline: Runs of the other, of the same suite, scored by the same anchors.
        resampling: Settings of intervals.
    """
    pairs = {(run.task, run.budget) for run in runs} & {(run.task, run.budget) for run in baseline}
    ours = _by_budget([run for run in runs if (run.task, run.budget) in pairs])
    theirs = _by_budget([run for run in baseline if (run.task, run.budget) in pairs])
    found = []
    for budget, tasks in ours.items():
        by_task = {}
        for task, scores in tasks.items():
            # Of all budgets, a task counts only where both settings have run each of them.
            other = theirs.get(budget, {}).get(task)
            if other is not None:
                difference = np.mean(list(scores.values())) - np.mean(list(other.values()))
                by_task[task] = float(difference)
        if by_task:
            found.append(Difference(budget, by_task, _over(list(by_task.values()), resampling)))
    return found


def _by_budget(runs: Sequence[ScoredRun]) -> dict[str, dict[str, dict[int, float]]]:
    """Return scores by budget, task and seed; with several budgets also their means, as "all"."""
    tables: dict[str, dict[str, dict[int, float]]] = {}
    joined: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        if run.score is None:
            continue
        table = tables.setdefault(budget_label(run.budget), {})
        table.setdefault(run.task, {})[run.seed] = run.score
        joined.setdefault(run.task, {}).setdefault(run.seed, []).append(run.score)
    if len(tables) > 1:
        tables[ALL_BUDGETS] = {}
        for task, seeds in joined.items():
            # A task or a seed that lacks a budget would be judged by the others alone.
            complete = {s: float(np.mean(v)) for s, v in seeds.items() if len(v) == len(tables) - 1}
            if complete:
                tables[ALL_BUDGETS][task] = complete
        if not tables[ALL_BUDGETS]:
            del tables[ALL_BUDGETS]
    return tables


def _over(values: Sequence[float], resampling: Resampling) -> Estimate:
    """Return the mean of values, each one observation, with its interval."""
    column: Array = np.array(values, np.float64)[:, None]
    return aggregate(column, statistic="mean", resampling=resampling)


def run_rows(runs: Sequence[ScoredRun]) -> list[dict[str, str]]:
    """Return a line for every task and budget: seeds, metric at the end, mean score."""
    groups: dict[tuple[str, float | None], list[ScoredRun]] = {}
    for run in runs:
        groups.setdefault((run.task, run.budget), []).append(run)
    rows = []
    for (task, budget), group in groups.items():
        scores = [run.score for run in group if run.score is not None]
        row = {"task": task}
        if budget is not None:
            row["budget"] = budget_label(budget)
        row["seeds"] = ", ".join(str(run.seed) for run in group)
        row["metric"] = group[0].metric
        row["at the end"] = ", ".join(number(run.value) for run in group)
        row["score"] = number(float(np.mean(scores))) if scores else ""
        rows.append(row)
    return rows


def mean_rows(means: Sequence[Mean]) -> list[dict[str, str]]:
    """Return a line for every budget: the mean score and its intervals."""
    rows = []
    for mean in means:
        row = {"score": number(mean.over_tasks.value), "tasks": str(mean.num_tasks)}
        if mean.budget:
            row["budget"] = mean.budget
        row["over tasks"] = _interval(mean.over_tasks)
        row["over seeds"] = _interval(mean.over_seeds)
        rows.append(row)
    return rows


def difference_rows(found: Sequence[Difference]) -> list[dict[str, str]]:
    """Return a line for every task, with a column for every budget, and one for their mean."""
    rows: dict[str, dict[str, str]] = {}
    for difference in found:
        column = difference.budget or "difference"
        for task, value in difference.tasks.items():
            rows.setdefault(task, {"task": task})[column] = signed(value)
    for name in ("mean", "over tasks"):
        rows[name] = {"task": name}
    for difference in found:
        column = difference.budget or "difference"
        rows["mean"][column] = signed(difference.mean.value)
        rows["over tasks"][column] = _interval(difference.mean)
    return list(rows.values())


def _interval(estimate: Estimate) -> str:
    return (
        interval(estimate.ends)
        if estimate.ends is None
        else (f"{interval(estimate.ends)} {estimate.method}")
    )
