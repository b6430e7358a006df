"""The on-policy recipe as people use it: from the command line."""

import re

import pytest
import yamame

TINY = ["debug=tiny", "logger=none", "evaluation.video_frames=1"]
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
    "evaluation.video_frames=1",
    "budget.minutes=null",
]


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the recipe in the test's directory."""
    monkeypatch.chdir(tmp_path)
    return lambda name, *arguments: yamame.train(f"run.name={name}", *arguments, recipe="ppo")


@pytest.mark.parametrize(
    "choice",
    [
        "env=mazerunner",
        "env=tmaze encoder=transformer",
        "env=gym env.id=Pendulum-v1 env.time_limit=20 packing=null agent.loss.value_clip=0.2",
    ],
)
def test_two_updates_run_with_every_kind_of_part(run, choice):
    summary = run("tiny", *TINY, *choice.split()).summary
    assert (summary["status"], summary["updates"]) == ("FINISHED", 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["env=mazerunner", "relabel=some"], r"relabel: must .*on-policy.*'some'"),
        (["agent.gammas=[0.9,0.99]", "agent.multi_gamma=true"], r"agent.gammas: .*0\.9, 0\.99"),
        (["agent.loss.clip_epsilon=2"], r"clip_epsilon.*2"),
        (["schedule.epochs=0"], r"schedule.epochs: must be an integer of at least 1, got 0"),
        (["encoder=transformer", "context_length=100"], r"context_length: .*100 steps, got 100"),
        (["+expected.metrc=foo"], r"expected.metrc: expected has metric"),
        (["resume=true", "run.name=nothing"], r"nothing"),
    ],
)
def test_a_mistake_is_told_in_one_line_and_nothing_is_written(refusal, arguments, message):
    assert re.search(message, told := refusal("ppo", *TINY, *arguments)), told


def test_a_run_extended_later_equals_one_that_was_never_stopped(run, components, differing):
    short = [*TINY, *SMALL[1:], "schedule.num_envs=8", "env.length=3", "checkpoint.interval=200"]
    short += ["schedule.steps_per_iteration=96", "schedule.epochs=1", "budget.updates=null"]
    whole, parts = (
        run(name, *short, f"budget.env_steps={steps}").path
        for name, steps in (("whole", 600), ("parts", 300))
    )
    agents = [components(path)["agent"] for path in (whole, parts)]
    assert differing(*agents)
    run("parts", *short, "budget.env_steps=600", "resume=true")
    assert differing(agents[0], components(parts)["agent"]) == []


def test_memory_learns_what_to_recall_and_without_it_nothing_can(run):
    # Much entropy: it must try both ends of the corridor for long enough to see that one is told at
    # its beginning.
    task = [
        *SMALL,
        "env.length=2",
        "budget.env_steps=6000",
        "schedule.batch_size=64",
        "schedule.warmup_updates=10",
        "optimizer.lr=3e-3",
        "agent.loss.entropy_coeff=0.3",
    ]
    assert run("gru", *task).summary["success"] >= 0.9
    small = [argument for argument in task if not argument.startswith("encoder.")]
    assert (
        run("control", *small, "encoder=memoryless", "encoder.d_model=32").summary["success"] <= 0.7
    )
