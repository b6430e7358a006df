"""Runs and agents of an earlier version resume, evaluate and load."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yamame

ARCHIVE = Path(__file__).with_name("runs.tar.gz")
RUNS = ("gru", "transformer", "ppo")
SMALL = (
    *("debug=tiny", "logger=none", "device=cpu", "checkpoint.keep=1", "evaluation.video_frames=1"),
    *("timestep_encoder.hidden_size=8", "timestep_encoder.out_size=8"),
    *("timestep_encoder.embedding_size=8", "timestep_encoder.num_layers=1"),
    *("goal_encoder.out_features=4", "goal_encoder.hidden_size=8"),
    *("agent.actor.hidden_size=8", "agent.critic.hidden_size=8"),
    *("budget.updates=null", "budget.minutes=null"),
)
GRU = ("encoder=gru", "encoder.hidden_size=8", "encoder.out_features=8", "encoder.num_layers=1")
OFF_POLICY = (
    *("schedule.updates_per_step=0.02", "agent.gammas=[0.9,0.99]", "agent=amago_paper"),
    *("optimizer=adamw", "schedule.regulator=null", "schedule.average_decay=null"),
    *("schedule.autocast=null", "schedule.batch_timesteps=null"),
)
FORMER_DEFAULTS = ("env.split_by=walls_and_goals", "schedule.anneal_lr_from=null")
FORMER_STEPS = ("exploration.anneal_steps=60000",)
"""Defaults that have changed since: resuming asks for the former values."""
OVERRIDES = {
    "gru": ("train", *SMALL, *GRU, *OFF_POLICY, *FORMER_DEFAULTS, *FORMER_STEPS),
    "transformer": (
        *("train", *SMALL, *OFF_POLICY, *FORMER_DEFAULTS, *FORMER_STEPS),
        *("encoder=transformer_deep", "encoder.d_model=8"),
        *("encoder.num_layers=1", "encoder.num_heads=2"),
    ),
    "ppo": ("ppo", *SMALL, *GRU, *FORMER_STEPS),
}
"""Recipe and overrides with which the runs were made, but for their budget and folder."""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """Folder with the unpacked archive."""
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def expected(earlier):
    return json.loads((earlier / "expected.json").read_text())


def greedy_actions(agent, length):
    """Actions of an agent for a fixed history of observations and rewards."""
    generator = np.random.default_rng(0)
    actions = []
    for step in range(length):
        observation = {}
        for name, leaf in agent.observation_spec.items():
            values = 5 * generator.normal(size=tuple(leaf.shape))
            observation[name] = values.astype(np.float32)
        reward = None if step == 0 else 0.5 * (step % 3)
        done = None if step == 0 else False
        actions.append(int(agent.act(observation, reward=reward, done=done)))
    return actions


def test_the_archive_is_small():
    assert ARCHIVE.stat().st_size < 1_000_000


@pytest.mark.parametrize("name", RUNS)
def test_agents_and_runs_load_and_act_as_before(earlier, expected, name):
    actions = expected[name]["actions"]
    agent = yamame.load(earlier / f"agent_{name}", greedy=True)
    run = yamame.load(earlier / name, greedy=True, checkpoint="last")
    assert greedy_actions(agent, len(actions)) == actions
    assert greedy_actions(run, len(actions)) == actions


def test_other_weights_act_otherwise(earlier, expected):
    agent = yamame.load(earlier / "agent_transformer", greedy=True)
    actions = expected["transformer"]["actions"]
    assert len(set(actions)) > 1
    other = yamame.load(earlier / "agent_gru", greedy=True)
    assert greedy_actions(other, len(actions)) != actions
    assert greedy_actions(agent, len(actions)) == actions


@pytest.mark.parametrize("name", RUNS)
def test_runs_evaluate(earlier, name):
    options = ("checkpoint=last", "num_episodes=4", "device=cpu")
    result = yamame.evaluate(f"run={earlier / name}", *options)
    assert np.isfinite(result["score"])


@pytest.mark.parametrize("name", RUNS)
def test_runs_resume(earlier, expected, tmp_path, name):
    counts = expected[name]
    former = torch.load(max((earlier / name / "checkpoints").glob("step-*.pt")), weights_only=True)
    env_steps = counts["env_steps"] + 400
    recipe, *overrides = OVERRIDES[name]
    place = (f"run.root={earlier}", f"run.name={name}", "resume=true")
    yamame.train(*overrides, *place, f"budget.env_steps={env_steps}", recipe=recipe)
    summary = json.loads((earlier / name / "summary.json").read_text())
    assert summary["env_steps"] >= env_steps
    assert summary["updates"] > counts["updates"]
    latest = torch.load(max((earlier / name / "checkpoints").glob("step-*.pt")), weights_only=True)
    curve = former["components"]["progress"]["curve"]
    assert latest["components"]["progress"]["curve"][: len(curve)] == curve
