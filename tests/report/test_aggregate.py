"""Statistics over runs: against enumeration and worked values."""

import itertools

import numpy as np
import pytest
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


def test_the_interval_is_the_percentiles_of_all_resamples_within_tasks():
    """Two runs on two tasks have 16 equally likely resamples: the distribution is known exactly."""
    table = np.array([[0.0, 10.0], [1.0, 14.0]])
    columns = [list(itertools.product(column, repeat=2)) for column in table.T]
    exact = sorted(np.mean([*first, *second]) for first, second in itertools.product(*columns))
    found = aggregate(table, statistic="mean", resampling=Resampling(0.7, 4000))
    # 0.15 and 0.85 lie within steps of the exact distribution, which 4000 resamples find.
    assert found.low == pytest.approx(exact[int(0.15 * 16)])
    assert found.high == pytest.approx(exact[int(0.85 * 16)])
    assert found.low < found.value < found.high


def test_easy_and_hard_tasks_are_no_uncertainty():
    apart = SCORES + np.array([0.0, 100.0, 200.0])
    low, high = aggregate(apart, statistic="mean")[1:]
    assert high - low < 1.0
    low, high = aggregate(apart.reshape(-1, 1), statistic="mean")[1:]
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


def test_groups_that_do_not_overlap_are_certain_and_both_are_resampled():
    assert probability_of_improvement(SCORES + 1, SCORES) == (1.0, 1.0, 1.0)
    assert probability_of_improvement(SCORES, SCORES + 1) == (0.0, 0.0, 0.0)
    assert probability_of_improvement([[1.0], [1.0]], [[0.0], [2.0]]).ends == (0.0, 1.0)
    assert probability_of_improvement([[0.0], [2.0]], [[1.0], [1.0]]).ends == (0.0, 1.0)


def test_the_difference_of_means_resamples_both_groups_independently():
    found = difference_of_means([1.0, 3.0], [0.0, 10.0])
    assert found == (-3.0, -9.0, 3.0)


def test_one_run_of_a_task_says_nothing_of_others():
    assert aggregate(SCORES[:1]) == (aggregate(SCORES[:1]).value, None, None)
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
    narrow, wide = (aggregate(SCORES, resampling=Resampling(confidence)) for confidence in (0.5, 0.99))
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
        (lambda: probability_of_improvement(SCORES, SCORES[:, :2]), "b must have the 3 tasks of a, got 2"),
        (lambda: score_table(["a", "a", "b"], [1.0, 2.0, 3.0]), r"as many runs, got \[2, 1\] of a, b"),
    ],
)
def test_impossible_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
