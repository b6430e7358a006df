"""Intervals for reported numbers: success rates and means over runs and tasks."""

from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor


def wilson_interval(successes: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a success rate; sensible at 0, at 1 and for few trials.

    Args:
        successes: Number of successes.
        n: Number of trials.
        confidence: Coverage, in (0, 1).

    >>> low, high = wilson_interval(10, 10)
    >>> round(low, 3), round(high, 3)
    (0.722, 1.0)
    """
    if n < 1:
        raise ValueError(f"wilson_interval: n must be positive, got {n}")
    if not 0 <= successes <= n:
        raise ValueError(f"wilson_interval: successes must be in [0, n={n}], got {successes}")
    _check_confidence("wilson_interval", confidence)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = successes / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    radius = z / (1 + z * z / n) * ((rate * (1 - rate) + z * z / (4 * n)) / n) ** 0.5
    return max(0.0, centre - radius), min(1.0, centre + radius)


def interquartile_mean(values: Tensor) -> Tensor:
    """Mean of the middle half over the last dimension, ``[*, n] -> [*]``: a quarter is cut off at either end.

    Less sensitive to single runs than the mean, more efficient than the median (arXiv 2108.13264).

    >>> interquartile_mean(torch.tensor([0.0, 1.0, 2.0, 100.0]))
    tensor(1.5000)
    """
    cut = values.shape[-1] // 4
    return values.sort(-1).values[..., cut : values.shape[-1] - cut].mean(-1)


def bootstrap_interval(
    values: Tensor,
    *,
    statistic: Literal["mean", "iqm"] = "mean",
    confidence: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean or an interquartile mean.

    Args:
        values: ``[n]``, or ``[runs, tasks]``: then runs are resampled within each task (stratified) and the
            statistic is taken over all of them.
        statistic: ``mean``, or ``iqm`` for `interquartile_mean`.
        confidence: Coverage, in (0, 1).
        num_resamples: Number of bootstrap resamples.
        seed: Of a generator of its own; the global one is not used.

    >>> bootstrap_interval(torch.full((5,), 3.0))
    (3.0, 3.0)
    """
    if statistic not in ("mean", "iqm"):
        raise ValueError(f"bootstrap_interval: statistic must be 'mean' or 'iqm', got {statistic!r}")
    if values.ndim not in (1, 2) or values.numel() == 0 or not bool(values.isfinite().all()):
        raise ValueError(
            "bootstrap_interval: values must be a non-empty vector or matrix of finite numbers, got shape "
            f"{tuple(values.shape)}, {int((~values.isfinite()).sum())} not finite"
        )
    if num_resamples < 1:
        raise ValueError(f"bootstrap_interval: num_resamples must be positive, got {num_resamples}")
    _check_confidence("bootstrap_interval", confidence)
    table = values.detach().to("cpu", torch.float64).reshape(values.shape[0], -1)
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(table.shape[0], (num_resamples, *table.shape), generator=generator)
    resampled = table.expand(num_resamples, *table.shape).gather(1, picks).flatten(1)
    estimates = resampled.mean(-1) if statistic == "mean" else interquartile_mean(resampled)
    tail = (1.0 - confidence) / 2
    low, high = estimates.quantile(torch.tensor([tail, 1.0 - tail], dtype=torch.float64)).tolist()
    return low, high


def _check_confidence(name: str, confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"{name}: confidence must be in (0, 1), got {confidence}")
