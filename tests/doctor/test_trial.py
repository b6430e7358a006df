"""What a trial says of the whole run, by hand where every part takes a round time."""

import time

import pytest
from yamame import compose
from yamame.doctor.trial import Stopwatch, forecast, shortened
from yamame.system.compiling import compiling

SCHEDULE = (
    "schedule.learning_starts=100",
    "schedule.updates_per_step=0.5",
    "schedule.regulator=null",
    "evaluation.interval=250",
)


@pytest.fixture
def watch():
    """Of a trial: 10 s to start, the first iteration 5 s slower, then 10 ms a step and 100 ms an
    update.
    """
    watch = Stopwatch(1.0)
    watch.marks = [("starting", 10.0, 1), ("evaluating", 2.0, 1)]
    watch.marks += [("collecting", 3.0, 100), ("learning", 4.0, 10)]
    watch._warm = len(watch.marks)
    watch.marks += [("collecting", 0.5, 50), ("collecting", 0.5, 50), ("learning", 2.0, 20)]
    watch.marks += [("evaluating", 4.0, 1), ("saving", 1.0, 1), ("ending", 6.0, 1)]
    return watch


def planned(*overrides):
    return compose("env=tmaze", *SCHEDULE, "checkpoint.interval=100000", *overrides)


def test_parts_are_measured_where_nothing_loads_any_more(watch):
    assert watch.each("collecting") == pytest.approx(0.01)
    assert watch.each("learning") == pytest.approx(0.1)
    assert watch.each("evaluating") == pytest.approx(4.0)
    assert watch.warming() == pytest.approx(2.0 + 3.0)


def test_a_run_that_ends_at_its_steps(watch):
    whole = forecast(watch, planned("budget.env_steps=1100"))
    assert (whole.limit, whole.env_steps, whole.updates) == ("env_steps", 1100, 500)
    assert whole.seconds == pytest.approx(
        {
            "starting": 15,
            "collecting": 11,
            "learning": 50,
            "evaluating": 20,
            "saving": 5,
            "ending": 6,
        }
    )
    assert whole.total == pytest.approx(107)


def test_a_run_that_ends_at_its_updates(watch):
    whole = forecast(watch, planned("budget.env_steps=5000", "budget.updates=200"))
    assert (whole.limit, whole.env_steps, whole.updates) == ("updates", 500, 200)


def test_a_run_that_ends_at_its_minutes(watch):
    whole = forecast(watch, planned("budget.env_steps=1000000", "budget.minutes=2"))
    assert whole.limit == "minutes"
    assert 120 < whole.total <= 130  # the minutes begin when 10 s have passed
    assert whole.updates == (whole.env_steps - 100) // 2


def test_minutes_that_are_more_than_enough_end_nothing(watch):
    assert (
        forecast(watch, planned("budget.env_steps=1100", "budget.minutes=2")).limit == "env_steps"
    )


def test_minutes_do_not_count_what_comes_before_the_run(watch):
    watch.marks[0] = ("starting", 1000.0, 1)
    assert (
        forecast(watch, planned("budget.env_steps=1100", "budget.minutes=2")).limit == "env_steps"
    )


def test_updates_before_the_first_step_count(watch):
    plan = planned("budget.env_steps=1100", "schedule.offline_updates=70")
    assert forecast(watch, plan).updates == 570


def test_a_regulator_counts_by_its_first_factor(watch):
    node = "{_target_: yamame.training.OverfittingRegulator, first: 0.4}"
    regulated = (f"schedule.regulator={node}", "budget.minutes=null")
    by_steps = forecast(watch, planned("budget.env_steps=1100", *regulated))
    assert by_steps.updates == 0.4 * 500
    by_updates = forecast(watch, planned("budget.updates=200", *regulated))
    assert (by_updates.env_steps, by_updates.updates) == (1100, 200)


def test_the_trial_learns_from_its_first_episodes_and_writes_elsewhere(tmp_path):
    plan = planned(
        "run.name=mine", "budget.env_steps=1100", "resume=auto", "logger.experiment=mine"
    )
    trial = shortened(plan, tmp_path, 3.0)
    assert trial.schedule.learning_starts <= trial.schedule.steps_per_iteration
    assert (trial.run.root, trial.resume, trial.run.overwrite) == (str(tmp_path), False, False)
    assert trial.logger == {"_target_": "yamame.tracking.NullTracker"}
    assert trial.budget.minutes == pytest.approx(2.0)
    assert (plan.run.name, plan.budget.minutes) == (
        "mine",
        planned().budget.minutes,
    )  # the plan is as it was
    assert trial.encoder == plan.encoder


def test_time_of_compilation_counts_as_starting_whichever_part_it_was_in():
    watch = Stopwatch(1.0)
    watch._mark("starting", 1)
    before = watch.spent("starting")
    with compiling("compiling the example"):
        time.sleep(0.05)
    watch._mark("collecting", 4)
    assert watch.spent("starting") - before >= 0.05
    assert watch.spent("collecting") < 0.05
    assert watch.count("collecting") == 4
