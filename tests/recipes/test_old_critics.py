"""Runs with categorical critics of earlier versions, which did not record by which rule values were
trained.
"""

import shutil
from pathlib import Path

import pytest
import torch
import yamame
from yamame.runs.trained import load_trained

SETTINGS = [
    *(
        "debug=tiny",
        "logger=none",
        "encoder=memoryless",
        "encoder.d_model=16",
        "env=tmaze",
        "env.length=8",
    ),
    *(
        "agent/returns=binned",
        "schedule.anneal_lr=false",
        "exploration.anneal_steps=60000",
        "schedule.learning_starts=64",
        "run.name=a",
    ),
    *(
        "evaluation.num_episodes=2",
        "evaluation.video_frames=1",
        "evaluation.interval=1000",
        "budget.updates=null",
    ),
]
OLD_RULE = "+agent.returns.value=mean_bin"


def make_old(folder: Path) -> None:
    """Takes out of a run what earlier versions did not write: the rule, in states and in the
    configuration.
    """
    for path in (folder / "checkpoints").glob("step-*.pt"):
        saved = torch.load(path, weights_only=True)
        saved["config"]["agent"]["returns"].pop("value", None)
        for name, key in (("agent", "returns.value_rule"), ("loss", "returns.value_rule")):
            saved["components"][name].pop(key, None)
        torch.save(saved, path)


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """Trains on from nothing, or from a folder, to so many steps."""
    monkeypatch.chdir(tmp_path)

    def train(root: str, steps: int, *settings: str) -> Path:
        return yamame.train(
            *SETTINGS, f"run.root={root}", f"budget.env_steps={steps}", *settings
        ).path

    return train


def test_an_old_run_goes_on_by_the_rule_it_was_trained_by(trained, components, differing, capsys):
    whole = components(trained("whole", 256, OLD_RULE))
    old = trained("parts", 128, OLD_RULE)
    assert differing(whole["agent"], components(old)["agent"])
    make_old(old)
    shutil.copytree("parts", "kept")
    capsys.readouterr()
    again = components(trained("parts", 256, "resume=true"))
    lines = [line for line in capsys.readouterr().err.splitlines() if "mean_bin" in line]
    assert len(lines) == 1
    assert differing(whole["agent"], again["agent"]) == []
    assert differing(whole["loss"], again["loss"]) == []
    trained("parts", 320, "resume=true")  # and records it
    assert "earlier" not in capsys.readouterr().err

    other = components(trained("new", 256))  # the rule of new runs
    assert differing(whole["agent"], other["agent"])


def test_an_old_agent_is_loaded_with_the_rule_it_was_trained_by(trained, capsys):
    path = trained("runs", 128)
    capsys.readouterr()
    raw = torch.randn(3, 7, 128)

    def values() -> torch.Tensor:
        run = load_trained(path, checkpoint="last")
        env = run.build_env(num_envs=1, seed=0)
        return run.build_agent(env).returns.to_returns(raw)

    new = values()
    yamame.load(path)
    assert "mean_bin" not in capsys.readouterr().err
    make_old(path)
    old = values()
    assert "mean_bin" in capsys.readouterr().err
    assert old.abs().max() < 1e4
    assert not torch.allclose(old, new, rtol=0.1)
    yamame.load(path)
    assert "mean_bin" in capsys.readouterr().err
    yamame.load(yamame.load(path).save_pretrained("folder"))
    assert "mean_bin" in capsys.readouterr().err
