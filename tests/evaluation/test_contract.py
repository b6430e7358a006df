"""Published evaluations: the tasks that are named are played, and seeds and tasks vary together."""

import numpy as np
import pytest
import torch
from yamame.evaluation import evaluate, joint_estimate, judge, measure, wilson_interval
from yamame.evaluation.contract import judge_estimate
from yamame_envs import DarkKeyDoor, MazeRunner, PassiveTMaze

UP = 1


def upwards(length):
    """Walks to the junction and turns up, whatever the sign was."""

    def policy(td):
        last = td["step_index"].flatten() == length
        return td.set("action", torch.where(last, UP, 0))

    return policy


def test_the_tasks_that_are_named_are_played_in_their_order_and_in_rounds():
    tasks = list(range(5_000_000, 5_000_010))
    env = PassiveTMaze(num_envs=4, length=3)
    sides = PassiveTMaze(num_envs=1, length=3).tasks_of(torch.tensor(tasks))["side"]
    result = evaluate(upwards(3), env, task_seeds=tasks)
    assert result.success.tolist() == (sides == 1).tolist()
    assert measure(result, "success").tolist() == (sides == 1).double().tolist()
    assert 0 < int(result.success.sum()) < 10
    assert (
        evaluate(upwards(3), env, task_seeds=tasks[::-1]).success.tolist()
        == result.success.tolist()[::-1]
    )
    assert evaluate(upwards(3), env, num_episodes=10).success.tolist() != result.success.tolist()


def test_doors_are_the_attempts_in_which_both_were_found():
    env = DarkKeyDoor(num_envs=30, size=2, trial_limit=8, time_limit=60, attempts="reset_step")
    torch.manual_seed(0)
    played = evaluate(
        lambda td: td.set("action", torch.randint(5, (30,))), env, task_seeds=range(30)
    )
    doors = measure(played, "doors")
    keys = played.returns - doors
    assert (doors <= keys).all()  # a key for every door, and some that opened none
    assert (doors < keys).any()
    assert doors.sum() > 30


def test_goals_are_shares_and_an_endpoint_must_be_told():
    env = MazeRunner(num_envs=4, size=5, num_goals=2, time_limit=200)
    torch.manual_seed(0)
    played = evaluate(lambda td: td.set("action", torch.randint(5, (4,))), env)
    assert measure(played, "goals").tolist() == (played.returns / 2).tolist()
    assert measure(played, "accuracy").tolist() == ((played.returns + 1) / 2).tolist()
    with pytest.raises(ValueError, match=r"measure: endpoint must be one of .*, got 'keys'"):
        measure(played, "keys")


def test_an_interval_has_the_spread_of_seeds_and_of_tasks():
    tasks = np.arange(100) % 2.0
    same = joint_estimate([tasks, tasks])
    assert same.value == 0.5
    assert same.seeds == [0.5, 0.5]
    # Both seeds meet the same tasks: there are 100 observations, not 200.
    assert same.bootstrap[1] - same.bootstrap[0] == pytest.approx(2 * 1.96 * 0.05, rel=0.15)
    assert same.student is None  # on these tasks they do not differ
    assert same.tasks == pytest.approx(wilson_interval(50, 100))
    assert joint_estimate([tasks * 0, tasks * 0 + 1]).bootstrap == (0.0, 1.0)
    assert joint_estimate([tasks, tasks]) == same
    with pytest.raises(ValueError, match="scores must be finite"):
        joint_estimate([[np.nan]])


@pytest.mark.parametrize("score", [0.0, 1.0, -3.0, 0.1])
def test_seeds_and_tasks_that_are_all_equal_give_no_interval_without_width(score):
    same, differing = (
        joint_estimate([[score] * 16, [other] * 16]) for other in (score, score + 1.0)
    )
    assert (same.student, same.bootstrap) == (None, None)
    assert None not in (differing.student, differing.bootstrap)
    if score in (0.0, 1.0):  # successes or failures of 16 tasks
        assert same.tasks[1] - same.tasks[0] > 0.1
    else:
        assert same.tasks is None


def test_a_verdict_is_settled_if_all_of_the_interval_has_it():
    estimate = joint_estimate([[1.0, 1.0], [3.0, 3.0]])  # 2, with a wide interval
    assert judge_estimate(estimate, published=2.0, margin=0.5) == ("comparable", False)
    assert judge_estimate(estimate, published=2.0, margin=100.0) == ("comparable", True)
    assert judge_estimate(estimate, published=-90.0, margin=1.0) == ("above", True)
    assert judge_estimate(joint_estimate([[1.0, 3.0]]), published=2.0, margin=1.0) is None
    same = joint_estimate([[1.0, 3.0], [1.0, 3.0]])  # no interval over seeds
    assert judge_estimate(same, published=9.0, margin=1.0) == ("below", False)


def test_one_seed_has_no_interval():
    """It would be over tasks alone, and look like the others."""
    found = joint_estimate([np.arange(100) % 2.0])._asdict()
    assert (found.pop("value"), found.pop("seeds")) == (0.5, [0.5])
    assert set(found.values()) == {None}


def covered(name, num_seeds, *, repeats, num_resamples):
    """Share of simulated experiments whose interval holds the true mean; seeds differ by more than
    tasks.
    """
    rng, truth, held = np.random.default_rng(num_seeds), 0.5, 0
    difficulty = rng.normal(size=16)
    difficulty -= difficulty.mean()
    for _ in range(repeats):
        scores = truth + rng.normal(size=(num_seeds, 1)) + 0.2 * difficulty
        found = joint_estimate(scores, num_resamples=num_resamples)._asdict()
        assert name in found
        low, high = found[name]
        held += low <= truth <= high
    return held / repeats


@pytest.mark.parametrize("num_seeds", [2, 3, 5])
def test_students_interval_of_few_seeds_covers_what_it_says(num_seeds):
    # Four standard deviations of the share of 2,000 are 0.02.
    assert 0.93 <= covered("student", num_seeds, repeats=2000, num_resamples=2) <= 0.97


@pytest.mark.parametrize("num_seeds", [3, 5])
def test_the_published_bootstrap_of_few_seeds_covers_less(num_seeds):
    """Negative control of the test above, and the reason why both are printed."""
    assert 0.7 <= covered("bootstrap", num_seeds, repeats=300, num_resamples=200) <= 0.9


@pytest.mark.parametrize(("ours", "outcome"), [(0.5, "comparable"), (0.8, "above"), (0.2, "below")])
def test_a_margin_decides(ours, outcome):
    assert judge(ours, 0.5, 0.1) == outcome
