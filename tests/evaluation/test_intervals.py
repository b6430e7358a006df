"""Intervals: against published numbers, and against their own promise."""

import math

import pytest
import torch
from yamame.evaluation import bootstrap_interval, wilson_interval


@pytest.mark.parametrize(
    ("successes", "n", "expected"),
    [(5, 10, (0.2366, 0.7634)), (0, 10, (0.0, 0.2775)), (10, 10, (0.7225, 1.0)), (81, 263, (0.2553, 0.3662))],
)
def test_wilson_interval_equals_published_values(successes, n, expected):
    assert wilson_interval(successes, n) == pytest.approx(expected, abs=5e-5)


def coverage(interval, n: int, p: float) -> float:
    """Exact probability that the interval holds p: the sum over all outcomes of n trials."""
    total = 0.0
    for k in range(n + 1):
        low, high = interval(k, n)
        total += math.comb(n, k) * p**k * (1 - p) ** (n - k) * (low <= p <= high)
    return total


def test_wilson_interval_covers_as_often_as_it_says():
    """The mean over p of the exact coverage is close to nominal; the textbook normal interval falls short."""

    def textbook(k, n):
        radius = 1.96 * math.sqrt(k / n * (1 - k / n) / n)
        return k / n - radius, k / n + radius

    grid = [i / 100 for i in range(1, 100)]
    mean = {f: sum(coverage(f, 20, p) for p in grid) / len(grid) for f in (wilson_interval, textbook)}
    assert mean[wilson_interval] == pytest.approx(0.95, abs=0.01)
    assert mean[textbook] < 0.90


def test_bootstrap_of_a_mean_agrees_with_the_normal_approximation():
    values = torch.randn(400, generator=torch.Generator().manual_seed(0)) * 3 + 10
    low, high = bootstrap_interval(values)
    error = float(values.std()) / math.sqrt(400)
    # quantiles of 2000 resamples are themselves known to a few percent of the width
    assert low == pytest.approx(float(values.mean()) - 1.96 * error, abs=0.2 * error)
    assert high == pytest.approx(float(values.mean()) + 1.96 * error, abs=0.2 * error)


def test_a_wider_confidence_is_a_wider_interval():
    values = torch.randn(40, generator=torch.Generator().manual_seed(0))
    narrow, wide = bootstrap_interval(values, confidence=0.5), bootstrap_interval(values, confidence=0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_bootstrap_is_seeded_and_leaves_the_global_generator_alone():
    values = torch.randn(30, generator=torch.Generator().manual_seed(0))
    state = torch.get_rng_state()
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(values, seed=1)
    assert bootstrap_interval(values, seed=1) != bootstrap_interval(values, seed=2)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wilson_interval(0, 0), "n must be positive, got 0"),
        (lambda: wilson_interval(5, 4), r"successes must be in \[0, n=4\], got 5"),
        (lambda: wilson_interval(1, 4, confidence=1.0), r"confidence must be in \(0, 1\), got 1.0"),
        (lambda: bootstrap_interval(torch.zeros(0)), r"values must be a non-empty .* got shape \(0,\)"),
        (lambda: bootstrap_interval(torch.tensor([1.0, torch.nan])), r"got shape \(2,\), 1 not finite"),
        (lambda: bootstrap_interval(torch.zeros(3, 2)), r"must be a non-empty vector .* got shape \(3, 2\)"),
        (
            lambda: bootstrap_interval(torch.zeros(3), num_resamples=0),
            "num_resamples must be positive, got 0",
        ),
    ],
)
def test_impossible_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
