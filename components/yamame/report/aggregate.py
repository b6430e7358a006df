"""What several runs say together: aggregate scores and comparisons, with intervals.

Scores are arrays ``[runs, tasks]``: independent runs (seeds) down, tasks across. The set of tasks
is fixed, the runs are a sample: an interval varies runs within every task (stratified), so what
separates easy from hard tasks is no uncertainty. How it is made depends on how many runs there are
(`yamame.evaluation.intervals.Resampling`), and every estimate names it.

Source: Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice, arXiv
2108.13264.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from yamame.checks import require_choice
from yamame.evaluation.intervals import Array, Interval, Method, Resampling, with_width

Statistic = Literal["iqm", "mean", "median"]
_DEFAULT = Resampling()
_PLACES = 4000
"""Probabilities that are looked at for the ends of Newcombe's interval."""


class Estimate(NamedTuple):
    """A number and its interval over runs; without ends if a task has one run, or if runs do not
    differ.
    """

    value: float
    low: float | None
    high: float | None
    method: Method | None = None

    @property
    def ends(self) -> Interval | None:
        """Both ends of the interval, where it has one."""
        return None if self.low is None or self.high is None else (self.low, self.high)


def aggregate(
    scores: ArrayLike, *, statistic: Statistic = "iqm", resampling: Resampling = _DEFAULT
) -> Estimate:
    """One number for all runs on all tasks.

    Args:
        scores: ``[runs, tasks]``, finite.
        statistic: ``iqm``, the mean of the middle half of all scores: less sensitive to single runs
            than the mean, more efficient than the median; ``mean``; ``median``, of the tasks' means
            over runs.
        resampling: How the interval is made.

    Raises:
        ValueError: If the scores are no such array, or there is no such statistic.

    >>> aggregate([[0.0], [1.0], [2.0], [100.0]]).value
    1.5
    """
    require_choice("aggregate", "statistic", statistic, get_args(Statistic))
    from scipy.stats import trim_mean

    def compute(*columns: Array, axis: int) -> Array:
        if statistic == "iqm":
            return np.asarray(trim_mean(np.concatenate(columns, axis), 0.25, axis))
        means = np.stack([column.mean(axis) for column in columns])
        return np.asarray(np.median(means, 0) if statistic == "median" else means.mean(0))

    columns = list(_table("aggregate", "scores", scores).T)
    return _estimate(compute, columns, resampling, is_mean=statistic == "mean")


def probability_of_improvement(
    a: ArrayLike, b: ArrayLike, *, resampling: Resampling = _DEFAULT
) -> Estimate:
    """How likely a run of ``a`` does better than a run of ``b`` on the same task; the mean over
    tasks.

    Equal scores count one half. 0.5 says nothing, 1.0 that every run of ``a`` is better on every
    task. Three runs that all beat three others do not make that certain, as resampling them would
    say. So the interval of a task is Newcombe's (Statistics in Medicine 25, 2006, his method 5)
    with a quantile of Student's t, and the half-widths of tasks, which are independent, add up in
    squares.

    Args:
        a: ``[runs, tasks]``, finite.
        b: ``[runs, tasks]``, finite, of the same tasks; the number of runs may be another.
        resampling: Its confidence counts.

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
    sizes = len(first), len(second)
    wins = 0.5 + 0.5 * np.sign(first.T[:, :, None] - second.T[:, None, :]).mean((1, 2))  # [tasks]
    value = float(wins.mean())
    if min(sizes) < 2:
        return Estimate(value, None, None)
    ends = [
        _newcombe_interval(float(won), *sizes, confidence=resampling.confidence) for won in wins
    ]
    radii = np.sqrt(np.square(np.abs(np.array(ends) - wins[:, None])).sum(0)) / tasks
    return Estimate(value, value - float(radii[0]), value + float(radii[1]), "Newcombe")


def _newcombe_interval(wins: float, a: int, b: int, *, confidence: float) -> tuple[float, float]:
    """Of a share of the pairs of two samples: the probabilities that such a share does not
    contradict.
    """
    from scipy.special import stdtrit

    share = np.linspace(0.0, 1.0, _PLACES + 1)
    size = (a + b) / 2 - 1
    variance = (
        share
        * (1 - share)
        * (1 + size * (1 - share) / (2 - share) + size * share / (1 + share))
        / (a * b)
    )
    limit = float(stdtrit(a + b - 2, 0.5 + confidence / 2))
    good = share[np.abs(share - wins) <= limit * np.sqrt(variance) + 0.5 / _PLACES]
    return min(float(good[0]), wins), max(float(good[-1]), wins)


def difference_of_means(
    a: ArrayLike, b: ArrayLike, *, resampling: Resampling = _DEFAULT
) -> Estimate:
    """The mean of ``a`` minus the mean of ``b``, scores ``[runs]`` of two groups.

    >>> difference_of_means([3.0], [1.0, 2.0])
    Estimate(value=1.5, low=None, high=None, method=None)
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


def _estimate(
    statistic: Callable[..., Array],
    samples: Sequence[Array],
    resampling: Resampling,
    *,
    is_mean: bool = True,
) -> Estimate:
    value = float(statistic(*samples, axis=-1))
    method = resampling.method(*map(len, samples))
    if method is None:
        return Estimate(value, None, None)
    low, high = resampling.interval(samples, statistic, is_mean=is_mean)
    ends = with_width(float(low), float(high))
    return Estimate(value, None, None) if ends is None else Estimate(value, *ends, method)


def _table(owner: str, name: str, values: ArrayLike) -> Array:
    table = np.asarray(values, np.float64)
    if table.ndim != 2 or table.size == 0 or not np.isfinite(table).all():
        raise ValueError(
            f"{owner}: {name} must be finite [runs, tasks], got shape {table.shape}, "
            f"{int((~np.isfinite(table)).sum())} not finite"
        )
    return table
