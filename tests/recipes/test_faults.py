"""A run on an environment that fails: it stops or goes on, as configured, and what is stored is whole."""

import json
import sys

import pytest
import torch
from yamame.replay import TrajectoryReplayBuffer

LENGTH, STEP, CAPACITY = 9, 4, 5000
FAULTY = f'''
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
            observation[1] = np.nan
        return observation, 1.0, self.t == {LENGTH}, False, {{}}


gymnasium.register("Faulty-v0", Faulty)
'''


@pytest.fixture
def train(monkeypatch, tmp_path, runner):
    """Trains a tiny agent on the faulty environment, in an empty directory; gives its summary, however it ends."""
    (tmp_path / "faulty_envs.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "faulty_envs", raising=False)

    def call(*arguments: str) -> dict:
        fixed = ["env=gym", "env.id=faulty_envs:Faulty-v0", "debug=tiny", "logger=none", "run.name=tiny"]
        try:
            runner("train")(*fixed, *arguments)
        finally:
            call.summary = json.loads((tmp_path / "runs/tiny/summary.json").read_text())
        return call.summary

    yield call
    import gymnasium

    gymnasium.registry.pop("Faulty-v0", None)


@pytest.mark.parametrize(("fault", "cause"), [("raise", "the cable is out"), ("nan", "nan")])
def test_a_failure_ends_the_run_and_names_the_environment_and_the_step(train, fault, cause):
    with pytest.raises(Exception, match=rf"(?is)Faulty-v0.*env \d.*step {STEP - 1}.*{cause}"):
        train(f"+env.settings.fault={fault}")
    assert train.summary["status"] == "FAILED"


@pytest.mark.parametrize("fault", ["raise", "nan"])
def test_a_run_that_goes_on_drops_the_episodes_and_stores_whole_ones(train, tmp_path, fault):
    settings = ["workers.on_error=continue", "workers.max_errors=100000", "schedule.learning_starts=512"]
    summary = train(f"+env.settings.fault={fault}", f"replay.capacity={CAPACITY}", *settings)
    assert summary["status"] == "FINISHED"
    assert summary["env_steps"] >= 512
    path = tmp_path / "runs/tiny/replay"
    replay = TrajectoryReplayBuffer(path=path, capacity=CAPACITY, batch_size=64, owner="tiny", resume=True)
    assert len(replay) >= 10
    batch = replay.sample()
    lengths = batch["mask"].flatten(1).sum(1)
    assert lengths.tolist() == [LENGTH + 1] * 64
    assert batch["observation"].isfinite().all()
    assert torch.equal(batch["observation"][0, :, 0], torch.arange(LENGTH + 1) / 10)
    assert not any("aborted" in str(key) for key in batch.keys(True, True))


def test_too_many_failures_end_a_run_that_goes_on(train):
    with pytest.raises(
        RuntimeError, match=r"Faulty-v0.* failed more often than max_errors=3.*env \d at step 3"
    ):
        train("+env.settings.fault=raise", "workers.on_error=continue", "workers.max_errors=3")
    assert train.summary["status"] == "FAILED"
