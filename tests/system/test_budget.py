"""Budgets end at the nearest limit and count time over resumes."""

import pytest
from yamame.system.budget import Budget


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_whichever_limit_comes_first_ends_the_run():
    clock = Clock()
    budget = Budget(env_steps=100, updates=10, minutes=1, clock=clock)
    assert budget.ended(env_steps=99, updates=9) is None
    assert budget.ended(env_steps=100, updates=9) == "env_steps"
    assert budget.ended(env_steps=99, updates=10) == "updates"
    clock.now += 60
    assert budget.ended(env_steps=0, updates=0) == "minutes"


def test_the_fraction_is_that_of_the_nearest_limit_and_at_most_one():
    budget = Budget(env_steps=100, updates=10)
    assert budget.fraction(env_steps=50, updates=1) == 0.5
    assert budget.fraction(env_steps=50, updates=9) == 0.9
    assert budget.fraction(env_steps=500, updates=9) == 1.0


def test_the_time_left_is_that_of_the_nearest_limit():
    clock = Clock()
    budget = Budget(env_steps=100, updates=10, minutes=1, clock=clock)
    speeds = {"env_steps_per_s": 10.0, "updates_per_s": 1.0}
    assert budget.remaining_s(env_steps=0, updates=5, **speeds) == 5
    assert budget.remaining_s(env_steps=90, updates=5, **speeds) == 1
    clock.now += 59.5
    assert budget.remaining_s(env_steps=0, updates=0, **speeds) == pytest.approx(0.5)
    unknown = Budget(updates=10).remaining_s(
        env_steps=0, updates=0, env_steps_per_s=1.0, updates_per_s=0.0
    )
    assert unknown is None


def test_time_accumulates_over_a_resume_but_not_in_between():
    clock = Clock()
    first = Budget(minutes=1, clock=clock)
    clock.now += 40
    state = first.state_dict()
    clock.now += 1000
    second = Budget(minutes=1, clock=clock)
    second.load_state_dict(state)
    clock.now += 15
    assert second.elapsed_s == 55
    assert second.ended(env_steps=0, updates=0) is None
    clock.now += 5
    assert second.ended(env_steps=0, updates=0) == "minutes"


@pytest.mark.parametrize("value", [0, -1, "ten", True, float("nan"), float("inf")])
def test_a_limit_must_be_a_positive_number(value):
    condition = "a finite number greater than 0 or null"
    with pytest.raises(ValueError, match=f"Budget: updates must be {condition}, got {value!r}"):
        Budget(updates=value)


def test_a_budget_needs_a_limit():
    with pytest.raises(ValueError, match="must be given, or updates, minutes or cpu_s"):
        Budget()


def test_time_counts_from_the_start_and_over_resumes():
    clock = Clock()
    budget = Budget(minutes=1, clock=clock)
    clock.now += 40  # what is built meanwhile
    budget.load_state_dict({"elapsed_s": 10.0})
    clock.now += 40
    budget.start()
    assert budget.elapsed_s == 10
    clock.now += 5
    assert budget.elapsed_s == 15


def test_cpu_seconds_end_a_run_and_their_share_begins_with_the_first_step():
    clock = Clock()
    clock.now = 20.0  # imports and building
    budget = Budget(cpu_s=100, cpu_clock=clock)
    budget.start()
    assert budget.is_timed
    assert budget.fraction(env_steps=0, updates=0) == 0.0
    clock.now = 60.0
    assert budget.fraction(env_steps=0, updates=0) == 0.5
    state = budget.state_dict()

    later = Budget(cpu_s=100, cpu_clock=clock)
    clock.now = 68.0  # imports and building again, which are spent
    later.load_state_dict(state)
    later.start()
    assert later.fraction(env_steps=0, updates=0) == 0.6
    assert later.ended(env_steps=0, updates=0) is None
    clock.now = 100.0
    assert later.ended(env_steps=0, updates=0) == "cpu_s"
    assert later.fraction(env_steps=0, updates=0) == 1.0
    assert not Budget(env_steps=1).is_timed


def test_cpu_seconds_that_building_has_spent_leave_nothing():
    clock = Clock()
    budget = Budget(cpu_s=50, cpu_clock=clock)
    budget.start()
    assert budget.fraction(env_steps=0, updates=0) == 1.0


def test_the_rest_of_cpu_seconds_takes_longer_if_fewer_cores_are_busy():
    clock, cpu = Clock(), Clock()
    budget = Budget(cpu_s=200, clock=clock, cpu_clock=cpu)
    budget.start()
    clock.now += 20
    cpu.now += 10
    speeds = {"env_steps_per_s": 0.0, "updates_per_s": 0.0}
    assert budget.remaining_s(env_steps=0, updates=0, **speeds) == pytest.approx(180)


def test_no_time_counts_in_a_pause_also_after_a_resume():
    clock, cpu = Clock(), Clock()
    budget = Budget(minutes=1, cpu_s=100, clock=clock, cpu_clock=cpu)
    cpu.now = 20.0
    budget.start()
    with budget.paused():
        clock.now += 600.0
        cpu.now += 500.0
    assert budget.elapsed_s == 0.0
    assert budget.fraction(env_steps=0, updates=0) == 0.0
    cpu.now += 40.0
    assert budget.fraction(env_steps=0, updates=0) == 0.5
    assert budget.ended(env_steps=0, updates=0) is None

    resumed = Budget(minutes=1, cpu_s=100, clock=clock, cpu_clock=cpu)
    resumed.load_state_dict(budget.state_dict())
    assert resumed.fraction(env_steps=0, updates=0) == 0.5
    cpu.now += 40.0
    assert resumed.ended(env_steps=0, updates=0) == "cpu_s"
