"""Algorithm distillation as people use it: from the command line."""

import json
import re
from pathlib import Path

import pytest
import yamame
from yamame.tracking.tracker import NullTracker

TINY = [
    "debug=tiny",
    "logger=none",
    "env.time_limit=40",
    "source.horizon=80",
    "source.subsample=2",
    "encoder.d_model=16",
    "encoder.num_layers=1",
    "evaluation.num_episodes=2",
    "evaluation.video_frames=1",
]


def test_a_tiny_run_compares_the_agent_with_itself_without_memory_and_with_its_source(
    runner, monkeypatch
):
    logged, tags, start = {}, {}, NullTracker.start

    def log(self, metrics, *, step):
        logged.setdefault(step, {}).update(metrics)

    def begin(self, *args, **options):
        tags.update(options["tags"])
        return start(self, *args, **options)

    monkeypatch.setattr(NullTracker, "log", log)
    monkeypatch.setattr(NullTracker, "start", begin)
    status, out, err = runner("distill")(*TINY, "run.name=tiny")
    assert status == 0, err
    assert out.splitlines()[-1] == "runs/tiny/summary.json"
    summary = json.loads(Path("runs/tiny/summary.json").read_text())
    assert summary["status"] == "FINISHED"
    assert summary["updates"] == 2
    assert summary["env_steps"] == 4 * 80
    assert {"distilled", "memory_wiped", "source"} <= summary["in_context"].keys()
    assert json.loads(Path("runs/tiny/in_context.json").read_text()) == summary["in_context"]
    assert Path("runs/tiny/in_context.png").stat().st_size > 0
    # The tracker is told that steps are updates, and how many environment steps the run took.
    assert (tags["axis"], tags["budget.updates"]) == ("updates", "2")
    assert "eval/success_mean" in logged[2] or "eval/return_mean" in logged[2]
    assert (logged[2]["cost/env_steps"], logged[2]["cost/updates"]) == (4 * 80, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["source.horizon=10"], r"source.horizon: .*40 steps, got 10"),
        (["context_length=40"], r"context_length: .*40 steps, got 40"),
        (["source.subsample=0"], r"source.subsample: must be an integer of at least 1, got 0"),
        (["source.learner.gamma=2"], r"source.learner.gamma: .*2"),
        (["relabel=some"], r"relabel: must .*histories.*'some'"),
        (["budget.env_steps=100"], r"budget.env_steps: must be null.*100"),
        (["replay.capacity=100"], r"replay.capacity: must hold 324 timesteps, got 100"),
        (["replay.keep=0"], r"replay.keep: must be at least 1, got 0"),
        (
            ["schedule.updates_per_iteration=0"],
            r"schedule.updates_per_iteration: .* at least 1, got 0",
        ),
        (["resume=true", "run.name=nothing"], r"nothing"),
    ],
)
def test_a_mistake_is_told_in_one_line_and_nothing_is_written(refusal, arguments, message):
    assert re.search(message, told := refusal("distill", *TINY, *arguments)), told


def test_a_run_extended_later_equals_one_that_was_never_stopped(
    monkeypatch, tmp_path, components, differing
):
    def run(name, *settings):
        run = yamame.train(*short, f"run.name={name}", *settings, recipe="distill")
        return components(run.path)["agent"]

    monkeypatch.chdir(tmp_path)
    short = [
        *TINY,
        "schedule.learning_starts=600",
        "schedule.anneal_lr=false",
        "checkpoint.interval=2",
    ]
    short += ["schedule.updates_per_iteration=2"]
    whole, stopped = run("whole", "budget.updates=8"), run("parts", "budget.updates=5")
    assert differing(whole, stopped)
    assert differing(whole, run("parts", "budget.updates=8", "resume=true")) == []
