"""Runs with updates that are not finite: what is refused is counted and told, kept, and can be
looked at.
"""

import json
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from yamame.training.learner import Learner

TINY = (
    "debug=tiny",
    "logger=none",
    "run.name=bad",
    "budget.updates=20",
    "budget.minutes=null",
    "relabel=none",
    "encoder=gru",
    "env=bandits",
    "env.time_limit=9",
)
SOON = "schedule.updates_per_step=0.5"
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


@contextmanager
def spoilt(values, key=("next", "reward")):
    """Updates whose batches have values of ours: by the number of the update, where in the entry
    and which.
    """
    update, count = Learner.update, 0

    def spoil(learner, batch, **options):
        nonlocal count
        count += 1
        if count in values:
            where, value = values[count]
            batch = batch.clone()
            batch[key][where] = value
        return update(learner, batch, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", spoil)
        yield


def summary_of(folder):
    return json.loads((folder / "runs/bad/summary.json").read_text())


@pytest.fixture(scope="module")
def refused(play, tmp_path_factory):
    """A run three of whose updates were refused: its folder, what it told, and a bundle."""
    folder = tmp_path_factory.mktemp("refused")
    with spoilt(dict.fromkeys((3, 6, 7), ((1, 2), torch.nan))):
        _, _, err = play("train", folder, *TINY, SOON)
    bundle = min((folder / "runs/bad/nonfinite").iterdir())
    return SimpleNamespace(folder=folder, err=err, bundle=bundle)


def is_finite(state):
    return all(bool(value.isfinite().all()) for value in state.values())


def test_refused_updates_are_counted_told_and_made_up_for(refused, components):
    summary = summary_of(refused.folder)
    counted = summary["status"], summary["updates"], summary["refused_updates"]
    assert counted == ("FINISHED", 20, 3)
    lines = refused.err.splitlines()
    assert [line.split(" skipped")[0] for line in lines if " skipped" in line] == [
        "1 of the last 3 updates",
        "2 of the last 6 updates",
    ]
    saved = components(refused.folder / "runs/bad")
    assert is_finite(saved["agent"])
    assert saved["guard"]["num_refused"] == 3


def test_a_run_whose_every_second_update_is_refused_ends(play, tmp_path):
    with spoilt(dict.fromkeys(range(0, 1000, 2), ((0, 0), torch.nan))):
        status, _, err = play("train", tmp_path, *TINY, SOON)
    assert status == 1
    assert "in 10 of the last 20 updates" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert "FloatingPointError" in (tmp_path / "runs/bad/error.txt").read_text()
    summary = summary_of(tmp_path)
    assert summary["status"] == "FAILED"
    assert (summary["updates"], summary["refused_updates"]) == (10, 10)
    assert len(list((tmp_path / "runs/bad/nonfinite").iterdir())) == 5


def test_huge_finite_rewards_cost_at_most_their_batch(play, tmp_path, components):
    one, all_of_them = (0, 0), slice(None)
    huge = {4: (one, 1e18), 8: (all_of_them, 1e18), 12: (one, 1e38), 16: (all_of_them, 1e38)}
    with spoilt(huge):
        play("train", tmp_path, *TINY, SOON)
    summary = summary_of(tmp_path)
    assert (summary["status"], summary["updates"]) == ("FINISHED", 20)
    refused = summary["refused_updates"]
    assert 1 <= refused <= 4
    last = max((tmp_path / "runs/bad/nonfinite").iterdir()).name
    assert last.startswith(
        f"step-{16 - refused:012d}"
    )  # that of the last one, in which nothing is finite
    state = components(tmp_path / "runs/bad")["agent"]
    assert is_finite(state)
    assert state["returns.moments.mean"].abs().max() < 1e3


@pytest.mark.parametrize(("recipe", "reward"), [("train", "1e38"), ("ppo", "1e18")])
def test_an_environment_may_pay_a_huge_reward_now_and_then(
    play, tmp_path, monkeypatch, components, recipe, reward
):
    gymnasium = pytest.importorskip("gymnasium")
    (tmp_path / "huge_envs.py").write_text(HUGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "huge_envs", raising=False)
    env = ("env=gym", "env.id=huge_envs:Huge-v0", f"+env.settings.reward={reward}")
    try:
        _, _, err = play(recipe, tmp_path, *TINY, *env, *([SOON] if recipe == "train" else []))
    finally:
        gymnasium.registry.pop("Huge-v0", None)
    summary = summary_of(tmp_path)
    assert (summary["status"], summary["updates"], summary["refused_updates"]) == (
        "FINISHED",
        20,
        0,
    )
    assert "rewards that are NaN or beyond 1e+10 are not learned from" in err
    state = components(tmp_path / "runs/bad")["agent"]
    assert is_finite(state)
    assert max(value.abs().max() for key, value in state.items() if "moments" in key) < 1e6


def test_a_state_that_is_not_finite_is_never_saved(play, monkeypatch, tmp_path, components):
    settings = (*TINY, "budget.updates=10", "checkpoint.interval=64", "checkpoint.keep=100")
    update, count = Learner.update, 0

    def breaks(learner, batch, **options):
        nonlocal count
        count += 1
        metrics = update(learner, batch, **options)
        if count == 8:
            with torch.no_grad():
                next(learner.loss.actor_network.parameters()).view(-1)[0] = torch.inf
        return metrics

    monkeypatch.setattr(Learner, "update", breaks)
    status, _, err = play("train", tmp_path, *settings)
    assert status == 1
    assert "finite numbers, agent does not: actor" in err
    assert summary_of(tmp_path)["status"] == "FAILED"
    saved = components(tmp_path / "runs/bad")
    assert 0 < saved["progress"]["updates"] < 8
    assert is_finite(saved["agent"])
    monkeypatch.setattr(Learner, "update", update)
    assert play("train", tmp_path, *settings, "resume=true")[0] == 0


def check_shown(play, folder, bundle, key):
    status, out, err = play("replay_batch", folder, f"bundle={bundle}")
    assert (status, err) == (0, "")
    begin = (
        f"not finite: batch {key}[1, 2, 0] = nan; term loss_critic = nan; gradient of "
        "loss_critic by "
    )
    assert out.splitlines()[-1].startswith(begin)


def test_a_bundle_shows_the_first_entry_term_and_gradient_that_is_not_finite(
    refused, play, tmp_path
):
    for source in (refused.bundle, next(refused.bundle.glob("*.pt"))):
        check_shown(play, tmp_path, source, "next.reward")


def test_so_does_a_bundle_of_ppo(play, tmp_path):
    with spoilt({1: ((1, 2), torch.nan)}, key=("value_target",)):
        play("ppo", tmp_path, *TINY, "budget.updates=2")
    (bundle,) = (tmp_path / "runs/bad/nonfinite").iterdir()
    check_shown(play, tmp_path, bundle, "value_target")


def test_what_is_no_bundle_is_refused_in_one_line(refused, play, tmp_path):
    file = next(refused.bundle.glob("*.pt"))
    run = refused.folder / "runs/bad"
    payload = torch.load(file, weights_only=True)
    payload["components"]["update"]["batch"] = {"a": 1}
    torch.save(payload, tmp_path / "other.pt")
    (tmp_path / "cut.pt").write_bytes(file.read_bytes()[:1000])
    for source in ("nothing", run, next(run.glob("checkpoints/*.pt")), "other.pt", "cut.pt"):
        status, _, err = play("replay_batch", tmp_path, f"bundle={source}")
        assert (status, len(err.splitlines())) == (2, 1), err
