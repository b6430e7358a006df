"""Intervals for reported numbers: success rates and means over episodes."""

from statistics import NormalDist

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


def bootstrap_interval(
    values: Tensor, *, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean; for scores of several runs see `yamame.runs.statistics`.

    Args:
        values: ``[n]``.
        confidence: Coverage, in (0, 1).
        num_resamples: Number of bootstrap resamples.
        seed: Of a generator of its own; the global one is not used.

    >>> bootstrap_interval(torch.full((5,), 3.0))
    (3.0, 3.0)
    """
    if values.ndim != 1 or values.numel() == 0 or not bool(values.isfinite().all()):
        raise ValueError(
            "bootstrap_interval: values must be a non-empty vector of finite numbers, got shape "
            f"{tuple(values.shape)}, {int((~values.isfinite()).sum())} not finite"
        )
    if num_resamples < 1:
        raise ValueError(f"bootstrap_interval: num_resamples must be positive, got {num_resamples}")
    _check_confidence("bootstrap_interval", confidence)
    values = values.detach().to("cpu", torch.float64)
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(values), (num_resamples, len(values)), generator=generator)
    tail = (1.0 - confidence) / 2
    bounds = torch.tensor([tail, 1.0 - tail], dtype=torch.float64)
    low, high = values[picks].mean(-1).quantile(bounds).tolist()
    return low, high


def _check_confidence(name: str, confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"{name}: confidence must be in (0, 1), got {confidence}")
