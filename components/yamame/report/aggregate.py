"""Aggregate scores and comparisons of several runs, with intervals.

Scores are arrays ``[runs, tasks]``: one row per independent run, one column per task. The set of
tasks is fixed and the runs are a sample: an interval varies runs within every task (stratified), so
that differences between easy and hard tasks do not count as uncertainty. The method depends on the
number of runs (`yamame.evaluation.intervals.Resampling`), and every estimate names it.

Source: Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice, arXiv
2108.13264.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from yamame.checks import require, require_choice
from yamame.evaluation.intervals import Array, Interval, Method, Resampling, with_width

Statistic = Literal["iqm", "mean", "median"]
_DEFAULT = Resampling()
_NUM_CANDIDATES = 4000
"""Steps between probabilities that are tried as ends of Newcombe's interval."""


class Estimate(NamedTuple):
    """A number and its interval over runs.

    Without ends if a task has a single run, or if runs do not differ.
    """

    value: float
    low: float | None
    high: float | None
    method: Method | None = None

    @property
    def ends(self) -> Interval | None:
        """Both ends of the interval; None without one."""
        return None if self.low is None or self.high is None else (self.low, self.high)


def aggregate(
    scores: ArrayLike, *, statistic: Statistic = "iqm", resampling: Resampling = _DEFAULT
) -> Estimate:
    """Aggregate the scores of all runs on all tasks.

    Args:
        scores: ``[runs, tasks]``, finite.
        statistic: ``iqm``, the mean of the middle half of all scores: less sensitive to single runs
            than the mean, more efficient than the median; ``mean``; ``median``, of the tasks' means
            over runs.
        resampling: Settings of the interval.

    Raises:
        ValueError: ``scores`` is no such array, or the statistic is unknown.

    >>> aggregate([[0.0], [1.0], [2.0], [100.0]]).value
    1.5
    """
    require_choice("aggregate", "statistic", statistic, get_args(Statistic))

    def compute(*columns: Array, axis: int) -> Array:
        if statistic == "iqm":
            from scipy.stats import trim_mean  # takes long to import

            return np.asarray(trim_mean(np.concatenate(columns, axis), 0.25, axis))
        means = np.stack([column.mean(axis) for column in columns])
        return np.asarray(np.median(means, 0) if statistic == "median" else means.mean(0))

    columns = list(_checked_scores("aggregate", "scores", scores).T)
    return _estimate(compute, columns, resampling, is_mean=statistic == "mean")


def probability_of_improvement(
    a: ArrayLike, b: ArrayLike, *, resampling: Resampling = _DEFAULT
) -> Estimate:
    """Estimate the probability that a run of ``a`` does better than one of ``b`` on the same task.

    It is the mean over tasks. Equal scores count one half: 0.5 is no difference, 1.0 means that
    every run of ``a`` is better on every task. If three runs all beat three others, the probability
    is not known to be 1, as resampling them would suggest. The interval of a task is therefore
    Newcombe's (Statistics in Medicine 25, 2006, his method 5), with a quantile of Student's t.

    Args:
        a: ``[runs, tasks]``, finite.
        b: ``[runs, tasks]``, finite, of the same tasks; the number of runs may differ.
        resampling: Settings of the interval; only its confidence is used.

    Raises:
        ValueError: The scores are no such arrays.

    >>> probability_of_improvement([[1.0], [3.0]], [[2.0], [2.0]]).value
    0.5
    """
    name = "probability_of_improvement"
    first = _checked_scores(name, "a", a)
    second = _checked_scores(name, "b", b)
    tasks = first.shape[1]
    if tasks != second.shape[1]:
        raise ValueError(f"{name}: b must have the {tasks} tasks of a, got {second.shape[1]}")

    pairs = np.sign(first.T[:, :, None] - second.T[:, None, :])  # [tasks, runs of a, runs of b]
    wins = 0.5 + 0.5 * pairs.mean((1, 2))  # [tasks]
    value = float(wins.mean())
    sizes = len(first), len(second)
    if min(sizes) < 2:
        return Estimate(value, None, None)
    ends = []
    for share in wins:
        ends.append(_newcombe_interval(float(share), *sizes, confidence=resampling.confidence))
    half_widths = np.abs(np.array(ends) - wins[:, None])  # [tasks, 2]
    # Tasks are independent: the half-widths of their mean add up in squares.
    below, above = np.sqrt(np.square(half_widths).sum(0)) / tasks
    return Estimate(value, value - float(below), value + float(above), "Newcombe")


def _newcombe_interval(wins: float, a: int, b: int, *, confidence: float) -> tuple[float, float]:
    """Return Newcombe's interval of the probability that one of ``a`` beats one of ``b``.

    Args:
        wins: Observed share of the pairs.
        a: Size of the first sample.
        b: Size of the second sample.
        confidence: Coverage, in (0, 1).
    """
    from scipy.special import stdtrit

    # All probabilities that do not contradict the observed share, found by trying them.
    share = np.linspace(0.0, 1.0, _NUM_CANDIDATES + 1)
    size = (a + b) / 2 - 1
    variance = (
        share
        * (1 - share)
        * (1 + size * (1 - share) / (2 - share) + size * share / (1 + share))
        / (a * b)
    )
    quantile = float(stdtrit(a + b - 2, 0.5 + confidence / 2))
    # Half a step more, so that a candidate remains if the interval is narrow.
    largest = quantile * np.sqrt(variance) + 0.5 / _NUM_CANDIDATES
    good = share[np.abs(share - wins) <= largest]
    return min(float(good[0]), wins), max(float(good[-1]), wins)


def difference_of_means(
    a: ArrayLike, b: ArrayLike, *, resampling: Resampling = _DEFAULT
) -> Estimate:
    """Estimate the mean of ``a`` minus the mean of ``b``, scores ``[runs]`` of two groups.

    >>> difference_of_means([3.0], [1.0, 2.0])
    Estimate(value=1.5, low=None, high=None, method=None)
    """

    def compute(ours: Array, theirs: Array, axis: int) -> Array:
        return np.asarray(ours.mean(axis) - theirs.mean(axis))

    samples = [np.asarray(a, np.float64), np.asarray(b, np.float64)]
    return _estimate(compute, samples, resampling)


def score_table(tasks: Sequence[str], scores: Sequence[float]) -> tuple[list[str], Array]:
    """Arrange scores of runs as ``[runs, tasks]``.

    Args:
        tasks: Task of each run.
        scores: One score per run.

    Returns:
        Names of the columns, and the scores.

    Raises:
        ArgumentError: Some tasks have more runs than others.

    >>> names, table = score_table(["maze", "corridor", "maze", "corridor"], [1.0, 2.0, 3.0, 4.0])
    >>> names, table.tolist()
    (['maze', 'corridor'], [[1.0, 2.0], [3.0, 4.0]])
    """
    columns: dict[str, list[float]] = {}
    for task, score in zip(tasks, scores, strict=True):
        columns.setdefault(task, []).append(score)
    counts = [len(column) for column in columns.values()]
    condition = f"have as many runs for each of {', '.join(columns)}"
    require("score_table", "tasks", counts, len(set(counts)) == 1, condition)
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


def _checked_scores(owner: str, name: str, values: ArrayLike) -> Array:
    table = np.asarray(values, np.float64)
    if table.ndim != 2 or table.size == 0 or not np.isfinite(table).all():
        not_finite = int((~np.isfinite(table)).sum())
        raise ValueError(
            f"{owner}: {name} must be finite [runs, tasks], got shape {table.shape}, "
            f"{not_finite} not finite"
        )
    return table
