"""Every agent and every ablation trains, and what separates actor and critics resumes exactly."""

import json
import sys

import pytest
import torch
from yamame import conf_dir
from yamame.runs.hydra import main

AGENTS = [f"agent={path.stem}" for path in sorted((conf_dir() / "agent").glob("*.yaml"))]
ABLATIONS = [f"+ablation={path.stem}" for path in sorted((conf_dir() / "ablation").glob("*.yaml"))]
OPTIONS = [
    "agent.loss.discrete_gradient=straight_through",
    "agent=amago2 agent.returns.labels=hl_gauss agent.loss.n_step=3",
    "agent.loss.cloning_filter=exponential agent/returns=binned",
    "env=wind agent.box_distribution=beta",
    "env=wind agent=amago2",
    "env=wind agent=separate encoder=memoryless",
]
SHORT = [
    "agent=separate",
    "logger=none",
    "encoder.hidden_size=16",
    "env.time_limit=20",
    "schedule.steps_per_iteration=64",
    "schedule.learning_starts=128",
    "schedule.updates_per_step=0.05",
    "schedule.batch_size=4",
    "schedule.anneal_lr=false",
    "evaluation.num_episodes=4",
    "checkpoint.interval=64",
    "budget.env_steps=512",
    "budget.minutes=null",
]


@pytest.fixture
def run(monkeypatch, tmp_path, recipe):
    """Runs the recipe in the test's directory under a name; returns its summary."""
    monkeypatch.chdir(tmp_path)

    def call(name: str, *arguments: str) -> dict:
        monkeypatch.setattr(sys, "argv", ["train.py", f"run.name={name}", *arguments])
        main(recipe.train, config_name="train")
        return json.loads((tmp_path / "runs" / name / "summary.json").read_text())

    return call


@pytest.mark.parametrize("choice", [*AGENTS, *ABLATIONS, *OPTIONS])
def test_two_updates_of_a_tiny_agent(run, choice):
    summary = run("tiny", "debug=tiny", "logger=none", *choice.split())
    assert (summary["status"], summary["updates"]) == ("FINISHED", 2)
    assert summary["return_mean"] is not None


def components(directory) -> dict:
    newest = sorted((directory / "checkpoints").glob("step-*.pt"))[-1]
    return torch.load(newest, weights_only=True)["components"]


def test_separate_encoders_and_their_targets_resume_exactly(run, tmp_path):
    assert run("whole", *SHORT)["updates"] > 7
    assert run("parts", *SHORT, "budget.updates=7")["updates"] == 7
    run("parts", *SHORT, "resume=true")
    states = [components(tmp_path / "runs" / name) for name in ("whole", "parts")]
    for name in ("agent", "loss"):
        whole, parts = (state[name] for state in states)
        assert whole.keys() == parts.keys()
        assert [key for key in whole if not torch.equal(whole[key], parts[key])] == []
    targets = [key for key in states[0]["loss"] if key.startswith("target_encoder_network_params.critic")]
    assert targets
    run("other", *SHORT, "seed=1")
    other = components(tmp_path / "runs/other")["loss"]
    assert not any(torch.equal(other[key], states[0]["loss"][key]) for key in targets if "weight" in key)
