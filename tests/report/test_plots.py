"""Mean curves against means worked out by hand."""

import numpy as np
import pytest
from yamame.evaluation.intervals import Resampling
from yamame.report import Group
from yamame.report.plots import (
    families,
    learning_curve_of,
    mean_curve,
    training_curve_of,
    trial_curve_of,
)

RESAMPLING = Resampling(num_resamples=200)


def test_the_mean_is_taken_on_all_steps_that_every_run_knows(make_run):
    runs = [
        make_run(0, {"eval/success_mean": {10: 0.0, 30: 1.0}}),
        make_run(1, {"eval/success_mean": {20: 0.5, 30: 0.0, 90: 1.0}}),
    ]
    curve = learning_curve_of(Group("A", "", tuple(runs)), "success_mean", RESAMPLING)
    assert curve.x.tolist() == [20, 30]
    assert curve.y.tolist() == [0.5, 0.5]  # the first run is at 0.5 half-way between its points
    assert [x.tolist() for x, _ in curve.runs] == [[10, 30], [20, 30, 90]]


def test_a_band_needs_three_runs():
    lines = [(np.array([10.0, 20.0]), np.array([0.5, value])) for value in (0.0, 1.0, 0.5)]
    assert mean_curve(lines[:2], RESAMPLING, share=True).band is None
    low, high = mean_curve(lines, RESAMPLING, share=True).band
    assert (low[0], high[0]) == (0.5, 0.5)
    assert 0.0 <= low[1] < 0.5 < high[1] <= 1.0


def test_metrics_of_runs_are_one_frame(make_run):
    runs = [
        make_run(0, {"eval/success_mean": {10: 0.5, 20: np.inf}, "cost/cpu_s": {10: 7.0}}),
        make_run(1, {"eval/success_mean": {5: 0.25}}, tags={"axis": "updates"}),
        make_run(2, {}),
    ]
    metrics = Group("A", "", tuple(runs)).metrics
    assert metrics.frame["run"].tolist() == [0, 0, 0, 1]
    assert metrics.names == ["cost/cpu_s", "eval/success_mean"]
    # Infinity at the last step is not replaced by the value before it.
    assert metrics.last["eval/success_mean"].fillna(-1).tolist() == [-1, 0.25, -1]
    assert metrics.last_of(["eval/nothing"]).isna().all(axis=None)
    over_steps = metrics.on_axis("eval/success_mean", "env_steps")
    assert over_steps[["run", "x"]].to_numpy().tolist() == [[0, 10.0]]
    over_cpu_s = metrics.on_axis("eval/success_mean", "cpu_s")
    assert over_cpu_s[["run", "x", "value"]].to_numpy().tolist() == [[0, 7.0, 0.5]]
    assert metrics.costs()["env_steps"].fillna(-1).tolist() == [20, -1, -1]


def test_runs_that_share_no_step_have_no_mean():
    alone = [(np.array([1.0]), np.array([0.0])), (np.array([2.0]), np.array([0.0]))]
    curve = mean_curve(alone, RESAMPLING)
    assert (len(curve.x), len(curve.y), curve.band, len(curve.runs)) == (0, 0, None, 2)
    assert mean_curve([], RESAMPLING) is None


def test_the_band_of_a_single_run_is_the_interval_over_its_episodes(make_run):
    metrics = {
        f"eval/success_{name}": {10: value}
        for name, value in [("mean", 0.5), ("low", 0.3), ("high", 0.6)]
    }
    curve = learning_curve_of(Group("A", "", (make_run(0, metrics),)), "success_mean", RESAMPLING)
    assert [end.tolist() for end in curve.band] == [[0.3], [0.6]]
    del metrics["eval/success_low"]
    group = Group("A", "", (make_run(0, metrics),))
    assert learning_curve_of(group, "success_mean", RESAMPLING).band is None


def test_costs_become_the_axis_at_the_steps_of_evaluations(make_run):
    metrics = {
        "eval/success_mean": {10: 0.1, 20: 0.2, 30: np.nan},
        "cost/cpu_s": {10: 5.0, 15: 6.0, 20: 7.0},
    }
    group = Group("A", "", (make_run(0, metrics),))
    curve = learning_curve_of(group, "success_mean", RESAMPLING, axis="cpu_s")
    assert (curve.x.tolist(), curve.y.tolist()) == ([5.0, 7.0], [0.1, 0.2])
    assert learning_curve_of(group, "success_mean", RESAMPLING, axis="wall_s") is None


def test_long_training_curves_are_averaged_in_windows(make_run):
    values = {step: float(step) for step in range(600)}
    curve = training_curve_of(
        Group("A", "", (make_run(0, {"train/loss": values}),)), "train/loss", RESAMPLING
    )
    assert len(curve.x) == 60
    assert curve.y[0] == pytest.approx(4.5)  # the mean of 0 to 9
    assert curve.y[-1] == pytest.approx(594.5)


def test_the_in_context_curve_is_the_mean_return_of_every_trial_in_the_last_evaluation(make_run):
    def run(seed, *trials):
        metrics = {
            f"eval/return_mean_trial_{i}": {10: -1.0, 20: value} for i, value in enumerate(trials)
        }
        return make_run(seed, metrics)

    curve = trial_curve_of(
        Group("A", "", (run(0, 0.0, 1.0, 3.0), run(1, 1.0, 1.0, 5.0))), RESAMPLING
    )
    assert (curve.x.tolist(), curve.y.tolist()) == ([1, 2, 3], [0.5, 1.0, 4.0])
    assert trial_curve_of(Group("A", "", (make_run(),)), RESAMPLING) is None


def test_metrics_per_gamma_are_found_by_their_names_in_the_order_of_gammas(make_run):
    names = ["q_value_0.9", "q_value_0.1", "filter_weight_gamma_0.999", "q_value", "loss_critic"]
    group = Group("A", "", (make_run(0, {f"train/{name}": {1: 1.0} for name in names}),))
    assert families([group]) == {
        "filter_weight": {"0.999": "train/filter_weight_gamma_0.999"},
        "q_value": {"0.1": "train/q_value_0.1", "0.9": "train/q_value_0.9"},
    }
    assert list(families([group])["q_value"]) == ["0.1", "0.9"]


def test_steps_that_are_updates_are_no_environment_steps(make_run):
    metrics = {
        "eval/success_mean": {1: 0.1, 2: 0.2},
        "train/loss": {1: 1.0, 2: 0.5},
        "cost/env_steps": {1: 500.0, 2: 600.0},
    }
    group = Group("A", "", (make_run(0, metrics, tags={"axis": "updates"}),))
    for axis, places in (("updates", [1, 2]), ("env_steps", [500, 600])):
        assert learning_curve_of(group, "success_mean", RESAMPLING, axis=axis).x.tolist() == places
    assert training_curve_of(group, "train/loss", RESAMPLING).x.tolist() == [1, 2]
    del metrics["cost/env_steps"]
    group = Group("A", "", (make_run(0, metrics, tags={"axis": "updates"}),))
    assert learning_curve_of(group, "success_mean", RESAMPLING) is None
