"""Runs that were begun before trajectories held hashes of their worlds go on as they were."""

import pytest
import torch
import yamame
from yamame_envs import GoalEnv, MazeRunner

SETTINGS = [
    *(
        "debug=tiny",
        "logger=none",
        "budget.minutes=null",
        "evaluation.max_steps=10",
        "encoder=gru",
        "env=mazerunner",
    ),
    *(
        "env.num_goals=1",
        "env.time_limit=20",
        "env.split_by=walls_and_goals",
        "evaluation.interval=100000",
        "schedule.anneal_lr=false",
        "exploration.anneal_steps=60000",
    ),
]


@pytest.fixture
def as_before(monkeypatch):
    """Lets environments write no hashes within the block, as earlier versions did."""

    def train(*overrides):
        with monkeypatch.context() as patch:
            patch.setattr(GoalEnv, "_holds_instructions_out", False)
            return yamame.train(*SETTINGS, *overrides)

    return train


def weights_of(run):
    components = torch.load(run.checkpoints.last, weights_only=True)["components"]
    return components["agent"]


def test_a_run_without_hashes_is_resumed_exactly_and_says_so(as_before, tmp_path, capsys):
    root = f"run.root={tmp_path}"
    whole = as_before(root, "run.name=whole", "budget.updates=12")
    as_before(root, "run.name=half", "budget.updates=6")
    assert "world_hash" not in capsys.readouterr().err
    run = yamame.train(*SETTINGS, root, "run.name=half", "budget.updates=12", "resume=true")
    err = capsys.readouterr().err
    assert (
        len([line for line in err.splitlines() if "world_hash" in line and "replay" in line]) == 1
    )
    assert (
        run.summary["evaluated_on"] == "new goals in known mazes, unless relabelling has met them"
    )
    for name, value in weights_of(whole).items():
        assert torch.equal(weights_of(run)[name], value), name


def test_a_run_with_hashes_is_resumed_exactly(tmp_path, capsys):
    root = f"run.root={tmp_path}"
    whole = yamame.train(*SETTINGS, root, "run.name=whole", "budget.updates=12")
    yamame.train(*SETTINGS, root, "run.name=half", "budget.updates=6")
    run = yamame.train(*SETTINGS, root, "run.name=half", "budget.updates=12", "resume=true")
    assert "world_hash" not in capsys.readouterr().err
    assert run.summary["evaluated_on"] == "new goals in known mazes"
    for name, value in weights_of(whole).items():
        assert torch.equal(weights_of(run)[name], value), name


def test_the_state_of_an_environment_without_hashes_is_completed():
    settings = {"num_envs": 3, "size": 9, "split": "train", "split_by": "walls_and_goals"}
    env = MazeRunner(**settings, seed=4)
    shown = env.reset()
    state = {name: value for name, value in env.state_dict().items() if "world_hash" not in name}
    assert len(state) < len(env.state_dict())
    other = MazeRunner(**settings, seed=5)
    other.reset()
    other.load_state_dict(state)
    assert torch.equal(other.present()["world_hash"], shown["world_hash"])
