"""Scores of a suite: between random actions and the best known result, over seeds, then tasks."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yamame.checks import ArgumentError, UsageError
from yamame.evaluation.intervals import Resampling
from yamame.report import scores
from yamame.report.scores import Anchors, ScoredRun

RESAMPLING = Resampling()
FINITE = st.floats(-1e3, 1e3)


def run(task, seed, score, budget=60.0, metric="return_mean"):
    return ScoredRun("dev", task, seed, budget, metric, 2 * score, score, 512, 4, 61.5)


@given(FINITE, FINITE, FINITE)
def test_a_score_is_a_share_of_the_way_from_random_to_best(random, best, value):
    if random == best:
        with pytest.raises(ArgumentError, match="best"):
            Anchors(random, best)
        return
    anchors = Anchors(random, best)
    assert (anchors.score(random), anchors.score(best)) == (0.0, 1.0)
    assert 0.0 <= anchors.score(value) <= 1.0
    # The same task with the sign of its metric changed, so that less is better.
    assert Anchors(-random, -best).score(-value) == anchors.score(value)


@pytest.mark.parametrize("best", [math.nan, math.inf])
def test_anchors_are_finite(best):
    with pytest.raises(ArgumentError, match="best"):
        Anchors(0.0, best)


def test_seeds_are_averaged_before_tasks():
    runs = [run("a", 0, 0.0), run("a", 1, 0.0), run("a", 2, 0.6), run("b", 0, 1.0)]
    (mean,) = scores.mean_scores(runs, RESAMPLING)
    assert (mean.num_tasks, mean.budget) == (2, "60 CPU-s")
    assert mean.over_tasks.value == pytest.approx(0.6)
    # Tasks that differ in their seeds have no interval over seeds, and the same mean.
    assert mean.over_seeds.value == mean.over_tasks.value
    assert mean.over_seeds.ends is None


def test_the_intervals_are_over_tasks_and_over_seeds():
    rng = np.random.default_rng(0)
    runs = [
        run(f"task {task}", seed, float(task / 12 + 0.01 * rng.random()))
        for task in range(12)
        for seed in range(3)
    ]
    (mean,) = scores.mean_scores(runs, RESAMPLING)
    low, high = mean.over_tasks.ends
    assert mean.over_tasks.method == "bootstrap"
    assert low < mean.over_tasks.value < high
    # Tasks differ much and seeds hardly.
    assert high - low > 10 * (mean.over_seeds.ends[1] - mean.over_seeds.ends[0])


def test_all_budgets_count_alike_where_all_were_run():
    runs = [run("a", 0, 0.2), run("a", 0, 0.4, 300.0), run("b", 0, 1.0, 300.0)]
    short, long, both = scores.mean_scores(runs, RESAMPLING)
    assert (short.budget, long.budget, both.budget) == ("60 CPU-s", "300 CPU-s", "all")
    assert [mean.num_tasks for mean in (short, long, both)] == [1, 2, 1]
    assert both.over_tasks.value == pytest.approx(0.3)


def test_a_comparison_is_paired_by_task():
    """Settings that differ by the same amount on very different tasks differ for certain."""
    levels = np.linspace(0.1, 0.8, 12)
    ours = [run(f"task {i}", 0, level + 0.1) for i, level in enumerate(levels)]
    theirs = [run(f"task {i}", 0, level - 0.001 * (i % 2)) for i, level in enumerate(levels)]
    (found,) = scores.differences([*ours, run("more", 0, 1.0)], theirs, RESAMPLING)
    assert list(found.tasks) == [f"task {i}" for i in range(12)]
    assert found.mean.value == pytest.approx(0.1005)
    low, high = found.mean.ends
    assert 0.099 < low < high < 0.102


def test_a_file_gives_back_what_was_written(tmp_path):
    runs = [run("=a", 0, 0.25), run("b", 1, 0.5, None)]
    scores.write_scores(tmp_path / "more" / "dev.csv", runs)
    assert scores.read_scores(tmp_path / "more" / "dev.csv") == runs


def test_a_baseline_is_scored_by_the_present_anchors():
    stored = [run("a", 0, 0.25), run("a", 1, 0.25, metric="success_mean"), run("b", 0, 0.25)]
    anchors = {"a": ("return_mean", Anchors(0.0, 1.0))}
    (found,) = scores.rescored(stored, "dev", anchors)
    assert (found.seed, found.value, found.score) == (0, 0.5, 0.5)
    assert scores.rescored(stored, "reported", anchors) == []


@pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"\xff\xfe"])
def test_another_file_is_no_baseline(tmp_path, content):
    file = tmp_path / "dev.csv"
    with pytest.raises(UsageError, match="baseline"):
        scores.read_scores(file)
    file.write_bytes(content)
    with pytest.raises(UsageError, match="baseline"):
        scores.read_scores(file)


def test_a_damaged_number_is_no_result(tmp_path):
    file = tmp_path / "dev.csv"
    scores.write_scores(file, [run("a", 0, 0.25)])
    file.write_text(file.read_text().replace("61.5", "nan"))
    with pytest.raises(UsageError, match="line 2"):
        scores.read_scores(file)


def test_lines_of_tables_have_every_task_and_budget():
    runs = [run("a", 0, 0.2), run("a", 1, 0.4), run("a", 0, 0.4, 300.0)]
    first, second = scores.run_rows(runs)
    assert (first["seeds"], first["at the end"], first["score"]) == (
        "0, 1",
        "0.400, 0.800",
        "0.300",
    )
    assert second["budget"] == "300 CPU-s"
    assert [row["budget"] for row in scores.mean_rows(scores.mean_scores(runs, RESAMPLING))] == [
        "60 CPU-s", "300 CPU-s", "all",
    ]  # fmt: skip
    rows = scores.difference_rows(scores.differences(runs, runs, RESAMPLING))
    assert [row["task"] for row in rows] == ["a", "mean", "over tasks"]
    assert set(rows[0]) == {"task", "60 CPU-s", "300 CPU-s", "all"}
