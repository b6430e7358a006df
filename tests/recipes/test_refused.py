"""Runs with updates that are not finite: what is refused is counted and told, kept, and can be looked at."""

import json
import shutil
import sys

import pytest
import torch
from yamame.training.learner import Learner

TINY = (
    "debug=tiny",
    "logger=none",
    "budget.updates=20",
    "budget.minutes=null",
    "relabel=none",
    "encoder=gru",
)
HUGE = '''
import gymnasium
import numpy as np
from gymnasium import spaces


class Huge(gymnasium.Env):
    """Episodes of nine steps; one reward in a hundred is huge."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), dtype=np.float32)
    action_space = spaces.Discrete(3)
    steps = 0

    def __init__(self, reward):
        self.reward = float(reward)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t, Huge.steps = self.t + 1, Huge.steps + 1
        reward = self.reward if Huge.steps % 100 == 50 else 1.0
        return np.full(3, self.t / 10, np.float32), reward, self.t == 9, False, {}


gymnasium.register("Huge-v0", Huge)
'''


@pytest.fixture
def train(runner, monkeypatch, tmp_path):
    """Trains while rewards of some updates' batches are replaced: summary and error output."""
    update = Learner.update

    def call(reward, numbers, *arguments, recipe="train", where=(0, 0), key=("next", "reward")):
        count = 0

        def spoilt(learner, batch, **options):
            nonlocal count
            count += 1
            if count in numbers:
                batch = batch.clone()
                batch[key][where] = reward
            return update(learner, batch, **options)

        monkeypatch.setattr(Learner, "update", spoilt)
        try:
            _, _, err = runner(recipe)(*TINY, "run.name=bad", *arguments)
        finally:
            monkeypatch.setattr(Learner, "update", update)
            call.summary = json.loads((tmp_path / "runs/bad/summary.json").read_text())
        return call.summary, err

    return call


def is_finite(state):
    return all(bool(value.isfinite().all()) for value in state.values())


def test_refused_updates_are_counted_told_and_made_up_for(train, tmp_path, components):
    summary, err = train(torch.nan, {3, 6, 7})
    counted = summary["status"], summary["updates"], summary["refused_updates"]
    assert counted == ("FINISHED", 20, 3)
    assert [line.split(" refused")[0] for line in err.splitlines()] == [
        "1 of the last 3 updates",
        "2 of the last 6 updates",
    ]
    saved = components(tmp_path / "runs/bad")
    assert is_finite(saved["agent"])
    assert saved["guard"]["num_refused"] == 3


def test_a_run_whose_every_second_update_is_refused_ends(train, tmp_path):
    with pytest.raises(FloatingPointError, match="in 10 of the last 20 updates"):
        train(torch.nan, range(0, 1000, 2))
    assert train.summary["status"] == "FAILED"
    assert (train.summary["updates"], train.summary["refused_updates"]) == (10, 10)
    assert len(list((tmp_path / "runs/bad/nonfinite").iterdir())) == 5


@pytest.mark.parametrize("where", [(0, 0), slice(None)], ids=["one reward", "all rewards"])
@pytest.mark.parametrize("reward", [1e18, 1e38])
def test_a_huge_finite_reward_costs_at_most_its_batch(train, tmp_path, components, reward, where):
    summary, _ = train(reward, {4}, where=where)
    assert (summary["status"], summary["updates"]) == ("FINISHED", 20)
    assert summary["refused_updates"] <= 1
    state = components(tmp_path / "runs/bad")["agent"]
    assert is_finite(state)
    assert state["returns.moments.mean"].abs().max() < 1e3
    # The negative control: what is not finite is refused.
    assert (reward == 1e18 or where == (0, 0)) or summary["refused_updates"] == 1


@pytest.mark.parametrize("reward", ["1e18", "1e38"])
@pytest.mark.parametrize("recipe", ["train", "ppo"])
def test_an_environment_may_pay_a_huge_reward_now_and_then(
    train, tmp_path, monkeypatch, components, recipe, reward
):
    gymnasium = pytest.importorskip("gymnasium")
    (tmp_path / "huge_envs.py").write_text(HUGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "huge_envs", raising=False)
    env = ("env=gym", "env.id=huge_envs:Huge-v0", f"+env.settings.reward={reward}")
    try:
        summary, err = train(0.0, (), *env, recipe=recipe)
    finally:
        gymnasium.registry.pop("Huge-v0", None)
    assert (summary["status"], summary["updates"], summary["refused_updates"]) == ("FINISHED", 20, 0)
    assert "rewards that are NaN or beyond 1e+10 are not learned from" in err
    state = components(tmp_path / "runs/bad")["agent"]
    assert is_finite(state)
    assert max(value.abs().max() for key, value in state.items() if "moments" in key) < 1e6


def test_a_state_that_is_not_finite_is_never_saved(runner, monkeypatch, tmp_path, components):
    settings = (*TINY, "run.name=bad", "checkpoint.interval=64", "checkpoint.keep=100")
    update, count = Learner.update, 0

    def breaks(learner, batch, **options):
        nonlocal count
        count += 1
        metrics = update(learner, batch, **options)
        if count == 12:
            with torch.no_grad():
                learner.loss.actor_network.get_parameter(first(learner)).view(-1)[0] = torch.inf
        return metrics

    def first(learner):
        return next(name for name, _ in learner.loss.actor_network.named_parameters())

    monkeypatch.setattr(Learner, "update", breaks)
    with pytest.raises(FloatingPointError, match="finite numbers, agent does not: actor"):
        runner("train")(*settings)
    assert json.loads((tmp_path / "runs/bad/summary.json").read_text())["status"] == "FAILED"
    saved = components(tmp_path / "runs/bad")
    assert saved["progress"]["updates"] < 12
    assert is_finite(saved["agent"])
    monkeypatch.setattr(Learner, "update", update)
    assert runner("train")(*settings, "resume=true")[0] == 0


@pytest.mark.parametrize(
    ("recipe", "key", "term"),
    [("train", ("next", "reward"), "loss_critic"), ("ppo", ("value_target",), "loss_critic")],
)
def test_a_bundle_shows_the_first_entry_term_and_gradient_that_is_not_finite(
    train, runner, tmp_path, recipe, key, term
):
    train(torch.nan, {5}, where=(1, 2), key=key, recipe=recipe)
    (bundle,) = (tmp_path / "runs/bad/nonfinite").iterdir()
    for source in (bundle, next(bundle.glob("*.pt"))):
        status, out, err = runner("replay_batch")(f"bundle={source}")
        assert (status, err) == (0, "")
        begin = f"not finite: batch {'.'.join(key)}[1, 2, 0] = nan; term {term} = nan; gradient of {term} by "
        assert out.splitlines()[-1].startswith(begin)


def test_what_is_no_bundle_is_refused_in_one_line(train, runner, tmp_path):
    train(torch.nan, {5})
    (bundle,) = (tmp_path / "runs/bad/nonfinite").iterdir()
    file = next(bundle.glob("*.pt"))
    checkpoint = next((tmp_path / "runs/bad/checkpoints").glob("*.pt"))
    payload = torch.load(file, weights_only=True)
    payload["components"]["update"]["batch"] = {"a": 1}
    torch.save(payload, tmp_path / "other.pt")
    (tmp_path / "cut.pt").write_bytes(file.read_bytes()[:1000])
    for source in ("nothing", "runs/bad", checkpoint, tmp_path / "other.pt", tmp_path / "cut.pt"):
        status, _, err = runner("replay_batch")(f"bundle={source}")
        assert (status, len(err.splitlines())) == (2, 1), err
    shutil.rmtree(bundle)
