"""The on-policy recipe as people use it: from the command line."""

import json
import re
from pathlib import Path

import pytest

TINY = ["debug=tiny", "logger=none"]
SMALL = [
    "logger=none",
    "env=tmaze",
    "encoder.hidden_size=32",
    "encoder.out_features=32",
    "encoder.num_layers=1",
    "encoder.max_time_constant=8",
    "schedule.num_envs=64",
    "schedule.steps_per_iteration=768",
    "evaluation.num_episodes=64",
    "budget.minutes=null",
]


@pytest.fixture
def run(runner):
    """Runs the recipe: exit status, output, error output."""
    return runner("ppo")


def summary(name: str) -> dict:
    return json.loads(Path(f"runs/{name}/summary.json").read_text())


@pytest.mark.parametrize(
    "choice",
    [
        "env=mazerunner",
        "env=tmaze encoder=transformer",
        "env=gym env.id=Pendulum-v1 env.time_limit=20 packing=null agent.loss.value_clip=0.2",
    ],
)
def test_two_updates_run_with_every_kind_of_part(run, choice):
    status, out, err = run(*TINY, "run.name=tiny", *choice.split())
    assert status == 0, err
    assert out.splitlines()[-1] == "runs/tiny/summary.json"
    assert summary("tiny")["status"] == "FINISHED"
    assert summary("tiny")["updates"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["env=mazerunner", "relabel=some"], r"relabel.strategy=some.*on-policy"),
        (["agent.gammas=[0.9,0.99]", "agent.multi_gamma=true"], r"agent.gammas: .*0\.9, 0\.99"),
        (["agent.loss.clip_epsilon=2"], r"clip_epsilon.*2"),
        (["schedule.epochs=0"], r"schedule.epochs: must be an integer of at least 1, got 0"),
        (["encoder=transformer", "context_length=100"], r"context_length: .*100 steps, got 100"),
        (["+expected.metrc=foo"], r"expected.metrc: expected has metric"),
        (["resume=true", "run.name=nothing"], r"nothing"),
    ],
)
def test_a_mistake_ends_with_one_line_and_nothing_written(run, tmp_path, arguments, message):
    status, _, err = run(*TINY, *arguments)
    assert status == 2
    assert len(err.strip().splitlines()) == 1
    assert re.search(message, err), err
    assert list(tmp_path.iterdir()) == []


def test_a_run_extended_later_equals_one_that_was_never_stopped(run, components, differing):
    short = [*SMALL, "env.length=3", "checkpoint.interval=500", "schedule.epochs=1"]
    assert run(*short, "run.name=whole", "budget.env_steps=4000")[0] == 0
    assert run(*short, "run.name=parts", "budget.env_steps=2000")[0] == 0
    whole, stopped = (components(f"runs/{name}")["agent"] for name in ("whole", "parts"))
    assert differing(whole, stopped)
    assert run(*short, "run.name=parts", "budget.env_steps=4000", "resume=true")[0] == 0
    assert differing(whole, components("runs/parts")["agent"]) == []


def test_memory_learns_what_to_recall_and_without_it_nothing_can(run):
    # Much entropy: it must try both ends of the corridor for long enough to see that one is told at its beginning.
    task = [
        *SMALL,
        "env.length=2",
        "budget.env_steps=9000",
        "optimizer.lr=3e-3",
        "agent.loss.entropy_coeff=0.3",
    ]
    assert run(*task, "run.name=gru")[0] == 0
    assert summary("gru")["success"] >= 0.9
    small = [argument for argument in task if not argument.startswith("encoder.")]
    assert run(*small, "run.name=control", "encoder=memoryless", "encoder.d_model=32")[0] == 0
    assert summary("control")["success"] <= 0.7
