"""Confidence intervals of reported numbers.

Success rates have Wilson's interval, other numbers Student's t or a bootstrap. Episodes of one task
resemble each other, so an evaluation that plays tasks more than once takes the tasks as the unit:
`clustered_mean_interval`, `clustered_share_interval`. `Resampling` is the only bootstrap of the
package.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from statistics import NormalDist
from types import ModuleType
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from yamame.checks import Bounds, PositiveInt, check_bounds, require

Array = npt.NDArray[np.float64]
Confidence = Annotated[float, Bounds(above=0, below=1)]
"""Coverage of an interval, in (0, 1)."""
Method = Literal["Student", "Welch", "bootstrap", "Newcombe", "episodes", "tasks"]
"""Name of an interval on pages and in tables; ``episodes`` and ``tasks``: over held-out episodes or
tasks of these runs, not over seeds.
"""
Interval = tuple[float, float]
FEW = 10
"""Samples smaller than this are not resampled."""
_FEWEST_WITH_RARER = 5
"""Clusters that must have the rarer outcome before the spread between clusters is trusted."""
_MOST_RESAMPLES = 10_000_000


@check_bounds
def wilson_interval(
    successes: int, n: PositiveInt, *, confidence: Confidence = 0.95
) -> tuple[float, float]:
    """Compute Wilson's score interval of a success rate; sensible at 0, at 1 and for few trials.

    Args:
        successes: Number of successes.
        n: Number of trials.
        confidence: Coverage, in (0, 1).

    Raises:
        ArgumentError: An argument is out of its range.

    >>> low, high = wilson_interval(10, 10)
    >>> round(low, 3), round(high, 3)
    (0.722, 1.0)
    """
    require("wilson_interval", "successes", successes, 0 <= successes <= n, f"be in [0, n={n}]")
    return _score_interval(successes / n, n, confidence)


def _score_interval(rate: float, n: float, confidence: float) -> tuple[float, float]:
    # With clusters, n is an effective sample size and need not be a whole number.
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    shrinkage = 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / shrinkage
    variance = (rate * (1 - rate) + z * z / (4 * n)) / n
    radius = z / shrinkage * variance**0.5
    # Rounding must not push an end beyond what a rate can be, or past the rate itself.
    low = min(rate, max(0.0, centre - radius))
    high = max(rate, min(1.0, centre + radius))
    return low, high


def with_width(low: float, high: float) -> Interval | None:
    """Return both ends of an interval, or None if it has no width.

    An interval without width is not reported: it comes from equal observations, and a few
    observations may agree by chance.

    >>> with_width(0.0, 0.5), with_width(0.3, 0.1 + 0.2), with_width(float("nan"), 1.0)
    ((0.0, 0.5), None, None)
    """
    # Means of equal numbers may differ in their last bits. NaN has no width either.
    resolution = 1e-9 * max(1.0, abs(low), abs(high))
    return (low, high) if high - low > resolution else None


def tasks_interval(values: Array, *, confidence: float = 0.95) -> Interval | None:
    """Compute the interval of a mean over tasks: Wilson's for successes, else Student's.

    Args:
        values: ``[tasks]``, finite.
        confidence: Coverage, in (0, 1).

    Returns:
        Both ends. Without success, None for a single task, or if all tasks have the same score.

    >>> low, high = tasks_interval(np.zeros(16))
    >>> round(low, 3), round(high, 3), tasks_interval(np.full(16, -1.0))
    (0.0, 0.194, None)
    """
    if np.isin(values, (0, 1)).all():
        return wilson_interval(int(values.sum()), values.size, confidence=confidence)
    if values.size < 2:
        return None
    mean = float(values.mean())
    deviation = float(values.std(ddof=1))
    radius = student_quantile(values.size - 1, confidence) * deviation / values.size**0.5
    return with_width(mean - radius, mean + radius)


@dataclass(frozen=True)
class Resampling:
    """Method of intervals of a statistic of independent samples.

    Samples of fewer than `FEW` observations have Student's interval of a mean and Welch's of a
    difference of two means: percentiles of resamples of three values cover their mean in 75 % of
    all cases, not in 95 %. Larger samples have a percentile bootstrap.

    Args:
        confidence: Coverage, in (0, 1).
        num_resamples: Number of bootstrap resamples, from 2 to ten million.
        seed: Seed of the generator that draws the resamples; the global one is not used.

    Raises:
        ArgumentError: An argument is out of its range.
    """

    confidence: Confidence = 0.95
    num_resamples: Annotated[int, Bounds(least=2, most=_MOST_RESAMPLES)] = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        is_coverage = 0.0 < self.confidence < 1.0
        require("Resampling", "confidence", self.confidence, is_coverage, "be in (0, 1)")
        is_possible = 2 <= self.num_resamples <= _MOST_RESAMPLES
        condition = f"be in [2, {_MOST_RESAMPLES}]"
        require("Resampling", "num_resamples", self.num_resamples, is_possible, condition)

    @staticmethod
    def method(*sizes: int) -> Method | None:
        """Return the name of the interval of samples of these sizes.

        Returns:
            The name; None if a sample is a single observation.

        >>> Resampling.method(3), Resampling.method(3, 12), Resampling.method(10, 12)
        ('Student', 'Welch', 'bootstrap')
        """
        smallest = min(sizes)
        if smallest < 2:
            return None
        if smallest >= FEW:
            return "bootstrap"
        return "Student" if len(sizes) == 1 else "Welch"

    def interval(
        self, samples: Sequence[Array], statistic: Callable[..., Array], *, is_mean: bool = True
    ) -> Array:
        """Compute both ends of the interval of a statistic.

        Args:
            samples: Arrays ``[n, *]`` with at least two observations each; ``n`` may differ between
                them.
            statistic: Reduces the last axis of samples ``[*, n]``; called as
                ``statistic(*samples, axis=-1)``.
            is_mean: Whether it is a mean or a difference of means, so that its standard error is
                known. That of another statistic is taken from resamples.

        Returns:
            ``[2, *]``.

        Raises:
            ImportError: SciPy is not installed.

        >>> Resampling().interval([np.array([1.0, 2.0, 3.0])], np.mean).round(2).tolist()
        [-0.48, 4.48]
        """
        stdtrit = _scipy("special").stdtrit
        tail = (1.0 - self.confidence) / 2
        smallest = min(map(len, samples))
        # Resamples of n observations vary less than samples do, by this factor.
        larger = (smallest / (smallest - 1)) ** 0.5

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

        if smallest < FEW:
            rows = [np.moveaxis(sample, 0, -1) for sample in samples]
            centre = statistic(*rows, axis=-1)
            standard_error, freedom = _jackknife(rows, statistic)
            if not is_mean:
                standard_error = larger * resample().standard_error
            radius = stdtrit(freedom, 1.0 - tail) * standard_error
            return np.stack([centre - radius, centre + radius])

        # "Expanded" percentiles (Hesterberg, arXiv 1411.5279): they lie further out by as much as
        # Student's t does for the smallest sample.
        outside = NormalDist().cdf(larger * float(stdtrit(smallest - 1, tail)))
        expanded = resample(confidence_level=1.0 - 2.0 * outside)
        return np.stack(expanded.confidence_interval)


def student_quantile(freedom: float, confidence: float) -> float:
    """Compute half the width of Student's interval in standard errors.

    Args:
        freedom: Degrees of freedom.
        confidence: Coverage, in (0, 1).

    >>> round(student_quantile(4, 0.95), 3)
    2.776
    """
    return float(_scipy("special").stdtrit(freedom, 0.5 + confidence / 2))


@cache  # a numerical integral takes 60 ms
def tukey_quantile(num_groups: int, freedom: float, confidence: float) -> float:
    """Compute half the width of Tukey's intervals of differences, in standard errors of one.

    Args:
        num_groups: Number of groups of which all pairs are compared. For two or fewer it is
            Student's quantile.
        freedom: Degrees of freedom of the pooled variance.
        confidence: Probability, in (0, 1), that all intervals hold.

    >>> round(tukey_quantile(5, 10, 0.95), 3)
    3.291
    """
    if num_groups <= 2:
        return student_quantile(freedom, confidence)
    # The studentized range is in standard errors of a mean, smaller than those of a difference.
    quantile = _scipy("stats").studentized_range.ppf(confidence, num_groups, freedom)
    return float(quantile) / 2**0.5


def _scipy(module: str) -> ModuleType:
    # Imported late: the package works without SciPy, and scipy.stats is slow to import.
    try:
        return import_module(f"scipy.{module}")
    except ImportError as error:
        remedy = "the package scipy must be installed, run: pip install 'yamame[train]'"
        raise ImportError(f"intervals: {remedy}") from error


def _jackknife(rows: Sequence[Array], statistic: Callable[..., Array]) -> tuple[Array, Array]:
    """Compute the standard error of a statistic and its degrees of freedom.

    The degrees of freedom are those of Welch and Satterthwaite.

    Args:
        rows: Samples ``[*, n]``.
        statistic: As for `Resampling.interval`.

    Returns:
        Two arrays ``[*]``.
    """
    variances = []
    squares = []
    for index, row in enumerate(rows):
        size = row.shape[-1]
        leave_one_out = [np.delete(row, place, -1) for place in range(size)]
        samples = [np.broadcast_to(other, (size, *other.shape)) for other in rows]
        samples[index] = np.stack(leave_one_out)  # [n, *, n - 1]
        variance = (size - 1) * statistic(*samples, axis=-1).var(0)
        variances.append(variance)
        squares.append(np.square(variance) / (size - 1))

    total = np.sum(variances, 0)
    total_squares = np.sum(squares, 0)
    # Entries without any variance have no such quotient. They take the smallest sample's.
    fewest = min(row.shape[-1] for row in rows) - 1
    freedom = np.full_like(total, fewest)
    np.divide(np.square(total), total_squares, out=freedom, where=total_squares > 0)
    return np.sqrt(total), freedom


@check_bounds
def mean_interval(values: Tensor, *, confidence: Confidence = 0.95) -> tuple[float, float]:
    """Compute Student's t interval of a mean; a single value is both of its ends.

    Args:
        values: ``[n]``, finite.
        confidence: Coverage, in (0, 1).

    Raises:
        ArgumentError: ``values`` is empty, not finite or not a vector, or the coverage is out of
            its range.
        ImportError: SciPy is not installed.

    >>> import torch
    >>> mean_interval(torch.full((5,), 3.0))
    (3.0, 3.0)
    """
    shape = tuple(values.shape)
    is_vector = len(shape) == 1 and shape[0] > 0
    require("mean_interval", "values", shape, is_vector, "be a non-empty vector")
    num_bad = int((~values.isfinite()).sum())
    require("mean_interval", "values", f"{num_bad} not finite", num_bad == 0, "be finite")
    size = len(values)
    doubles = values.detach().double()
    mean = float(doubles.mean())
    if size == 1:
        return mean, mean
    radius = student_quantile(size - 1, confidence) * float(doubles.std()) / size**0.5
    return mean - radius, mean + radius


def clustered_mean_interval(
    values: Tensor, clusters: Tensor | None, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Compute the interval of a mean of values in clusters, such as returns of episodes by task.

    The standard error is the delete-one-cluster jackknife, which is robust to any correlation
    within clusters (CV3 in Cameron and Miller, A Practitioner's Guide to Cluster-Robust Inference,
    2015). The quantile is Student's with one degree of freedom less than clusters. If every value
    is a cluster by itself, the result is that of `mean_interval`.

    Args:
        values: ``[n]``.
        clusters: ``[n]`` int64, equal for values of one cluster. With None, or a single cluster,
            the interval is that of `mean_interval`.
        confidence: Coverage, in (0, 1).

    Raises:
        ArgumentError: As `mean_interval`, or ``clusters`` has a different shape.

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
    """Compute the interval of a success rate of trials in clusters, such as episodes by task.

    It is Wilson's interval with an effective sample size: the number of independent trials whose
    rate would have the cluster-robust standard error (the design effect), corrected for the degrees
    of freedom (Korn and Graubard, Confidence Intervals for Proportions with Small Expected Number
    of Positive Counts, 1998). If every trial is a cluster by itself, the result is that of
    `wilson_interval`.

    Args:
        successes: ``[n]`` bool.
        clusters: As for `clustered_mean_interval`.
        confidence: Coverage, in (0, 1).

    Raises:
        ArgumentError: As `wilson_interval`, or ``clusters`` has a different shape.

    >>> import torch
    >>> low, high = clustered_share_interval(torch.ones(40).bool(), torch.arange(40) % 10)
    >>> (low, high) == wilson_interval(10, 10)
    True
    """
    count = int(successes.sum())
    n = len(successes)
    over_trials = wilson_interval(count, n, confidence=confidence)
    sizes, sums = _by_cluster("clustered_share_interval", successes, clusters)
    if len(sizes) in (1, n):
        return over_trials

    rate = count / n
    error = _jackknife_error(sizes, sums)
    independent = float(n) if error == 0 else min(rate * (1 - rate) / error**2, n)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    t = student_quantile(len(sizes) - 1, confidence)
    effective = independent * (z / t) ** 2

    is_success_rarer = rate <= 0.5
    num_with_rarer = int((sums > 0).sum()) if is_success_rarer else int((sums < sizes).sum())
    if num_with_rarer < _FEWEST_WITH_RARER:
        # So few clusters do not show their spread, and may look more alike than they are.
        effective = min(effective, len(sizes))
    return _score_interval(rate, effective, confidence)


def _by_cluster(owner: str, values: Tensor, clusters: Tensor | None) -> tuple[Array, Array]:
    """Return the number and the sum of the values of each cluster."""
    array = values.detach().double().cpu().numpy()
    if clusters is None:
        return np.ones(len(array)), array
    shape = tuple(clusters.shape)
    expected = tuple(values.shape)
    require(owner, "clusters", shape, shape == expected, f"have the shape {expected}")
    _, index = np.unique(clusters.cpu().numpy(), return_inverse=True)
    sizes = np.bincount(index).astype(np.float64)
    sums = np.bincount(index, weights=array).astype(np.float64)
    return sizes, sums


def _jackknife_error(sizes: Array, sums: Array) -> float:
    """Compute the standard error of the mean of all values by leaving out each cluster in turn."""
    mean = sums.sum() / sizes.sum()
    leave_one_out = (sums.sum() - sums) / (sizes.sum() - sizes)
    num_clusters = len(sizes)
    variance = (num_clusters - 1) / num_clusters * np.square(leave_one_out - mean).sum()
    return float(variance**0.5)
