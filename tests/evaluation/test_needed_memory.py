"""Verdicts on how much memory a task needs, of simulated agents whose true scores are known."""

import re

import numpy as np
import pytest
from scipy import stats
from yamame.evaluation import judge_memory, wilson_interval
from yamame.evaluation.needed_memory import Mean

WINDOWS = [1, 2, 8, None]
TASKS = 200


def first(count):
    """As many windows, the last of which sees all timesteps."""
    return [*range(1, count), None]


def play(rng, levels, tasks, kind):
    """Scores ``[..., tasks]`` of agents with the given true means.

    Successes depend on the difficulty of a task for everybody (``same``) or on tasks of every agent
    (``own``).
    """
    if kind == "returns":
        return (
            levels[..., None]
            + rng.normal(size=tasks)
            + 0.5 * rng.normal(size=(*levels.shape, tasks))
        )
    draws = rng.random(tasks if kind == "same" else (*levels.shape, tasks))
    return (draws < levels.clip(0, 1)[..., None]).astype(float)


def verdicts(rng, means, noise, seeds, tasks, kind, *, repeats, random=0.0, **options):
    """Verdicts on repeated probes; trainings of one window differ by Gaussian noise, one value or
    one per window.
    """
    means, noise = np.array(means, float), np.broadcast_to(noise, len(means))
    found = []
    for _ in range(repeats):
        levels = means[:, None] + noise[:, None] * rng.normal(size=(len(means), seeds))
        scores = play(rng, levels, tasks, kind)
        chance = play(rng, np.array(random), tasks, kind)
        found.append(judge_memory(first(len(means)), scores, chance, **options))
    return found


def share(found, *outcomes):
    return np.mean([one.outcome in outcomes for one in found])


def at_most(rate, repeats):
    """Share of repeats that an event of this rate exceeds in one of 1,000 tests, by the binomial
    distribution.
    """
    return stats.binom.isf(1e-3, repeats, rate) / repeats


# False alarms: all agents are equal in truth.

EQUAL = [
    (2, 1, 0.5, 0.1, 1024),
    (2, 2, 0.05, 0.1, 1024),
    (2, 2, 0.5, 0.1, 1024),
    (2, 3, 0.95, 0.1, 256),
    (2, 5, 0.5, 0.05, 256),
    (3, 2, 0.05, 0.05, 1024),
    (3, 3, 0.5, 0.1, 1024),
    (4, 2, 0.95, 0.0, 64),
    (6, 1, 0.6, 0.05, 256),
    (6, 2, 0.6, 0.05, 256),
    (6, 3, 0.6, 0.05, 256),
    (8, 2, 0.6, 0.1, 1024),
]
"""Number of windows and seeds, success, noise between trainings, number of tasks: few of each, and
much noise.
"""


@pytest.mark.parametrize("kind", ["own", "same", "returns"])
def test_equal_agents_seldom_seem_to_need_memory(kind):
    """In every cell, not on average: a user has one task, and one number of windows and seeds."""
    rng, repeats, rates = np.random.default_rng(0), 250, []
    for windows, seeds, success, noise, tasks in EQUAL:
        found = verdicts(rng, [success] * windows, noise, seeds, tasks, kind, repeats=repeats)
        rates.append(share(found, "needed"))
        assert rates[-1] <= at_most(0.05, repeats), (windows, seeds, success, noise, tasks)
    assert np.mean(rates) <= 0.05


def test_equal_agents_seldom_seem_to_need_memory_on_average():
    """Cells drawn from a grid; the rate in all of them is known ten times as well as in one."""
    rng, repeats, needed = np.random.default_rng(1), 3000, 0
    for _ in range(repeats):
        windows, seeds, tasks = rng.integers(2, 9), rng.integers(1, 6), 2 ** rng.integers(6, 11)
        kind = rng.choice(["own", "same", "returns"])
        success, noise = rng.uniform(0.05, 0.95), rng.uniform(0, 0.1)
        chance = rng.uniform(0, success)
        [found] = verdicts(
            rng,
            [success] * windows,
            noise,
            seeds,
            tasks,
            kind,
            repeats=1,
            random=chance,
            margin=0.02,
        )
        needed += found.outcome == "needed"
    assert needed / repeats <= at_most(0.05, repeats)


def test_one_seed_judged_over_its_tasks_seems_to_need_memory_often():
    """Negative control: the simulated noise deceives a judge that takes tasks for repetitions of
    the training.
    """
    rng, needed = np.random.default_rng(0), 0
    for _ in range(200):
        scores = play(rng, 0.6 + 0.05 * rng.normal(size=6), 256, "same")
        gaps = scores[scores.mean(1).argmax()] - scores[0]
        low = stats.ttest_1samp(gaps, 0.0).confidence_interval().low if gaps.any() else 0.0
        needed += low > 0.1 * scores.mean(1).max()
    assert needed / 200 > at_most(0.05, 200)


@pytest.mark.parametrize("windows", [2, 5])
@pytest.mark.parametrize("noisy", [0, -1])
def test_a_window_that_is_noisier_than_the_others_is_no_better(windows, noisy):
    noise = np.zeros(windows)
    noise[noisy] = 0.5
    found = verdicts(
        np.random.default_rng(2), [2.0] * windows, noise, 3, 256, "returns", repeats=300, margin=0.0
    )
    assert share(found, "needed") <= at_most(0.05, 300)


@pytest.mark.parametrize("learns", [0.3, 0.5, 0.7])
def test_agents_that_learn_by_luck_do_not_seem_to_need_memory(learns):
    """Trainings often end in one of two scores, which is far from Gaussian noise."""
    rng, needed = np.random.default_rng(3), 0
    for _ in range(400):
        levels = np.where(rng.random((3, 3)) < learns, 1.0, 0.5)
        scores = play(rng, levels, 256, "same")
        needed += judge_memory([1, 8, None], scores, np.zeros(256)).outcome == "needed"
    assert needed / 400 <= at_most(0.05, 400)


def test_agents_that_always_take_one_side_do_not_seem_to_need_memory():
    """In a T-Maze without memory an agent turns to one side; agents that agree by luck show no
    noise at all.
    """
    rng, needed = np.random.default_rng(4), 0
    for _ in range(400):
        is_left = rng.random(64) < 0.5
        turns_left = rng.random((2, 2, 1)) < 0.5
        scores = (turns_left == is_left).astype(float)
        needed += judge_memory([1, None], scores, np.zeros(64)).outcome == "needed"
    assert needed / 400 <= at_most(0.05, 400)


# Power: what is there is found.


@pytest.mark.parametrize(
    ("seeds", "noise", "tasks", "at_least"),
    [
        (3, 0.05, 64, 0.8),
        (3, 0.05, 256, 0.95),
        (5, 0.1, 256, 0.95),
    ],
)
@pytest.mark.parametrize("means", [[0.5, 0.95], [0.5, 0.95, 0.95], [0.5, 0.5, 0.5, 0.95, 0.95]])
def test_a_large_effect_is_found(means, seeds, noise, tasks, at_least):
    found = verdicts(np.random.default_rng(5), means, noise, seeds, tasks, "own", repeats=100)
    assert share(found, "needed") >= at_least
    # Bounds of the need are right: below the truth from below, and not below it from above.
    truth = means.count(0.5) + 1
    assert np.mean([one.at_least > truth for one in found]) <= 0.05
    assert np.mean([(one.at_most or truth) < truth for one in found]) <= 0.05


# The other verdicts: absence of evidence is no evidence.


@pytest.mark.parametrize("kind", ["own", "same", "returns"])
@pytest.mark.parametrize(("seeds", "noise"), [(1, 0.05), (2, 0.05), (2, 0.1), (3, 0.1)])
def test_a_difference_beyond_the_margin_is_seldom_denied(kind, seeds, noise):
    means = [0.7, 0.7, 0.85]  # a tenth of 0.85 would count as no difference
    found = verdicts(np.random.default_rng(6), means, noise, seeds, 256, kind, repeats=150)
    assert share(found, "not needed", "no difference") <= at_most(0.05, 150)
    assert np.mean([one.at_most in (1, 2) for one in found]) <= at_most(0.05, 150)


def test_one_seed_gives_no_verdict_and_no_bound():
    for means in ([0.0, 1.0], [1.0, 1.0], [0.5, 0.5], [0.0, 0.0]):
        [found] = verdicts(np.random.default_rng(7), means, 0.0, 1, 256, "own", repeats=1)
        assert (found.outcome, found.at_least, found.at_most) == ("not settled", 1, None)
        assert {one.standing for one in found.reached} == {"unclear"}
        assert str(found).startswith("no verdict")


def test_equal_agents_are_called_equal_when_the_noise_is_small():
    """Negative control: the test above would hold of a judge that never decides."""
    equal = verdicts(
        np.random.default_rng(8), [0.8] * 3, 0.01, 3, 1024, "same", repeats=50, highest=1.0
    )
    assert share(equal, "no difference") > 0.9
    # At the highest score no memory can bring more, whatever agents have learnt.
    solved = verdicts(
        np.random.default_rng(8), [0.99] * 3, 0.002, 3, 1024, "same", repeats=50, highest=1.0
    )
    assert share(solved, "not needed") > 0.9


def test_agents_that_all_do_the_same_leave_open_whether_memory_would_help():
    """All trainings of a T-Maze may end at one half: no noise, no difference, and no proof that
    none is needed.
    """
    halves = np.arange(50) % 2.0
    scores = [[halves] * 3] * 3
    found = judge_memory([1, 2, None], scores, halves * 0, highest=1.0)
    assert (found.outcome, found.at_most) == ("no difference", 1)
    assert {one.behind for one in found.reached} == {Mean(0.0, 0.0, 0.0)}
    ones = judge_memory([1, 2, None], np.ones((3, 3, 50)), halves * 0, highest=1.0)
    assert ones.outcome == "not needed"


# Where the need lies.


def judged(means, *, chance=0.0, seeds=3, noise=0.0, windows=WINDOWS):
    """Verdict on agents with the given means, whose trainings differ, and on a random policy."""
    rng = np.random.default_rng(0)
    easy = rng.normal(size=TASKS)  # every task is as hard for all agents
    levels = np.array(means, float)[:, None, None] + noise * rng.normal(size=(len(means), seeds, 1))
    scores = levels + easy + 0.2 * rng.normal(size=(len(means), seeds, TASKS))
    return judge_memory(windows, scores, chance + easy + 0.2 * rng.normal(size=TASKS))


@pytest.mark.parametrize("seeds", [3, 4])
@pytest.mark.parametrize(
    ("means", "outcome", "at_least", "at_most"),
    [
        ([5.0, 5.0, 5.0, 5.0], "no difference", 1, 1),
        ([0.5, 5.0, 5.0, 5.0], "needed", 2, 2),
        ([0.5, 0.5, 5.0, 5.0], "needed", 3, 8),
        ([0.5, 0.5, 0.5, 5.0], "needed", 9, None),
        ([0.5, 0.5, 5.0, 0.5], "needed", 3, 8),  # all of the history is harder to learn from
        ([5.0, 0.5, 0.5, 0.5], "no difference", 1, 1),
        ([4.8, 4.9, 5.0, 5.0], "no difference", 1, 1),  # within the margin
        ([0.0, 0.0, 0.0, 0.0], "nothing learnt", 1, None),
        ([-5.0, -4.0, -5.0, -5.0], "nothing learnt", 1, None),
    ],
)
def test_the_shortest_memory_that_does_as_well_as_the_best(
    means, outcome, at_least, at_most, seeds
):
    found = judged(means, seeds=seeds)
    assert (found.outcome, found.at_least, found.at_most) == (outcome, at_least, at_most)
    assert [one.window for one in found.reached] == WINDOWS
    assert [len(one.seeds) for one in found.reached] == [seeds] * 4


def test_the_verdict_is_a_sentence():
    assert str(judged([0.5, 0.5, 5.0, 5.0])).startswith(
        "this task needs memory: between 3 and 8 timesteps; "
    )
    assert str(judged([0.5, 0.5, 0.5, 5.0])).startswith(
        "this task needs memory: at least 9 timesteps; "
    )
    assert str(judged([0.5, 5.0, 5.0, 5.0])).startswith("this task needs memory: 2 timesteps; ")
    for means, noise in (([0.0] * 4, 0.0), ([4.0, 4.0, 5.0, 5.0], 3.0)):
        assert str(judged(means, noise=noise)).startswith("not settled: ")


def test_only_an_unbroken_row_of_short_windows_bounds_the_need():
    between = judged([-20.0, 4.0, 5.0, 5.0], noise=1.0)
    assert (between.outcome, between.at_least) == ("needed", 2)
    assert between.reached[1].standing == "unclear"
    # A window that is short beyond one that is not bounds nothing.
    gap = judged([5.0, 0.5, 5.0, 5.0])
    assert (gap.outcome, gap.at_least, gap.reached[1].standing) == ("no difference", 1, "short")


def test_tasks_are_compared_one_by_one():
    """Tasks differ by more than windows do; only differences within a task tell the windows
    apart.
    """
    found = judged([3.0, 3.0, 4.0, 4.0], seeds=1)
    score, behind = found.reached[0].score, found.reached[0].behind
    assert (score.high - score.low) > 3 * (behind.high - behind.low)


def test_with_two_windows_and_many_tasks_the_interval_is_students():
    rng = np.random.default_rng(9)
    runs = rng.normal(size=(2, 4))
    found = judge_memory([1, None], runs[..., None] + np.zeros(5), np.full(5, -9.0))
    best = int(runs.mean(1).argmax())
    expected = stats.ttest_ind(runs[best], runs[1 - best]).confidence_interval()
    behind = found.reached[1 - best].behind
    wider = (behind.high - behind.low) / (expected.high - expected.low)
    assert behind.value == pytest.approx(runs[best].mean() - runs[1 - best].mean())
    assert 1.0 <= wider < 2**0.5  # the noisier window counts with its own variance


def test_few_tasks_leave_an_error_where_trainings_agree():
    """Trainings of one window that score the same show no noise; tasks that differ show the error
    of drawing few.
    """
    lucky = np.array(
        [-3.0, 5.0, -1.0, 3.0, 6.0, -4.0, 2.0, 0.0]
    )  # leads of the second window, task by task
    for copies, outcome in ((1, "not settled"), (200, "needed")):
        gaps = np.tile(lucky, copies)
        scores = np.stack([np.tile(0.0 * gaps, (3, 1)), np.tile(gaps, (3, 1))])
        found = judge_memory([1, None], scores, np.full(gaps.size, -20.0), margin=0.0)
        behind = found.reached[0].behind
        assert behind.value == pytest.approx(lucky.mean())
        # No narrower than the interval of a mean over these tasks, and by Tukey's quantile not much
        # wider.
        expected = stats.ttest_1samp(gaps, 0.0).confidence_interval()
        wider = (behind.high - behind.low) / (expected.high - expected.low)
        assert 1.0 <= wider < 2.0
        assert found.outcome == outcome


def test_being_ahead_of_chance_must_be_certain_of_the_best_of_several():
    """Among many windows that know nothing, one is ahead of a random policy by luck."""
    rng = np.random.default_rng(1)
    found = verdicts(rng, [0.5] * 8, 0.0, 2, 60, "own", repeats=100, random=0.5)
    assert share(found, "needed", "not needed", "no difference") <= at_most(0.05, 100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": np.zeros((3, 1, 4))}, "scores must be finite and fit"),
        ({"random": np.zeros(5)}, "scores must be finite and fit"),
        ({"scores": np.full((2, 1, 4), np.nan)}, "scores must be finite and fit"),
        ({"scores": np.ones((2, 3, 1)), "random": np.zeros(1)}, "scores must be of several tasks"),
        ({"random": np.full(4, np.nan)}, "random must be finite"),
        ({"margin": -0.1}, "margin must .*, got -0.1"),
        ({"margin": 1.0}, "margin must .*, got 1.0"),
        ({"confidence": 1.0}, "confidence must .*, got 1.0"),
        ({"windows": [2, None]}, "windows must begin with 1 and rise"),
        ({"windows": [1, 1]}, "windows must begin with 1 and rise"),
    ],
)
def test_what_cannot_be_judged_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        judge_memory(
            **{"windows": [1, None], "scores": np.zeros((2, 1, 4)), "random": np.zeros(4)} | change
        )


@pytest.mark.parametrize("num_seeds", [1, 2, 3])
@pytest.mark.parametrize("score", [0.0, 1.0])
def test_trainings_that_do_not_differ_have_the_interval_over_tasks(num_seeds, score):
    found = judge_memory([1, None], np.full((2, num_seeds, 16), score), np.zeros(16))
    low, high = wilson_interval(16 * int(score), 16)
    for one in found.reached:
        assert (one.score.low, one.score.high) == pytest.approx((low, high))
    differing = judge_memory([1, None], [[[0.0] * 16, [1.0] * 16]] * 2, np.zeros(16))
    assert differing.reached[0].score.high - differing.reached[0].score.low > high - low


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_no_interval_without_width_is_printed(num_seeds):
    found = judge_memory([1, None], np.full((2, num_seeds, 16), -1.0), np.full(16, -1.0))
    for shown in (
        str(found),
        str(found.reached[0].score),
        str(found.reached[1].behind),
        str(found.random),
    ):
        assert not re.search(r"\[(.+), \1\]", shown)
        assert "[-]" in shown


def test_rates_of_tasks_that_were_played_more_than_once_have_intervals_within_0_and_1():
    rates = np.array([1.0, 1.0, 0.5, 1.0])
    scores = [[rates, rates[::-1], rates], [rates, rates, rates]]
    found = judge_memory([1, None], scores, rates * 0.5, highest=1.0)
    assert all(0.0 <= one.score.low <= one.score.high <= 1.0 for one in found.reached)
    unknown = judge_memory([1, None], scores, rates * 0.5)
    assert max(one.score.high for one in unknown.reached) > 1.0
