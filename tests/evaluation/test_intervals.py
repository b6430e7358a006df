"""Intervals: against published numbers, and against their own promise."""

import math
import runpy
import sys

import numpy as np
import pytest
import torch
from scipy import stats
from yamame.evaluation import intervals, mean_interval, wilson_interval
from yamame.evaluation.intervals import Resampling


@pytest.mark.parametrize(
    ("successes", "n", "expected"),
    [
        (5, 10, (0.2366, 0.7634)),
        (0, 10, (0.0, 0.2775)),
        (10, 10, (0.7225, 1.0)),
        (81, 263, (0.2553, 0.3662)),
    ],
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
    """The mean over p of the exact coverage is close to nominal; the textbook normal interval falls
    short.
    """

    def textbook(k, n):
        radius = 1.96 * math.sqrt(k / n * (1 - k / n) / n)
        return k / n - radius, k / n + radius

    grid = [i / 100 for i in range(1, 100)]
    mean = {
        f: sum(coverage(f, 20, p) for p in grid) / len(grid) for f in (wilson_interval, textbook)
    }
    assert mean[wilson_interval] == pytest.approx(0.95, abs=0.01)
    assert mean[textbook] < 0.90


@pytest.mark.parametrize("size", [2, 9, 400])
def test_the_interval_of_a_mean_is_students(size):
    values = torch.randn(size, generator=torch.Generator().manual_seed(0)) * 3 + 10
    expected = stats.ttest_1samp(values.numpy(), 0.0).confidence_interval(0.9)
    assert mean_interval(values, confidence=0.9) == pytest.approx(expected)


def test_a_wider_confidence_is_a_wider_interval():
    values = torch.randn(40, generator=torch.Generator().manual_seed(0))
    narrow, wide = mean_interval(values, confidence=0.5), mean_interval(values, confidence=0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_bootstrap_is_seeded_and_leaves_the_global_generator_alone():
    values = torch.randn(30, generator=torch.Generator().manual_seed(0))
    state = torch.get_rng_state()
    ends = [
        Resampling(seed=seed).interval([values.numpy()], np.mean).tolist() for seed in (1, 1, 2)
    ]
    assert ends[0] == ends[1] != ends[2]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_single_value_is_both_ends():
    assert mean_interval(torch.tensor([2.5])) == (2.5, 2.5)


def gap(a, b, axis):
    return a.mean(axis) - b.mean(axis)


def test_every_sample_is_resampled_on_its_own_and_all_columns_of_one_together():
    half = np.repeat([0.0, 1.0], 5)
    resampling = Resampling(num_resamples=500)
    low, high = resampling.interval([half, half], gap)
    assert low < -0.3  # shared draws would cancel to 0 everywhere
    assert high > 0.3
    table = np.stack([half, 2 * half], 1)
    low, high = resampling.interval([table], np.mean)
    assert low[1] == 2 * low[0]
    assert high[1] == 2 * high[0]
    spread = resampling.interval([table], lambda x, axis: np.mean(x[1] - 2 * x[0], axis))
    assert spread.tolist() == [0.0, 0.0]


def test_from_ten_values_on_the_interval_has_percentiles_as_far_out_as_students_t():
    """Resamples of ones and zeros have a binomial number of ones: the distribution is known
    exactly.
    """
    ones = np.array([1.0] * 4 + [0.0] * 6)
    tail = stats.norm.cdf(math.sqrt(10 / 9) * stats.t.ppf(0.025, 9))
    assert tail < 0.025
    exact = stats.binom.ppf([tail, 1 - tail], 10, 0.4) / 10
    found = Resampling(num_resamples=20_000).interval([ones], np.mean)
    assert found == pytest.approx(exact)


def test_below_ten_values_the_interval_of_a_mean_is_students_and_that_of_a_difference_welchs():
    generator = np.random.default_rng(0)
    for sizes in [(2, 9), (3, 3), (5, 40)]:
        first, second = (generator.normal(size=size) * size for size in sizes)
        student = stats.ttest_1samp(first, 0.0).confidence_interval(0.9)
        welch = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.9)
        resampling = Resampling(confidence=0.9)
        assert resampling.interval([first], np.mean) == pytest.approx(student)
        assert resampling.interval([first, second], gap) == pytest.approx(welch)


def test_values_that_are_all_the_same_are_both_ends():
    assert Resampling().interval([np.ones(3)], np.mean).tolist() == [1.0, 1.0]
    assert Resampling().interval([np.ones(3), np.ones(4)], gap).tolist() == [0.0, 0.0]


def share_that_holds(interval, n, difference):
    """In how many of 2,000 simulated experiments an interval holds the truth, 0; groups differ in
    their spread.
    """
    generator = np.random.default_rng(n)
    held = []
    for _ in range(4):  # less memory at a time
        samples = [
            generator.normal(size=(n, 500)) * spread for spread in (1.0, 2.0)[: 1 + difference]
        ]
        low, high = interval(samples, gap if difference else np.mean)
        held.append((low <= 0) & (high >= 0))
    return float(np.mean(held))


@pytest.mark.parametrize("difference", [False, True])
@pytest.mark.parametrize("n", [3, 5, 10])
def test_intervals_of_means_and_differences_cover_what_they_say(n, difference):
    # Of 2,000 experiments, the share that holds is known to half a percent.
    assert 0.93 <= share_that_holds(Resampling(num_resamples=1000).interval, n, difference) <= 0.97


@pytest.mark.parametrize("difference", [False, True])
def test_the_percentile_bootstrap_of_three_values_covers_far_less(difference):
    """The negative control of the test above, and the reason why three values are not resampled."""

    def percentile(samples, statistic):
        found = stats.bootstrap(samples, statistic, method="percentile", n_resamples=1000, rng=0)
        return found.confidence_interval

    assert 0.72 <= share_that_holds(percentile, 3, difference) <= 0.78


def test_only_an_interval_needs_scipy_and_says_how_to_get_it(monkeypatch):
    for module in ("scipy", "scipy.stats", "scipy.special"):
        monkeypatch.setitem(sys.modules, module, None)
    fresh = runpy.run_path(intervals.__file__)
    assert fresh["wilson_interval"](5, 10) == wilson_interval(5, 10)
    with pytest.raises(
        ImportError, match=r"scipy must be installed, run: pip install 'yamame\[train\]'"
    ):
        fresh["mean_interval"](torch.zeros(3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wilson_interval(0, 0), "n must be at least 1, got 0"),
        (lambda: wilson_interval(5, 4), r"successes must be in \[0, n=4\], got 5"),
        (lambda: wilson_interval(1, 4, confidence=1.0), "confidence must .*, got 1.0"),
        (
            lambda: Resampling(confidence=1.0),
            r"Resampling: confidence must be in \(0, 1\), got 1.0",
        ),
        (
            lambda: mean_interval(torch.zeros(3), confidence=0.0),
            "confidence must .*, got 0.0",
        ),
        (lambda: mean_interval(torch.zeros(0)), r"values must .*, got \(0,\)"),
        (lambda: mean_interval(torch.tensor([1.0, torch.nan])), "values must be finite, got .*1"),
        (
            lambda: mean_interval(torch.zeros(3, 2)),
            r"values must .*, got \(3, 2\)",
        ),
        (lambda: Resampling(num_resamples=1), "num_resamples must be in .2, 10000000., got 1"),
    ],
)
def test_impossible_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
