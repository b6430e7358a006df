"""What several runs say together: aggregate scores and comparisons, with intervals.

Scores are arrays ``[runs, tasks]``: independent runs (seeds) down, tasks across. The set of tasks is fixed, the runs
are a sample: resampling draws runs anew within every task (stratified bootstrap), so what separates easy from hard
tasks is no uncertainty. With few runs a percentile interval is narrower than it says; report how many there were.

Source: Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice, arXiv 2108.13264.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from yamame.checks import require_choice
from yamame.evaluation.intervals import Array, Resampling

Statistic = Literal["iqm", "mean", "median"]
_DEFAULT = Resampling()


class Estimate(NamedTuple):
    """A number and its interval over runs; without ends where a task has one run, which says nothing of others."""

    value: float
    low: float | None
    high: float | None

    @property
    def ends(self) -> tuple[float, float] | None:
        """Both ends of the interval, where it has one."""
        return None if self.low is None or self.high is None else (self.low, self.high)


def aggregate(
    scores: ArrayLike, *, statistic: Statistic = "iqm", resampling: Resampling = _DEFAULT
) -> Estimate:
    """One number for all runs on all tasks.

    Args:
        scores: ``[runs, tasks]``, finite.
        statistic: ``iqm``, the mean of the middle half of all scores: less sensitive to single runs than the mean,
            more efficient than the median; ``mean``; ``median``, of the tasks' means over runs.
        resampling: How the interval is made.

    Raises:
        ValueError: If the scores are no such array, or there is no such statistic.

    >>> aggregate([[0.0], [1.0], [2.0], [100.0]]).value
    1.5
    """
    require_choice("aggregate", "statistic", statistic, get_args(Statistic))
    from scipy.stats import trim_mean

    def compute(*columns: Array, axis: int) -> Array:
        table = np.stack(columns, -2)  # [*, tasks, runs]
        if statistic == "median":
            return np.asarray(np.median(table.mean(axis), -1))
        scores = table.reshape(*table.shape[:-2], -1)
        return np.asarray(trim_mean(scores, 0.25, axis) if statistic == "iqm" else scores.mean(axis))

    return _estimate(compute, list(_table("aggregate", "scores", scores).T), resampling)


def probability_of_improvement(a: ArrayLike, b: ArrayLike, *, resampling: Resampling = _DEFAULT) -> Estimate:
    """How likely a run of ``a`` does better than a run of ``b`` on the same task; the mean over tasks.

    Equal scores count one half. 0.5 says nothing, 1.0 that every run of ``a`` is better on every task.

    Args:
        a: ``[runs, tasks]``, finite.
        b: ``[runs, tasks]``, finite, of the same tasks; the number of runs may be another.
        resampling: How the interval is made; both groups are resampled.

    Raises:
        ValueError: If the scores are no such arrays.

    >>> probability_of_improvement([[1.0], [3.0]], [[2.0], [2.0]]).value
    0.5
    """
    name = "probability_of_improvement"
    first, second = _table(name, "a", a), _table(name, "b", b)
    tasks = first.shape[1]
    if tasks != second.shape[1]:
        raise ValueError(f"{name}: b must have the {tasks} tasks of a, got {second.shape[1]}")

    def compute(*columns: Array, axis: int) -> Array:
        ours, theirs = np.stack(columns[:tasks]), np.stack(columns[tasks:])  # [tasks, *, runs]
        wins = np.sign(ours[..., :, None] - theirs[..., None, :]).mean((axis - 1, axis))
        return np.asarray(0.5 + 0.5 * wins.mean(0))

    return _estimate(compute, [*first.T, *second.T], resampling)


def difference_of_means(a: ArrayLike, b: ArrayLike, *, resampling: Resampling = _DEFAULT) -> Estimate:
    """The mean of ``a`` minus the mean of ``b``, scores ``[runs]`` of two groups; both are resampled.

    >>> difference_of_means([3.0], [1.0, 2.0])
    Estimate(value=1.5, low=None, high=None)
    """

    def compute(ours: Array, theirs: Array, axis: int) -> Array:
        return np.asarray(ours.mean(axis) - theirs.mean(axis))

    return _estimate(compute, [np.asarray(a, np.float64), np.asarray(b, np.float64)], resampling)


def score_table(tasks: Sequence[str], scores: Sequence[float]) -> tuple[list[str], Array]:
    """Scores of runs as ``[runs, tasks]``, and what the columns are called.

    Args:
        tasks: The task of each run.
        scores: One score per run.

    Raises:
        ValueError: If some tasks have more runs than others.

    >>> names, table = score_table(["maze", "corridor", "maze", "corridor"], [1.0, 2.0, 3.0, 4.0])
    >>> names, table.tolist()
    (['maze', 'corridor'], [[1.0, 2.0], [3.0, 4.0]])
    """
    columns: dict[str, list[float]] = {}
    for task, score in zip(tasks, scores, strict=True):
        columns.setdefault(task, []).append(score)
    counts = [len(column) for column in columns.values()]
    if len(set(counts)) != 1:
        raise ValueError(
            f"score_table: every task must have as many runs, got {counts} of {', '.join(columns)}"
        )
    return list(columns), np.array(list(columns.values()), np.float64).T


def _estimate(statistic: Callable[..., Array], samples: Sequence[Array], resampling: Resampling) -> Estimate:
    value = float(statistic(*samples, axis=-1))
    if min(map(len, samples)) < 2:
        return Estimate(value, None, None)
    low, high = resampling.interval(samples, statistic)
    return Estimate(value, float(low), float(high))


def _table(owner: str, name: str, values: ArrayLike) -> Array:
    table = np.asarray(values, np.float64)
    if table.ndim != 2 or table.size == 0 or not np.isfinite(table).all():
        raise ValueError(
            f"{owner}: {name} must be finite [runs, tasks], got shape {table.shape}, "
            f"{int((~np.isfinite(table)).sum())} not finite"
        )
    return table
