"""Intervals of reported numbers: Wilson's for a success rate; for everything else Student's t or a
bootstrap.

Episodes of one task resemble each other. Where an evaluation plays tasks more than once,
`clustered_mean_interval` and `clustered_share_interval` take the tasks as the unit, not the
episodes.

`Resampling` is the only bootstrap of the package. Quantiles and resamples are SciPy's, which is
imported when an interval is computed; `mean_interval`, of the returns of an evaluation, does
without the slow import of `scipy.stats`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from statistics import NormalDist
from types import ModuleType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from yamame.checks import require, require_at_least

Array = npt.NDArray[np.float64]
Method = Literal["Student", "Welch", "bootstrap", "Newcombe", "episodes", "tasks"]
"""Name of an interval on pages and in tables; ``episodes`` and ``tasks``: over held-out episodes or
tasks of these runs, not over seeds.
"""
Interval = tuple[float, float]
FEW = 10
"""Samples smaller than this are not resampled."""
_FEWEST_WITH_RARER = 5
_MOST_RESAMPLES = 10_000_000


def wilson_interval(successes: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a success rate; sensible at 0, at 1 and for few trials.

    Args:
        successes: Number of successes.
        n: Number of trials.
        confidence: Coverage, in (0, 1).

    Raises:
        ValueError: An argument is out of its range.

    >>> low, high = wilson_interval(10, 10)
    >>> round(low, 3), round(high, 3)
    (0.722, 1.0)
    """
    require_at_least("wilson_interval", 1, n=n)
    require("wilson_interval", "successes", successes, 0 <= successes <= n, f"be in [0, n={n}]")
    require("wilson_interval", "confidence", confidence, 0.0 < confidence < 1.0, "be in (0, 1)")
    return _score_interval(successes / n, n, confidence)


def _score_interval(rate: float, n: float, confidence: float) -> tuple[float, float]:
    """Wilson's interval of a rate of ``n`` trials, which need not be a whole number."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    radius = z / (1 + z * z / n) * ((rate * (1 - rate) + z * z / (4 * n)) / n) ** 0.5
    return max(0.0, centre - radius), min(1.0, centre + radius)


def with_width(low: float, high: float) -> Interval | None:
    """Return both ends of an interval, or None if it has no width.

    Equal observations give an interval without width. That is no evidence of certainty: a few
    observations may agree by chance. Such an interval is not reported.

    >>> with_width(0.0, 0.5), with_width(0.3, 0.1 + 0.2), with_width(float("nan"), 1.0)
    ((0.0, 0.5), None, None)
    """
    return (low, high) if high - low > 1e-9 * max(1.0, abs(low), abs(high)) else None


def tasks_interval(values: Array, *, confidence: float = 0.95) -> Interval | None:
    """Interval of the mean of one score per task: Wilson's for successes, Student's for other
    scores.

    Args:
        values: ``[tasks]``, finite.
        confidence: Coverage, in (0, 1).

    Returns:
        Both ends; None for a single task, or if all tasks have the same score and it is not a
        success rate.

    >>> low, high = tasks_interval(np.zeros(16))
    >>> round(low, 3), round(high, 3), tasks_interval(np.full(16, -1.0))
    (0.0, 0.194, None)
    """
    if np.isin(values, (0, 1)).all():
        return wilson_interval(int(values.sum()), values.size, confidence=confidence)
    if values.size < 2:
        return None
    mean = float(values.mean())
    radius = (
        student_quantile(values.size - 1, confidence) * float(values.std(ddof=1)) / values.size**0.5
    )
    return with_width(mean - radius, mean + radius)


@dataclass(frozen=True)
class Resampling:
    """How intervals of a statistic of few or many observations are made.

    A sample of fewer than `FEW` is too small for percentiles of resamples: those of three values
    cover their mean in 75 % of all cases, not in 95 %. There the interval is the statistic and a
    quantile of Student's t times its standard error, with the degrees of freedom of Welch and
    Satterthwaite: of a mean Student's interval, of a difference of two means Welch's. From `FEW` on
    it is the percentile bootstrap, whose percentiles lie further out by as much as Student's t for
    the smallest sample does ("expanded", Hesterberg, arXiv 1411.5279).

    Args:
        confidence: Coverage, in (0, 1).
        num_resamples: Number of bootstrap resamples, from 2 to ten million.
        seed: Of a generator of its own; the global one is not used.

    Raises:
        ValueError: An argument is out of its range.
    """

    confidence: float = 0.95
    num_resamples: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            "Resampling", "confidence", self.confidence, 0.0 < self.confidence < 1.0, "be in (0, 1)"
        )
        holds = 2 <= self.num_resamples <= _MOST_RESAMPLES
        require(
            "Resampling",
            "num_resamples",
            self.num_resamples,
            holds,
            f"be in [2, {_MOST_RESAMPLES}]",
        )

    @staticmethod
    def method(*sizes: int) -> Method | None:
        """Which interval samples of these sizes have; None where one of them is a single
        observation.

        >>> Resampling.method(3), Resampling.method(3, 12), Resampling.method(10, 12), Resampling.method(1)
        ('Student', 'Welch', 'bootstrap', None)
        """
        if min(sizes) < 2:
            return None
        return "bootstrap" if min(sizes) >= FEW else "Student" if len(sizes) == 1 else "Welch"

    def interval(
        self, samples: Sequence[Array], statistic: Callable[..., Array], *, is_mean: bool = True
    ) -> Array:
        """Both ends of the interval of a statistic of independent samples.

        Args:
            samples: Arrays ``[n, *]`` with at least two observations each; ``n`` may differ between
                them.
            statistic: Reduces the last axis of samples ``[*, n]``; called as
                ``statistic(*samples, axis=-1)``.
            is_mean: Whether it is a mean or a difference of means, so that its standard error is
                known; that of another statistic is that of its resamples, times the root of n / (n
                - 1).

        Returns:
            ``[2, *]``.

        Raises:
            ImportError: SciPy is not installed.

        >>> Resampling().interval([np.array([1.0, 2.0, 3.0])], np.mean).round(2).tolist()
        [-0.48, 4.48]
        """
        stdtrit = _scipy("special").stdtrit
        tail, fewest = (1.0 - self.confidence) / 2, min(map(len, samples))
        larger = (
            fewest / (fewest - 1)
        ) ** 0.5  # resamples of n vary less than samples, by this factor

        def resample(**options: Any) -> Any:
            # SciPy's statistics take long to import; Student's intervals of means need none.
            return _scipy("stats").bootstrap(
                samples,
                statistic,
                axis=0,
                vectorized=True,
                n_resamples=self.num_resamples,
                method="percentile",
                rng=np.random.default_rng(self.seed),
                **options,
            )

        if fewest < FEW:
            centre = statistic(*(np.moveaxis(sample, 0, -1) for sample in samples), axis=-1)
            standard_error, freedom = _jackknife(samples, statistic)
            if not is_mean:
                standard_error = larger * resample().standard_error
            radius = stdtrit(freedom, 1.0 - tail) * standard_error
            return np.stack([centre - radius, centre + radius])
        outside = NormalDist().cdf(larger * float(stdtrit(fewest - 1, tail)))
        return np.stack(resample(confidence_level=1.0 - 2.0 * outside).confidence_interval)


def student_quantile(freedom: float, confidence: float) -> float:
    """Half the width of Student's interval in standard errors.

    Args:
        freedom: Degrees of freedom.
        confidence: Coverage, in (0, 1).

    >>> round(student_quantile(4, 0.95), 3)
    2.776
    """
    return float(_scipy("special").stdtrit(freedom, 0.5 + confidence / 2))


@cache  # a numerical integral, 60 ms
def tukey_quantile(num_groups: int, freedom: float, confidence: float) -> float:
    """Half the width of Tukey's intervals of all differences between groups, in standard errors of
    a difference.

    Args:
        num_groups: Number of groups that are compared; of two or fewer it is Student's quantile.
        freedom: Degrees of freedom of the pooled variance.
        confidence: Probability, in (0, 1), that all intervals hold.

    >>> round(tukey_quantile(5, 10, 0.95), 3)
    3.291
    """
    if num_groups <= 2:
        return student_quantile(freedom, confidence)
    return float(_scipy("stats").studentized_range.ppf(confidence, num_groups, freedom)) / 2**0.5


def _scipy(module: str) -> ModuleType:
    """A module of SciPy, imported when it is needed."""
    try:
        return import_module(f"scipy.{module}")
    except ImportError as error:
        remedy = "the package scipy must be installed, run: pip install 'yamame[train]'"
        raise ImportError(f"intervals: {remedy}") from error


def _jackknife(samples: Sequence[Array], statistic: Callable[..., Array]) -> tuple[Array, Array]:
    """The standard error of a statistic ``[*]`` of samples ``[n, *]``, and its degrees of
    freedom.
    """
    rows = [np.moveaxis(sample, 0, -1) for sample in samples]
    variances = []
    for index, row in enumerate(rows):
        size = row.shape[-1]
        without = np.stack([np.delete(row, place, -1) for place in range(size)])  # [n, *, n - 1]
        others = [np.broadcast_to(other, (size, *other.shape)) for other in rows]
        others[index] = without
        variances.append((size - 1) * statistic(*others, axis=-1).var(0))
    total = np.sum(variances, 0)
    parts = np.sum(
        [np.square(v) / (row.shape[-1] - 1) for v, row in zip(variances, rows, strict=True)], 0
    )
    least = min(row.shape[-1] for row in rows) - 1  # where nothing varies
    freedom = np.divide(np.square(total), parts, out=np.full_like(total, least), where=parts > 0)
    return np.sqrt(total), freedom


def mean_interval(values: Tensor, *, confidence: float = 0.95) -> tuple[float, float]:
    """Student's t interval of a mean; a single value is both of its ends.

    Args:
        values: ``[n]``.
        confidence: Coverage, in (0, 1).

    Raises:
        ValueError: ``values`` is no such vector, or the coverage is out of its range.
        ImportError: SciPy is not installed.

    >>> import torch
    >>> mean_interval(torch.full((5,), 3.0))
    (3.0, 3.0)
    """
    if values.ndim != 1 or values.numel() == 0 or not bool(values.isfinite().all()):
        raise ValueError(
            "mean_interval: values must be a non-empty vector of finite numbers, got shape "
            f"{tuple(values.shape)}, {int((~values.isfinite()).sum())} not finite"
        )
    require("mean_interval", "confidence", confidence, 0.0 < confidence < 1.0, "be in (0, 1)")
    size, mean = len(values), float(values.detach().double().mean())
    if size == 1:
        return mean, mean
    radius = (
        student_quantile(size - 1, confidence) * float(values.detach().double().std()) / size**0.5
    )
    return mean - radius, mean + radius


def clustered_mean_interval(
    values: Tensor, clusters: Tensor | None, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval of a mean of values that come in clusters, such as the returns of episodes that
    share tasks.

    The standard error is the delete-one-cluster jackknife, which is robust to any correlation
    within clusters (CV3 in Cameron and Miller, A Practitioner's Guide to Cluster-Robust Inference,
    2015); clusters of equal size give the standard error of the cluster means. The quantile is
    Student's with one degree of freedom less than clusters. Where every value is a cluster of its
    own, the result is that of `mean_interval`.

    Args:
        values: ``[n]``.
        clusters: ``[n]`` int64, equal for values of one cluster. None, or a single cluster, of
            which the spread between clusters is unknown: the interval is that of `mean_interval`.
        confidence: Coverage, in (0, 1).

    Raises:
        ValueError: As `mean_interval`, or ``clusters`` has another shape.

    >>> import torch
    >>> values, tasks = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([7, 7, 8, 8])
    >>> low, high = clustered_mean_interval(values, tasks)
    >>> round(low, 2), round(high, 2)
    (-5.85, 6.85)
    """
    over_values = mean_interval(values, confidence=confidence)
    sizes, sums = _by_cluster("clustered_mean_interval", values, clusters)
    if len(sizes) in (1, len(values)):
        return over_values
    mean = float(values.detach().double().mean())
    radius = student_quantile(len(sizes) - 1, confidence) * _jackknife_error(sizes, sums)
    return mean - radius, mean + radius


def clustered_share_interval(
    successes: Tensor, clusters: Tensor | None, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval of a success rate of trials that come in clusters, such as episodes that share
    tasks.

    It is Wilson's interval with the effective sample size: the number of independent trials whose
    rate would have the cluster-robust standard error (the design effect), times the correction for
    the degrees of freedom of Korn and Graubard (Confidence Intervals for Proportions with Small
    Expected Number of Positive Counts, 1998). Where the rarer outcome appears in fewer than five
    clusters, their spread is hardly known; then there are no more effective trials than clusters.
    Where every trial is a cluster of its own, the result is that of `wilson_interval`.

    Args:
        successes: ``[n]`` bool.
        clusters: As for `clustered_mean_interval`.
        confidence: Coverage, in (0, 1).

    Raises:
        ValueError: As `wilson_interval`, or ``clusters`` has another shape.

    >>> import torch
    >>> low, high = clustered_share_interval(torch.ones(40).bool(), torch.arange(40) % 10)
    >>> (low, high) == wilson_interval(10, 10)
    True
    """
    count, n = int(successes.sum()), len(successes)
    over_trials = wilson_interval(count, n, confidence=confidence)
    sizes, sums = _by_cluster("clustered_share_interval", successes, clusters)
    if len(sizes) in (1, n):
        return over_trials
    rate = count / n
    num_with_rarer = int((sums > 0).sum()) if rate <= 0.5 else int((sums < sizes).sum())
    error = _jackknife_error(sizes, sums)
    z, t = NormalDist().inv_cdf(0.5 + confidence / 2), student_quantile(len(sizes) - 1, confidence)
    effective = n if error == 0 else min(rate * (1 - rate) / error**2, n) * (z / t) ** 2
    if num_with_rarer < _FEWEST_WITH_RARER:
        effective = min(effective, len(sizes))
    return _score_interval(rate, effective, confidence)


def _by_cluster(owner: str, values: Tensor, clusters: Tensor | None) -> tuple[Array, Array]:
    """Number and sum of the values of each cluster; without clusters, each value is one of its
    own.
    """
    array = values.detach().double().cpu().numpy()
    if clusters is None:
        return np.ones(len(array)), array
    shape = tuple(clusters.shape)
    require(
        owner,
        "clusters",
        shape,
        shape == tuple(values.shape),
        f"have the shape {tuple(values.shape)}",
    )
    _, place = np.unique(clusters.cpu().numpy(), return_inverse=True)
    sizes = np.bincount(place).astype(np.float64)
    return sizes, np.bincount(place, weights=array).astype(np.float64)


def _jackknife_error(sizes: Array, sums: Array) -> float:
    """Standard error of the mean of all values, by leaving out one cluster after the other."""
    without = (sums.sum() - sums) / (sizes.sum() - sizes)
    deviations = without - sums.sum() / sizes.sum()
    return float(((len(sizes) - 1) / len(sizes) * np.square(deviations).sum()) ** 0.5)
