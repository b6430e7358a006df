"""Intervals: against published numbers, and against their own promise."""

import itertools
import math
import runpy
import sys

import numpy as np
import pytest
import torch
from yamame.evaluation import bootstrap_interval, intervals, wilson_interval
from yamame.evaluation.intervals import Resampling


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
    assert bootstrap_interval(values) == bootstrap_interval(values)
    ends = [Resampling(seed=seed).interval([values.numpy()], np.mean).tolist() for seed in (1, 1, 2)]
    assert ends[0] == ends[1] != ends[2]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_single_value_is_both_ends():
    assert bootstrap_interval(torch.tensor([2.5])) == (2.5, 2.5)


def test_every_sample_is_resampled_on_its_own_and_all_columns_of_one_together():
    def gap(a, b, axis):
        return a.mean(axis) - b.mean(axis)

    twice = np.array([0.0, 1.0])
    resampling = Resampling()
    # Independent draws: a mean of 1 meets a mean of 0. Shared draws would cancel to 0 everywhere.
    assert resampling.interval([twice, twice], gap).tolist() == [-1.0, 1.0]
    table = np.stack([twice, 2 * twice], 1)
    assert resampling.interval([table], np.mean).tolist() == [[0.0, 0.0], [1.0, 2.0]]
    spread = resampling.interval([table], lambda x, axis: np.mean(x[1] - 2 * x[0], axis))
    assert spread.tolist() == [0.0, 0.0]


def test_the_interval_is_the_percentiles_of_all_resamples():
    """Three values have 27 equally likely resamples: the distribution of their means is known exactly."""
    values = np.array([0.0, 1.0, 5.0])
    exact = sorted(np.mean(picks) for picks in itertools.product(values, repeat=3))
    low, high = Resampling(confidence=0.6, num_resamples=4000).interval([values], np.mean)
    # 0.2 and 0.8 lie within steps of the exact distribution, which 4000 resamples find.
    assert (low, high) == pytest.approx((exact[int(0.2 * 27)], exact[int(0.8 * 27)]))


def test_only_an_interval_needs_scipy_and_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    monkeypatch.setitem(sys.modules, "scipy", None)
    fresh = runpy.run_path(intervals.__file__)
    assert fresh["wilson_interval"](5, 10) == wilson_interval(5, 10)
    with pytest.raises(ImportError, match=r"scipy must be installed, run: pip install 'yamame\[train\]'"):
        fresh["bootstrap_interval"](torch.zeros(3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wilson_interval(0, 0), "n must be at least 1, got 0"),
        (lambda: wilson_interval(5, 4), r"successes must be in \[0, n=4\], got 5"),
        (lambda: wilson_interval(1, 4, confidence=1.0), r"confidence must be in \(0, 1\), got 1.0"),
        (lambda: Resampling(confidence=1.0), r"Resampling: confidence must be in \(0, 1\), got 1.0"),
        (
            lambda: bootstrap_interval(torch.zeros(3), confidence=0.0),
            r"confidence must be in \(0, 1\), got 0.0",
        ),
        (lambda: bootstrap_interval(torch.zeros(0)), r"values must be a non-empty .* got shape \(0,\)"),
        (lambda: bootstrap_interval(torch.tensor([1.0, torch.nan])), r"got shape \(2,\), 1 not finite"),
        (lambda: bootstrap_interval(torch.zeros(3, 2)), r"must be a non-empty vector .* got shape \(3, 2\)"),
        (lambda: Resampling(num_resamples=1), "num_resamples must be in .2, 10000000., got 1"),
    ],
)
def test_impossible_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
