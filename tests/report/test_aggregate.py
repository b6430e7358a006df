"""Statistics over runs: against enumeration and worked values."""

import numpy as np
import pytest
from scipy import stats
from yamame.evaluation.intervals import Resampling
from yamame.report.aggregate import (
    aggregate,
    difference_of_means,
    probability_of_improvement,
    score_table,
)

FEW = Resampling(num_resamples=2)
SCORES = np.random.default_rng(0).random((5, 3))


def test_the_interquartile_mean_is_that_of_all_scores_together():
    table = np.array([[9.0, -100.0, 1.0, 2.0], [3.0, 4.0, 1000.0, 0.0]])
    assert aggregate(table, resampling=FEW).value == 2.5
    assert aggregate(table.T, resampling=FEW).value == 2.5
    of_runs = np.sort(table.mean(1)).mean()
    assert aggregate(table, resampling=FEW).value != of_runs


def test_mean_and_median_are_over_tasks_of_the_means_over_runs():
    table = np.array([[0.0, 10.0, 80.0], [2.0, 30.0, 100.0]])
    assert aggregate(table, statistic="mean", resampling=FEW).value == 37.0
    assert aggregate(table, statistic="median", resampling=FEW).value == 20.0


def test_few_runs_have_an_interval_by_the_spread_within_tasks_and_many_are_resampled_within_tasks():
    table = np.array([[0.0, 10.0], [1.0, 14.0], [5.0, 12.0]])
    found = aggregate(table, statistic="mean")
    variances = table.var(0, ddof=1) / 3 / 4  # of the mean of two tasks
    freedom = variances.sum() ** 2 / np.square(variances).sum() * 2
    radius = stats.t.ppf(0.975, freedom) * np.sqrt(variances.sum())
    assert found == (
        pytest.approx(7.0),
        pytest.approx(7.0 - radius),
        pytest.approx(7.0 + radius),
        "Welch",
    )
    # Of ten runs, half with 0 and half with 1 in the one task that varies: the mean is 50 and half
    # of a share.
    many = np.stack([np.repeat([0.0, 1.0], 5), np.full(10, 100.0)], 1)
    found = aggregate(many, statistic="mean")
    assert (found.value, found.method) == (50.25, "bootstrap")
    assert 50.0 <= found.low < 50.15 < 50.35 < found.high <= 50.5


@pytest.mark.parametrize(("runs", "tasks"), [(3, 1), (3, 6), (5, 6)])
def test_the_interval_of_an_interquartile_mean_covers_at_least_what_it_says(runs, tasks):
    generator = np.random.default_rng(0)
    resampling = Resampling(num_resamples=200)
    held = 0
    for _ in range(150):
        found = aggregate(
            generator.normal(size=(runs, tasks)) + np.arange(tasks), resampling=resampling
        )
        held += found.low <= (tasks - 1) / 2 <= found.high
    assert held / 150 >= 0.92  # of 150, the share is known to two percent


def test_easy_and_hard_tasks_are_no_uncertainty():
    apart = SCORES + np.array([0.0, 100.0, 200.0])
    low, high = aggregate(apart, statistic="mean").ends
    assert high - low < 1.0
    low, high = aggregate(apart.reshape(-1, 1), statistic="mean").ends
    assert high - low > 50.0


def test_one_outlier_moves_the_mean_and_not_the_interquartile_mean():
    table = SCORES.copy()
    table[0, 0] = 1e4
    assert aggregate(table).value < 1.0
    assert aggregate(table, statistic="mean").value > 100.0


def test_the_probability_of_improvement_counts_pairs_within_tasks():
    a, b = SCORES[:3], np.concatenate([SCORES[3:], SCORES[:1]])
    b[0, 0] = a[0, 0]
    pairs = [
        [1.0 if x > y else 0.5 if x == y else 0.0 for x in a[:, task] for y in b[:, task]]
        for task in range(3)
    ]
    expected = np.mean([np.mean(task) for task in pairs])
    found = probability_of_improvement(a, b)
    assert found.value == pytest.approx(expected)
    assert found.low <= found.value <= found.high
    assert probability_of_improvement(b, a).value == pytest.approx(1.0 - expected)
    mixed = np.mean([float(x > y) for x in a.ravel() for y in b.ravel()])
    assert found.value != pytest.approx(mixed)


def test_groups_that_do_not_overlap_are_not_certain_and_more_runs_say_more():
    found = probability_of_improvement([[1.0]] * 3, [[0.0]] * 3)
    assert (found.value, found.high, found.method) == (1.0, 1.0, "Newcombe")
    assert (
        found.low < 0.5
    )  # three runs that all beat three others happen by chance in one of twenty cases
    other = probability_of_improvement([[0.0]] * 3, [[1.0]] * 3)
    assert (other.value, other.low) == (0.0, 0.0)
    assert other.high == pytest.approx(1.0 - found.low)
    lows = [probability_of_improvement([[1.0]] * n, [[0.0]] * n).low for n in (3, 5, 10, 20)]
    assert lows == sorted(lows)
    assert lows[-1] > 0.85
    # Five tasks on which that happens are surer than one.
    assert probability_of_improvement(np.ones((3, 5)), np.zeros((3, 5))).low > 0.6


@pytest.mark.parametrize("apart", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("n", [3, 5, 10])
def test_the_interval_of_the_probability_of_improvement_covers_at_least_what_it_says(n, apart):
    generator = np.random.default_rng(n)
    truth = stats.norm.cdf(apart / np.sqrt(2.0))
    held = 0
    for _ in range(400):
        a, b = generator.normal(size=(2, n, 1))
        found = probability_of_improvement(a + apart, b)
        held += found.low <= truth <= found.high
    assert held / 400 >= 0.93


def test_the_difference_of_means_names_its_interval():
    found = difference_of_means([1.0, 3.0], [0.0, 10.0])
    ends = stats.ttest_ind([1.0, 3.0], [0.0, 10.0], equal_var=False).confidence_interval()
    assert found == (-3.0, pytest.approx(ends[0]), pytest.approx(ends[1]), "Welch")
    assert difference_of_means(np.arange(10), np.arange(12)).method == "bootstrap"


def test_one_run_of_a_task_says_nothing_of_others():
    assert aggregate(SCORES[:1]) == (aggregate(SCORES[:1]).value, None, None, None)
    for one in (
        probability_of_improvement(SCORES[:1], SCORES),
        probability_of_improvement(SCORES, SCORES[:1]),
        difference_of_means([1.0], [0.0, 1.0]),
    ):
        assert one.ends is None
    assert probability_of_improvement(SCORES[:2], SCORES).ends is not None


def test_estimates_are_seeded_and_leave_the_global_generator_alone():
    state = np.random.get_state()[1].tolist()
    assert aggregate(SCORES, resampling=Resampling(seed=1)) == aggregate(
        SCORES, resampling=Resampling(seed=1)
    )
    assert aggregate(SCORES, resampling=Resampling(seed=1)) != aggregate(
        SCORES, resampling=Resampling(seed=2)
    )
    assert np.random.get_state()[1].tolist() == state


def test_a_wider_confidence_is_a_wider_interval():
    narrow, wide = (
        aggregate(SCORES, resampling=Resampling(confidence)) for confidence in (0.5, 0.99)
    )
    assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: aggregate([1.0, 2.0]),
            r"scores must be finite \[runs, tasks\], got shape \(2,\), 0 not finite",
        ),
        (lambda: aggregate([[1.0, np.nan]]), r"got shape \(1, 2\), 1 not finite"),
        (lambda: aggregate(np.zeros((0, 2))), r"got shape \(0, 2\)"),
        (
            lambda: aggregate(SCORES, statistic="mode"),
            r"statistic must be one of \('iqm', 'mean', 'median'\), got 'mode'",
        ),
        (
            lambda: probability_of_improvement(SCORES, SCORES[:, :2]),
            "b must have the 3 tasks of a, got 2",
        ),
        (
            lambda: score_table(["a", "a", "b"], [1.0, 2.0, 3.0]),
            r"as many runs for each of a, b, got \[2, 1\]",
        ),
    ],
)
def test_impossible_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
