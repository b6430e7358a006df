"""What several runs say together: aggregate scores and comparisons, with intervals.

Scores are arrays ``[runs, tasks]``: independent runs (seeds) down, tasks across. The set of tasks is fixed, the runs
are a sample: resampling draws runs anew within every task (stratified bootstrap), so what separates easy from hard
tasks is no uncertainty. With few runs a percentile interval is narrower than it says; report how many there were.

Source: Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice, arXiv 2108.13264.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from arch.bootstrap import IndependentSamplesBootstrap
from numpy.typing import ArrayLike
from scipy.stats import trim_mean

Statistic = Literal["iqm", "mean", "median"]
Array = npt.NDArray[np.float64]


class Estimate(NamedTuple):
    """A number and its interval."""

    value: float
    low: float
    high: float


def aggregate(
    scores: ArrayLike,
    *,
    statistic: Statistic = "iqm",
    confidence: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """One number for all runs on all tasks.

    Args:
        scores: ``[runs, tasks]``, finite.
        statistic: ``iqm``, the mean of the middle half of all scores: less sensitive to single runs than the mean,
            more efficient than the median; ``mean``; ``median``, of the tasks' means over runs.
        confidence: Coverage of the interval, in (0, 1).
        num_resamples: Number of bootstrap resamples.
        seed: Of a generator of its own.

    Raises:
        ValueError: If the scores are no such array, or a setting is out of its range.

    >>> aggregate([[0.0], [1.0], [2.0], [100.0]]).value
    1.5
    """
    if statistic not in get_args(Statistic):
        names = ", ".join(get_args(Statistic))
        raise ValueError(f"aggregate: statistic must be one of {names}, got {statistic!r}")
    table = _table("aggregate", "scores", scores)
    _check("aggregate", confidence, num_resamples)
    compute = _STATISTICS[statistic]

    def of_tasks(*columns: Array) -> Array:
        return np.array([compute(np.stack(columns, 1))])

    return _interval(of_tasks, list(table.T), confidence, num_resamples, seed)


def probability_of_improvement(
    a: ArrayLike,
    b: ArrayLike,
    *,
    confidence: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """How likely a run of ``a`` does better than a run of ``b`` on the same task; the mean over tasks.

    Equal scores count one half. 0.5 says nothing, 1.0 that every run of ``a`` is better on every task.

    Args:
        a: ``[runs, tasks]``, finite.
        b: ``[runs, tasks]``, finite, of the same tasks; the number of runs may be another.
        confidence: Coverage of the interval, in (0, 1).
        num_resamples: Number of bootstrap resamples; both groups are resampled.
        seed: Of a generator of its own.

    Raises:
        ValueError: If the scores are no such arrays, or a setting is out of its range.

    >>> probability_of_improvement([[1.0], [3.0]], [[2.0], [2.0]]).value
    0.5
    """
    name = "probability_of_improvement"
    first, second = _table(name, "a", a), _table(name, "b", b)
    tasks = first.shape[1]
    if tasks != second.shape[1]:
        raise ValueError(f"{name}: b must have the {tasks} tasks of a, got {second.shape[1]}")
    _check(name, confidence, num_resamples)

    def of_tasks(*columns: Array) -> Array:
        pairs = zip(columns[:tasks], columns[tasks:], strict=True)
        return np.array([np.mean([_superiority(x, y) for x, y in pairs])])

    return _interval(of_tasks, [*first.T, *second.T], confidence, num_resamples, seed)


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


_STATISTICS: dict[str, Callable[[Array], float]] = {
    "iqm": lambda table: float(trim_mean(table, 0.25, axis=None)),
    "mean": lambda table: float(table.mean()),
    "median": lambda table: float(np.median(table.mean(0))),
}


def _superiority(x: Array, y: Array) -> float:
    """The share of pairs where x is larger, ties half."""
    return float(0.5 + 0.5 * np.sign(x[:, None] - y).mean())


def _interval(
    statistic: Callable[..., Array], samples: list[Array], confidence: float, num_resamples: int, seed: int
) -> Estimate:
    """The statistic of some samples and its percentile interval; every sample is resampled on its own."""
    (value,) = statistic(*samples)
    bootstrap = IndependentSamplesBootstrap(*samples, seed=np.random.default_rng(seed))
    low, high = bootstrap.conf_int(statistic, num_resamples, method="percentile", size=confidence).ravel()
    return Estimate(float(value), float(low), float(high))


def _table(owner: str, name: str, values: ArrayLike) -> Array:
    table = np.asarray(values, np.float64)
    if table.ndim != 2 or table.size == 0 or not np.isfinite(table).all():
        raise ValueError(
            f"{owner}: {name} must be finite [runs, tasks], got shape {table.shape}, "
            f"{int((~np.isfinite(table)).sum())} not finite"
        )
    return table


def _check(owner: str, confidence: float, num_resamples: int) -> None:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"{owner}: confidence must be in (0, 1), got {confidence}")
    if num_resamples < 1:
        raise ValueError(f"{owner}: num_resamples must be positive, got {num_resamples}")
