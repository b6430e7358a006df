"""Intervals of reported numbers: Wilson's for a success rate, a percentile bootstrap for everything else.

`Resampling` is the only bootstrap of the package. It needs SciPy, which is imported when an interval is computed:
playing episodes does without.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from torch import Tensor

from yamame.checks import require, require_at_least

Array = npt.NDArray[np.float64]
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
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = successes / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    radius = z / (1 + z * z / n) * ((rate * (1 - rate) + z * z / (4 * n)) / n) ** 0.5
    return max(0.0, centre - radius), min(1.0, centre + radius)


@dataclass(frozen=True)
class Resampling:
    """How a bootstrap resamples, and the percentile intervals that it gives.

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
        require("Resampling", "confidence", self.confidence, 0.0 < self.confidence < 1.0, "be in (0, 1)")
        holds = 2 <= self.num_resamples <= _MOST_RESAMPLES
        require("Resampling", "num_resamples", self.num_resamples, holds, f"be in [2, {_MOST_RESAMPLES}]")

    def interval(self, samples: Sequence[Array], statistic: Callable[..., Array]) -> Array:
        """Both ends of the interval of a statistic of independent samples, each of which is resampled on its own.

        Args:
            samples: Arrays ``[n, *]`` with at least two observations each; ``n`` may differ between them.
            statistic: Reduces the last axis of resamples ``[*, n]``; called as ``statistic(*resamples, axis=-1)``.

        Returns:
            ``[2, *]``.

        Raises:
            ImportError: SciPy is not installed.

        >>> Resampling().interval([np.array([0.0, 1.0])], np.mean).tolist()
        [0.0, 1.0]
        """
        try:
            from scipy.stats import bootstrap
        except ImportError as error:
            remedy = "run: pip install 'yamame[train]'"
            raise ImportError(f"Resampling: the package scipy must be installed, {remedy}") from error
        found = bootstrap(
            samples,
            statistic,
            axis=0,
            vectorized=True,
            n_resamples=self.num_resamples,
            confidence_level=self.confidence,
            method="percentile",
            rng=np.random.default_rng(self.seed),
        )
        return np.stack(found.confidence_interval)


def bootstrap_interval(values: Tensor, *, confidence: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean; a single value is both of its ends.

    Args:
        values: ``[n]``.
        confidence: Coverage, in (0, 1).

    Raises:
        ValueError: ``values`` is no such vector, or the coverage is out of its range.
        ImportError: SciPy is not installed.

    >>> import torch
    >>> bootstrap_interval(torch.full((5,), 3.0))
    (3.0, 3.0)
    """
    if values.ndim != 1 or values.numel() == 0 or not bool(values.isfinite().all()):
        raise ValueError(
            "bootstrap_interval: values must be a non-empty vector of finite numbers, got shape "
            f"{tuple(values.shape)}, {int((~values.isfinite()).sum())} not finite"
        )
    resampling = Resampling(confidence)
    if len(values) == 1:
        return float(values), float(values)
    low, high = resampling.interval([values.detach().double().cpu().numpy()], np.mean)
    return float(low), float(high)
