"""A run on an environment that fails: it stops or goes on, as configured, and what is stored is
whole.
"""

import json
import re
import sys

import pytest
import torch
from yamame.replay import TrajectoryReplayBuffer

LENGTH, STEP, CAPACITY = 9, 4, 5000
FAULTY = f'''
import sys

import gymnasium
import numpy as np
from gymnasium import spaces


class Faulty(gymnasium.Env):
    """Episodes of {LENGTH} steps; those with an even seed fail after {STEP}."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), dtype=np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, fault):
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bad, self.t = seed % 2 == 0, 0
        return np.zeros(3, np.float32), {{}}

    def step(self, action):
        self.t += 1
        observation = np.full(3, self.t / 10, np.float32)
        if self.bad and self.t == {STEP}:
            if self.fault == "raise":
                raise OSError("the cable is out")
            if self.fault == "exit":
                sys.exit(3)
            observation[1] = np.nan if self.fault == "not_finite" else 1e6
        return observation, 1.0, self.t == {LENGTH}, False, {{}}


gymnasium.register("Faulty-v0", Faulty)
'''

BROKEN = """
import gymnasium


class Broken(gymnasium.Env):
    def __init__(self):
        raise KeyError("map")


gymnasium.register("Broken-v0", Broken)
"""


@pytest.fixture
def train(monkeypatch, tmp_path, runner):
    """Trains a tiny agent on the faulty environment, in an empty directory; gives its summary,
    however it ends.
    """
    (tmp_path / "faulty_envs.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "faulty_envs", raising=False)

    def call(*arguments: str) -> dict:
        fixed = [
            "env=gym",
            "env.id=faulty_envs:Faulty-v0",
            "debug=tiny",
            "logger=none",
            "run.name=tiny",
        ]
        fixed += ["encoder=gru"]
        call.status, call.out, call.errors = runner("train")(*fixed, *arguments)
        return json.loads((tmp_path / "runs/tiny/summary.json").read_text())

    yield call
    import gymnasium

    gymnasium.registry.pop("Faulty-v0", None)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("raise", "the cable is out"),
        ("not_finite", "nan"),
        ("exit", "SystemExit: 3"),
        ("far", r"must be in -1\.\.1"),
    ],
)
def test_a_failure_ends_the_run_and_names_the_environment_and_the_step_in_one_line(
    train, tmp_path, fault, cause
):
    summary = train(f"+env.settings.fault={fault}", "env.bounds=raise")
    assert (train.status, summary["status"]) == (1, "FAILED")
    assert "next:" not in train.out  # there is neither a checkpoint nor a page
    assert re.fullmatch(
        rf"train: .*Faulty-v0.* env \d at step {STEP - 1} of .*{cause}.*\n", train.errors
    )
    traceback = (tmp_path / "runs/tiny/error.txt").read_text()
    assert "the environment failed in env" in traceback
    assert (fault == "raise") == ("the cable is out" in traceback and "in step" in traceback)


@pytest.mark.parametrize("fault", ["raise", "not_finite"])
def test_a_run_that_goes_on_drops_the_episodes_and_stores_whole_ones(train, tmp_path, fault):
    settings = [
        "workers.on_error=continue",
        "workers.max_errors=100000",
        "schedule.learning_starts=256",
    ]
    summary = train(f"+env.settings.fault={fault}", f"replay.capacity={CAPACITY}", *settings)
    assert summary["status"] == "FINISHED"
    assert "next:\n  " in train.out
    assert summary["env_steps"] >= 256
    path = tmp_path / "runs/tiny/replay"
    replay = TrajectoryReplayBuffer(
        path=path, capacity=CAPACITY, batch_size=64, owner="tiny", resume=True
    )
    assert len(replay) >= 10
    batch = replay.sample()
    lengths = batch["mask"].flatten(1).sum(1)
    assert lengths.tolist() == [LENGTH + 1] * 64
    assert batch["observation"].isfinite().all()
    assert torch.equal(batch["observation"][0, :, 0], torch.arange(LENGTH + 1) / 10)
    assert not any("aborted" in str(key) for key in batch.keys(True, True))


def test_too_many_failures_end_a_run_that_goes_on(train):
    summary = train(
        "+env.settings.fault=raise", "workers.on_error=continue", "workers.max_errors=3"
    )
    assert (train.status, summary["status"]) == (1, "FAILED")
    assert re.search(
        r"Faulty-v0.* failed more often than max_errors=3.*env \d at step 3", train.errors
    )


def test_an_environment_that_cannot_be_made_is_one_line_and_leaves_nothing(
    runner, tmp_path, monkeypatch
):
    (tmp_path / "broken_envs.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    status, _, errors = runner("train")(
        "env=gym", "env.id=broken_envs:Broken-v0", "debug=tiny", "logger=none"
    )
    start = (
        "train: Gym('broken_envs:Broken-v0'): the environment failed in env 0 while it was made: "
    )
    assert (status, errors.count("\n")) == (1, 1)
    assert errors.startswith(f"{start}KeyError: 'map' ({tmp_path / 'broken_envs.py'}:7); ")
    assert not (tmp_path / "runs").exists()
