"""Numbers of groups against numbers worked out by hand."""

import math

import numpy as np
import pytest
from scipy import stats
from yamame.report import Group, Resampling, make_sections
from yamame.report.estimates import compare_with_base, crossings, final, thresholds_for
from yamame.report.expected import Expected

RESAMPLING = Resampling(num_resamples=400)


def evaluated(*values, low=0.1, high=0.2, name="success"):
    """Metrics of evaluations at steps 10, 20, ..., with costs of 1 CPU-s per 10 steps."""
    steps = [10 * (index + 1) for index in range(len(values))]
    return {
        f"eval/{name}_mean": dict(zip(steps, values, strict=True)),
        f"eval/{name}_low": {step: value - low for step, value in zip(steps, values, strict=True)},
        f"eval/{name}_high": {
            step: value + high for step, value in zip(steps, values, strict=True)
        },
        "cost/cpu_s": {step: step / 10 for step in steps},
    }


def group_of(make_run, *values, **options):
    runs = [make_run(seed, evaluated(*row, **options)) for seed, row in enumerate(values)]
    return Group("A", "ours", tuple(runs))


def test_the_end_of_a_group_is_the_mean_of_the_last_evaluations_not_of_the_best(make_run):
    end = final(group_of(make_run, (0.9, 0.2), (0.1, 0.4), (0.0, 0.9)), "success_mean", RESAMPLING)
    assert end.values == {"0": 0.2, "1": 0.4, "2": 0.9}
    assert end.mean == pytest.approx(0.5)
    low, high = stats.ttest_1samp([0.2, 0.4, 0.9], 0.0).confidence_interval()
    assert low < 0.0  # and a share is not
    assert end.over_seeds == pytest.approx((0.0, min(high, 1.0)))
    assert end.method == "Student"


def test_ten_seeds_are_resampled(make_run):
    rows = [(seed / 10,) for seed in range(10)]
    end = final(group_of(make_run, *rows), "success_mean", RESAMPLING)
    assert end.method == "bootstrap"
    assert 0.1 < end.over_seeds[0] < 0.45 < end.over_seeds[1] < 0.8
    assert final(group_of(make_run, *rows[:9]), "success_mean", RESAMPLING).method == "Student"


def test_one_seed_has_no_interval_over_seeds_but_one_over_episodes(make_run):
    end = final(group_of(make_run, (0.8,)), "success_mean", RESAMPLING)
    assert end.over_seeds is None
    assert end.over_episodes == pytest.approx((0.7, 1.0))


def test_intervals_over_episodes_which_all_seeds_share_do_not_shrink_with_the_number_of_seeds(
    make_run,
):
    end = final(
        group_of(make_run, (2.0,), (4.0,), low=0.3, high=0.4, name="return"),
        "return_mean",
        RESAMPLING,
    )
    assert end.over_episodes == pytest.approx((2.7, 3.4))


def test_a_value_that_is_no_number_is_not_replaced_by_an_earlier_one(make_run):
    group = group_of(make_run, (0.9, math.nan), (0.9, 0.6))
    end = final(group, "success_mean", RESAMPLING)
    assert end.values == {"1": 0.6}
    assert end.over_seeds is None
    assert final(group_of(make_run, (0.5, math.nan)), "success_mean", RESAMPLING) is None
    assert final(group, "length_mean", RESAMPLING) is None


def test_thresholds_count_the_seeds_that_passed_and_the_median_counts_those_that_never_did(
    make_run,
):
    group = group_of(make_run, (0.5, 0.9), (0.1, 0.4), (0.9, 0.2))
    half = crossings(group, "success_mean", 0.5)
    assert (half.env_steps, half.cpu_s, half.num_runs) == ([10.0, 10.0], [1.0, 1.0], 3)
    assert half.median() == (10.0, 1.0)
    assert crossings(group, "success_mean", 0.4).median() == (10.0, 1.0)
    assert crossings(group, "success_mean", 0.9).env_steps == [20.0, 10.0]
    assert crossings(group_of(make_run, (0.1, 0.9), (0.1, 0.4)), "success_mean", 0.9).median() == (
        math.inf,
        math.inf,
    )
    never = crossings(group, "success_mean", 0.95)
    assert never.env_steps == []


def test_a_crossing_lies_on_the_line_between_two_evaluations(make_run):
    metrics = evaluated(0.2, 0.4, 0.8, 0.3, 0.9)
    metrics["cost/cpu_s"] = {10: 1.0, 20: 2.0, 30: 10.0, 40: 11.0, 50: 12.0}
    group = Group("A", "", (make_run(metrics=metrics),))
    found = crossings(group, "success_mean", 0.5)
    assert (found.env_steps, found.cpu_s) == ([pytest.approx(22.5)], [pytest.approx(4.0)])
    assert found.env_steps != [30.0]  # the first evaluation at or above it
    # Against a walk along a fine grid of the same line.
    steps = np.linspace(10, 50, 40_001)
    line = np.interp(steps, [10, 20, 30, 40, 50], [0.2, 0.4, 0.8, 0.3, 0.9])
    for threshold in (0.25, 0.4, 0.79, 0.85):
        (step,) = crossings(group, "success_mean", threshold).env_steps
        assert step == pytest.approx(steps[line >= threshold][0], abs=2e-3)
    # Where the first evaluation lies beyond the threshold, or on it, nothing is known of before.
    for threshold in (0.1, 0.2):
        assert crossings(group, "success_mean", threshold).env_steps == [10.0]


def test_a_crossing_does_not_depend_on_how_often_a_straight_rise_was_evaluated(make_run):
    def rising(*steps):
        return make_run(metrics={"eval/success_mean": {step: step / 100 for step in steps}})

    for steps in ((10, 90), (10, 50, 90), (10, 20, 30, 60, 61, 90)):
        (step,) = crossings(Group("A", "", (rising(*steps),)), "success_mean", 0.6).env_steps
        assert step == pytest.approx(60.0)


def test_thresholds_are_fractions_of_success_or_of_the_lower_end_of_what_is_expected():
    assert thresholds_for("success_mean", [0.9, 0.5], None) == [0.5, 0.9]
    expected = Expected("success_mean", (0.7, 1.0))
    assert thresholds_for("success_mean", [0.5], expected) == [0.5, 0.7]
    expected = Expected("return_mean", (20.0, math.inf))
    assert thresholds_for("return_mean", [0.5, 0.9], expected) == [10.0, 18.0, 20.0]
    assert thresholds_for("return_mean", [0.5], Expected("return_mean", (-5.0, 0.0))) == [-5.0]
    assert thresholds_for("return_mean", [0.5], None) == []
    assert thresholds_for("length_mean", [0.5], expected) == []


def comparison(make_run, ours, theirs):
    """The second group beside the first one."""
    runs = [make_run(seed, evaluated(value), lr=1) for seed, value in enumerate(theirs)]
    runs += [make_run(seed, evaluated(value), lr=2) for seed, value in enumerate(ours)]
    (section,), _ = make_sections(runs)
    return compare_with_base(section.base, section.groups[1], "success_mean", RESAMPLING)


def test_a_comparison_gives_the_difference_and_how_often_a_run_of_the_base_is_better(make_run):
    found = comparison(make_run, ours=[0.2, 0.6], theirs=[0.4, 0.8])
    assert found.differing == [("lr", "1", "2")]
    assert found.difference.value == pytest.approx(-0.2)
    assert found.base_better.value == 0.75  # 0.8 beats both, 0.4 beats 0.2 alone
    expected = stats.ttest_ind([0.2, 0.6], [0.4, 0.8], equal_var=False).confidence_interval()
    assert found.difference.ends == pytest.approx(expected)
    assert (found.difference.method, found.base_better.method) == ("Welch", "Newcombe")


def test_a_clear_comparison_excludes_zero_and_one_of_single_seeds_has_no_interval(make_run):
    found = comparison(make_run, ours=[0.1, 0.1, 0.2], theirs=[0.9, 0.8, 0.9])
    assert found.difference.high < 0
    assert (found.base_better.value, found.base_better.high) == (1.0, 1.0)
    found = comparison(make_run, ours=[0.1], theirs=[0.9, 0.8])
    assert found.base_better.value == 1.0
    assert (found.difference.ends, found.base_better.ends) == (None, None)


def test_of_a_length_less_is_better(make_run):
    runs = [
        make_run(seed, evaluated(value, value / 2, name="length"), lr=lr)
        for lr, values in ((1, (10.0, 12.0)), (2, (80.0, 90.0)))
        for seed, value in enumerate(values)
    ]
    (section,), _ = make_sections(runs)
    found = compare_with_base(section.base, section.groups[1], "length_mean", RESAMPLING)
    assert found.base_better.value == 1.0
    assert found.difference.value == pytest.approx(37.0)
    # From 80 to 40, from 90 to 45, in ten steps.
    expected = pytest.approx([10 + 10 * 38 / 40])
    assert crossings(section.groups[1], "length_mean", 42.0).env_steps == expected
    assert thresholds_for("length_mean", [0.5], Expected("length_mean", (0.0, 30.0))) == [30.0]


def test_who_counts_updates_passes_a_threshold_at_the_environment_steps_that_were_logged(make_run):
    metrics = evaluated(0.1, 0.9) | {"cost/env_steps": {10: 5000.0, 20: 7000.0}}
    group = Group("A", "", (make_run(metrics=metrics, tags={"axis": "updates"}),))
    assert crossings(group, "success_mean", 0.5).env_steps == [pytest.approx(6000.0)]
    assert crossings(group, "success_mean", 0.9).env_steps == [7000.0]
    del metrics["cost/env_steps"]
    group = Group("A", "", (make_run(metrics=metrics, tags={"axis": "updates"}),))
    assert np.isnan(crossings(group, "success_mean", 0.5).env_steps).all()


def test_intervals_over_repeated_tasks_are_kept_and_do_not_shrink_with_the_number_of_seeds(
    make_run,
):
    def runs(count):
        rows = [evaluated(0.5) for _ in range(count)]
        for row in rows:
            row |= {"eval/num_tasks": {10: 18.0}, "eval/num_episodes": {10: 256.0}}
            row["eval/intervals_over_tasks"] = {10: 1.0}
        return tuple(make_run(seed, row) for seed, row in enumerate(rows))

    for count in (1, 3):
        end = final(Group("A", "ours", runs(count)), "success_mean", RESAMPLING)
        assert end.over_episodes == pytest.approx((0.4, 0.7))
    (section,), _ = make_sections(runs(3))
    assert "256 episodes of 18 tasks" in section.evaluated_with


def test_an_interval_over_repeated_tasks_without_width_is_left_out(make_run):
    row = {key: {10: 0.5} for key in ("eval/return_mean", "eval/return_low", "eval/return_high")}
    row |= {
        "eval/num_episodes": {10: 4.0},
        "eval/num_tasks": {10: 2.0},
        "eval/intervals_over_tasks": {10: 1.0},
    }
    end = final(Group("A", "", (make_run(0, row),)), "return_mean", RESAMPLING)
    assert end.over_episodes is None
    row["eval/return_high"] = {10: 0.6}
    end = final(Group("A", "", (make_run(0, row),)), "return_mean", RESAMPLING)
    assert end.over_episodes == pytest.approx((0.5, 0.6))
