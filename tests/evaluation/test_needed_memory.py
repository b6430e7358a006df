"""How long a memory a task needs: the verdict on scores whose answer is known."""

import numpy as np
import pytest
from yamame.evaluation import judge_memory
from yamame.evaluation.intervals import Resampling
from yamame.evaluation.needed_memory import Mean

WINDOWS = [1, 2, 8, None]
TASKS = 200
QUICK = Resampling(num_resamples=200)


def told(means, *, chance=0.0, seeds=1, noise=0.0, tasks=TASKS, windows=WINDOWS):
    """The verdict on agents with such means, which differ between seeds, and on a random policy."""
    rng = np.random.default_rng(0)
    easy = rng.normal(size=tasks)  # what a task is worth for everybody
    levels = np.array(means, float)[:, None, None] + noise * rng.normal(size=(len(means), seeds, 1))
    scores = levels + easy + 0.2 * rng.normal(size=(len(means), seeds, tasks))
    return judge_memory(windows, scores, chance + easy + 0.2 * rng.normal(size=tasks), resampling=QUICK)


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(
    ("means", "outcome", "at_least", "at_most"),
    [
        ([5.0, 5.0, 5.0, 5.0], "not needed", 1, 1),
        ([0.5, 5.0, 5.0, 5.0], "needed", 2, 2),
        ([0.5, 0.5, 5.0, 5.0], "needed", 3, 8),
        ([0.5, 0.5, 0.5, 5.0], "needed", 9, None),
        ([0.5, 0.5, 5.0, 0.5], "needed", 3, 8),  # all of the history is harder to learn from
        ([5.0, 0.5, 0.5, 0.5], "not needed", 1, 1),
        ([4.8, 4.9, 5.0, 5.0], "not needed", 1, 1),  # within the margin
        ([0.0, 0.0, 0.0, 0.0], "nothing learnt", None, None),
    ],
)
def test_the_shortest_memory_that_does_as_well_as_the_best(means, outcome, at_least, at_most, seeds):
    found = told(means, seeds=seeds)
    assert found.outcome == outcome
    if outcome != "nothing learnt":
        assert (found.at_least, found.at_most) == (at_least, at_most)
    assert [one.window for one in found.reached] == WINDOWS


def test_what_noise_hides_is_undecided_and_what_is_certain_bounds_it():
    few = told([4.0, 4.0, 5.0, 5.0], seeds=3, noise=1.0)
    assert few.outcome == "undecided"
    assert str(few).startswith("undecided: ")
    between = told([-20.0, 4.0, 5.0, 5.0], seeds=3, noise=1.0)
    assert (between.outcome, between.at_least) == ("needed", 2)
    assert between.reached[1].standing == "unclear"


def test_tasks_are_compared_one_by_one():
    """Tasks differ by more than windows do; only differences within a task tell the windows apart."""
    found = told([3.0, 3.0, 4.0, 4.0])
    score, behind = found.reached[0].score, found.reached[0].behind
    assert (score.high - score.low) > 3 * (behind.high - behind.low)
    assert (found.at_least, found.at_most) == (3, 8)


def test_equals_are_all_enough_and_the_shortest_is_named():
    halves = np.arange(50) % 2.0
    found = judge_memory([1, 2, None], [[halves]] * 3, halves * 0, resampling=QUICK)
    assert (found.outcome, found.at_most) == ("not needed", 1)
    assert {one.behind for one in found.reached} == {Mean(0.0, 0.0, 0.0)}
    assert str(found) == (
        "memory brought nothing here within this budget; an agent without any reaches 0.5 [0.366, 0.634]; "
        "one with all reaches 0.5 [0.366, 0.634]"
    )


def test_being_ahead_of_chance_must_be_certain_of_the_best_of_several():
    """Of many windows that know nothing one is ahead of a random policy, by luck."""
    rng = np.random.default_rng(1)
    decided = 0
    for _ in range(40):
        scores = rng.integers(0, 2, (8, 1, 60))
        found = judge_memory([*range(1, 8), None], scores, rng.integers(0, 2, 60), resampling=QUICK)
        decided += found.outcome != "nothing learnt"
    assert decided <= 6


def test_worse_than_chance_is_nothing():
    found = told([-5.0, -4.0, -5.0, -5.0])
    assert found.outcome == "nothing learnt"
    assert found.reached[1].standing == "enough"


def test_the_verdict_is_a_sentence():
    found = told([0.5, 0.5, 5.0, 5.0])
    assert str(found).startswith(
        "this task needs memory: between 3 and 8 timesteps; an agent without any reaches "
    )
    assert "; one of 8 timesteps reaches 5" in str(found)
    assert str(told([0.5, 0.5, 0.5, 5.0])).startswith("this task needs memory: at least 9 timesteps; ")
    assert str(told([0.5, 5.0, 5.0, 5.0])).startswith("this task needs memory: 2 timesteps; ")
    assert str(told([0.0] * 4)).startswith("undecided: nobody learnt; a random policy reaches ")


@pytest.mark.parametrize(
    ("scores", "chance", "options", "message"),
    [
        (np.zeros((3, 1, 4)), np.zeros(4), {}, "scores must be finite and fit"),
        (np.zeros((2, 1, 4)), np.zeros(5), {}, "scores must be finite and fit"),
        (np.full((2, 1, 4), np.nan), np.zeros(4), {}, "scores must be finite and fit"),
        (np.zeros((2, 1, 4)), np.zeros(4), {"margin": -0.1}, "margin must be at least 0"),
        (np.zeros((2, 1, 4)), np.zeros(4), {"windows": [2, None]}, "windows must begin with 1"),
    ],
)
def test_what_does_not_fit_is_refused(scores, chance, options, message):
    with pytest.raises(ValueError, match=message):
        judge_memory(**{"windows": [1, None], "scores": scores, "random": chance} | options)


@pytest.mark.parametrize(
    ("windows", "scores", "random", "message"),
    [
        ([1, 8, 4], np.ones((3, 1, 4)), np.zeros(4), "windows must begin with 1 and rise"),
        ([1, 1], np.ones((2, 1, 4)), np.zeros(4), "windows must begin with 1 and rise"),
        ([1, 2], np.ones((2, 1, 4)), np.full(4, np.nan), "random must be finite"),
        ([1, 2], np.ones((2, 1, 1)), np.zeros(1), "scores must be of several tasks or seeds"),
    ],
)
def test_what_cannot_be_judged_is_refused(windows, scores, random, message):
    with pytest.raises(ValueError, match=message):
        judge_memory(windows, scores, random)


def test_the_best_of_several_has_to_be_further_ahead_than_one_would():
    ahead = np.zeros((5, 1, 256))
    ahead[-1, 0, :10] = 1  # in tasks enough for an interval of 95 %, and too few for the best of five
    found = judge_memory([1, 2, 4, 8, None], ahead, np.zeros(256), margin=0.4)
    assert found.reached[0].behind.low > 0.4 * 10 / 256
    assert found.outcome == "undecided"
