"""Progress: plain lines in a log, a bar in a terminal."""

import io
import re
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from yamame.evaluation import EvaluationResult
from yamame.runs.progress_bar import ProgressBar
from yamame.system.budget import Budget
from yamame.training.progress import Progress


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def has_control_characters(text):
    return any(ord(character) < 32 and character != "\n" for character in text)


def make_run(updates):
    config = {"device": "cpu", "schedule": {"num_envs": 16}, "evaluation": {"num_episodes": 64}}
    built = {
        "name": "mine",
        "path": Path("runs/mine"),
        "components": {"agent": nn.Linear(2, 3)},
        "config": config,
        "novelty": "new mazes",
    }
    return SimpleNamespace(
        budget=Budget(updates=updates), progress=Progress(), exits=ExitStack(), **built
    )


def show(bar, run, *, env_steps, updates, **metrics):
    run.progress.env_steps, run.progress.updates = env_steps, updates
    bar.on_log(run, {f"train/{key}": value for key, value in metrics.items()}, env_steps)


def test_a_log_gets_one_plain_line_per_interval_with_the_speed_of_that_interval():
    clock, stream, run = Clock(), io.StringIO(), make_run(100)
    bar = ProgressBar(interval_s=10, stream=stream, clock=clock)
    bar.on_begin(run)
    show(bar, run, env_steps=5000, updates=10)
    run.progress.outcomes.extend([0.25] * 20)
    for second in range(1, 21):
        clock.now = float(second)
        show(bar, run, env_steps=5000 + 100 * second, updates=10 + second, loss=1.5)
    run.exits.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert all(re.match(r"\d\d:\d\d:\d\d  ", line) for line in lines)
    assert lines[0].endswith("  runs/mine")
    assert lines[1].endswith("  9 parameters, 16 environments, on cpu")
    assert "5,000 steps" in lines[2]  # something moves at once
    assert "- steps/s  - updates/s" in lines[2]  # and nothing is known of its speed
    parts = (
        "20%",
        "6,000 steps",
        "20 updates",
        "success 0.250 (20 episodes)",
        "loss 1.5",
        "100 steps/s",
        "1.0 updates/s",
    )
    for part in (*parts, "1:20 left"):
        assert part in lines[3]
    assert not has_control_characters(stream.getvalue())


def test_unknown_and_non_finite_numbers_are_shown_as_a_dash():
    clock, stream, run = Clock(), io.StringIO(), make_run(100)
    bar = ProgressBar(interval_s=1, stream=stream, clock=clock)
    show(bar, run, env_steps=0, updates=0)
    clock.now = 1.0
    show(bar, run, env_steps=1, updates=0, loss=float("nan"))
    assert "success - (no episode yet)  loss -" in stream.getvalue()
    assert "? left" in stream.getvalue()


@pytest.mark.parametrize(
    ("num_envs", "episodes", "shown"),
    [
        (1, 1, "success - (1 of 10 episodes)"),
        (1, 9, "success - (9 of 10 episodes)"),
        (1, 10, "success 1.000 (10 episodes)"),
        (16, 10, "success - (10 of 16 episodes)"),
        (16, 16, "success 1.000 (16 episodes)"),
        (512, 99, "success - (99 of 100 episodes)"),
        (512, 100, "success 1.000 "),
        (None, 10, "success 1.000 (10 episodes)"),
        (None, 0, "success -"),  # of a recipe without environments
    ],
)
def test_outcomes_are_shown_when_every_environment_may_have_ended_an_episode(
    num_envs, episodes, shown
):
    stream, run = io.StringIO(), make_run(100)
    run.config["schedule"]["num_envs"] = num_envs
    run.progress.outcomes.extend([1.0] * episodes)
    show(ProgressBar(stream=stream), run, env_steps=100, updates=1)
    assert f"{shown}  ".replace("   ", "  ") in stream.getvalue()


def test_an_evaluation_whose_returns_are_all_equal_has_no_interval():
    for last, has_interval in ((0.0, False), (1.0, True)):
        stream, run = io.StringIO(), make_run(4)
        returns = torch.tensor([0.0, 0.0, last], dtype=torch.float64)
        result = EvaluationResult(
            returns, torch.tensor([3, 4, 4]), torch.ones(3, dtype=torch.bool), returns[:, None]
        )
        ProgressBar(stream=stream).on_evaluate(run, result)
        assert "return 0." in stream.getvalue()
        assert ("[" in stream.getvalue()) == has_interval


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"minutes": 5}, "0:05:00 left"),
        ({"minutes": 5, "updates": 100}, "? left"),  # updates may end it earlier
        ({"minutes": 5, "env_steps": 100}, "? left"),
    ],
)
def test_the_first_line_names_a_time_only_if_no_other_limit_can_be_nearer(limits, left):
    stream, run = io.StringIO(), make_run(4)
    run.budget = Budget(**limits, clock=Clock())
    show(ProgressBar(stream=stream, clock=Clock()), run, env_steps=1, updates=0)
    assert left in stream.getvalue()


def test_the_path_of_a_run_has_a_line_of_its_own_in_which_it_is_not_wrapped():
    stream, run = Terminal(), make_run(4)
    run.path = Path("runs", "n" * 70)
    bar = ProgressBar(stream=stream)
    bar.on_begin(run)
    run.exits.close()
    assert str(run.path) in stream.getvalue().splitlines()


def test_the_share_that_the_learner_waits_is_of_the_interval_and_of_collectors_beside_it():
    clock, stream, run = Clock(), io.StringIO(), make_run(100)
    bar = ProgressBar(interval_s=10, stream=stream, clock=clock)
    for second, waited in ((0.0, 5.0), (10.0, 7.5), (20.0, 17.5)):
        clock.now = second
        bar.on_log(run, {"collector/waited_s": waited}, 0)
    assert re.findall("learner waits (.*?)  ", stream.getvalue()) == ["-", "25%", "100%"]
    clock.now = 30.0
    bar.on_log(run, {}, 0)
    assert stream.getvalue().count("learner waits") == 3


def test_it_tells_when_it_evaluates():
    for stream in (io.StringIO(), Terminal()):
        run, bar = make_run(4), ProgressBar(stream=stream)
        bar.on_begin(run)
        show(bar, run, env_steps=7, updates=1)
        assert "evaluating" not in stream.getvalue()
        bar.on_evaluating(run)
        run.exits.close()
        assert "evaluating 64 episodes" in stream.getvalue()
        assert has_control_characters(stream.getvalue()) == stream.isatty()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_what_an_evaluation_gave_stays_on_the_screen(stream):
    run, bar = make_run(4), ProgressBar(stream=stream)
    bar.on_begin(run)
    run.progress.env_steps = 1024
    both, returns = torch.tensor([True, True]), torch.ones(2, dtype=torch.float64)
    bar.on_evaluate(
        run, EvaluationResult(returns, torch.tensor([3, 4]), both, returns[:, None], success=both)
    )
    trials = torch.tensor([[0.0, 0.5], [0.5, 0.5]], dtype=torch.float64)
    bar.on_evaluate(
        run, EvaluationResult(returns, torch.tensor([3, 4]), both, trials, success=both)
    )
    run.exits.close()
    line = "evaluation after 1,024 steps: success 1.000 [0.342, 1.000]"
    assert f"{line} (2 episodes" in stream.getvalue()
    assert f"{line}, return per trial 0.250 0.500 (2 episodes" in stream.getvalue()


def test_a_terminal_gets_a_bar_until_the_run_is_over():
    stream, run = Terminal(), make_run(4)
    run.progress.outcome_name = "return"
    bar = ProgressBar(stream=stream)
    bar.on_begin(run)
    show(bar, run, env_steps=7, updates=1)
    run.exits.close()
    assert "7 steps" in stream.getvalue()
    assert "\x1b[" in stream.getvalue()
    assert "\x1b[?25h" in stream.getvalue()  # the cursor is back
    assert stream.getvalue().endswith("\x1b[2K")  # and the bar is gone
