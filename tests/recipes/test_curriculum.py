"""A curriculum over task seeds in a run: resumed exactly, on the training side alone, and given by
name.
"""

import re
import signal
from pathlib import Path

import pytest
import torch
import yamame
from yamame.checks import UsageError
from yamame.system.messages import OutsideError

SMALL = (
    *("debug=tiny", "logger=none", "env=package_delivery", "env.length=6", "env.time_limit=12"),
    "env.split_by=roads_and_goals",
    *("env.min_packages=1", "env.max_packages=1", "encoder=gru", "encoder.hidden_size=16"),
    *("agent.gammas=[0.5,0.9]", "schedule.steps_per_iteration=64", "schedule.num_envs=4"),
    *("schedule.regulator=null", "schedule.updates_per_step=0.05", "optimizer=adamw"),
    *("budget.updates=null", "budget.minutes=null", "budget.env_steps=512"),
    *("evaluation.num_episodes=4", "evaluation.interval=256", "evaluation.video_frames=1"),
    *("schedule.autocast=null", "agent=amago_paper"),
)
"""Eight iterations of some five episodes each."""
PLR = ("curriculum=plr", "curriculum.min_seeds=4", "curriculum.capacity=16")


class Watch(yamame.Callback):
    """Notes metrics and evaluated tasks, and may end the run after an update or an iteration."""

    def __init__(self, *, after_update=None, after_log=None):
        self.logged, self.tasks = [], []
        self.after_update = after_update
        self.after_log = after_log

    def on_update(self, run, metrics):
        if run.progress.updates == self.after_update:
            signal.raise_signal(signal.SIGTERM)

    def on_log(self, run, metrics, step):
        self.logged.append(dict(metrics))
        if len(self.logged) == self.after_log:
            signal.raise_signal(signal.SIGTERM)

    def on_evaluate(self, run, result):
        self.tasks.append(result.tasks)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that were never stopped, by curriculum, and what was seen of them."""
    runs = {}
    choices = {
        "plr": PLR,
        "never": (*PLR, "curriculum.replay_probability=0.0"),
        "none": ("curriculum=none",),
    }
    for name, chosen in choices.items():
        root = tmp_path_factory.mktemp(name)
        watch = Watch()
        settings = (*SMALL, *chosen, f"run.root={root}", "run.name=a")
        runs[name] = yamame.train(*settings, callbacks=[watch]), watch
    return runs


@pytest.mark.parametrize("stop", [{"after_update": 9}, {"after_log": 3}])
def test_a_stopped_run_goes_on_to_the_same_bits(whole, stop, components, differing):
    run, _ = whole["plr"]
    with pytest.raises(KeyboardInterrupt):
        yamame.train(*SMALL, *PLR, "run.name=a", callbacks=[Watch(**stop)])
    part = yamame.train(*SMALL, *PLR, "run.name=a", "resume=true")
    assert part.resumed
    expected = components(run.path)
    table = expected["collector"]["env"]["curriculum"]["table"]
    assert len(table["seed"].unique()) == 16
    assert differing(expected, components(part.path)) == []


def test_scoring_alone_changes_nothing(whole, components, differing):
    plain, never, replayed = (components(whole[name][0].path) for name in ("none", "never", "plr"))
    assert differing(plain, never, skip=("/collector",)) == []
    assert len(never["collector"]["env"]["curriculum"]["table"]["seed"]) == 16
    assert "curriculum" not in plain["collector"]["env"]
    assert differing(plain["agent"], replayed["agent"])


def test_evaluations_play_the_same_held_out_tasks(whole):
    plain, replayed = (whole[name][1] for name in ("none", "plr"))
    assert len(plain.tasks) == len(replayed.tasks) == 2
    for one, other in zip(plain.tasks, replayed.tasks, strict=True):
        assert torch.equal(one, other)
    seen = whole["plr"][0].curriculum.seeds
    assert len(seen) == 16


def test_the_table_is_logged(whole):
    logged = [metrics for metrics in whole["plr"][1].logged if "curriculum/seeds" in metrics]
    assert len(logged) == 8
    assert logged[-1]["curriculum/seeds"] == 16
    assert 0.2 < logged[-1]["curriculum/replayed"] < 0.8
    assert whole["never"][1].logged[-1]["curriculum/replayed"] == 0
    assert not any("curriculum" in name for name in whole["none"][1].logged[-1])


OWN = """
import torch

class Again:
    needs = ("success",)

    def __init__(self, times):
        self.times = times
        self.left = {}
        self.lengths = []

    def choose(self, seeds, uniform):
        waiting = sorted(self.left)
        if not waiting:
            return seeds
        row = (uniform[:, 0] * len(waiting)).long()
        return torch.tensor(waiting)[row]

    def observe(self, episodes):
        self.lengths += episodes.trajectories["mask"].flatten(1).sum(-1).tolist()
        for seed, success in zip(episodes.task_seed.tolist(), episodes.success, strict=True):
            self.left[seed] = self.left.get(seed, self.times) - 1
            if success or self.left[seed] == 0:
                del self.left[seed]
        return torch.tensor([seed in self.left for seed in episodes.task_seed.tolist()])

    def state_dict(self):
        return {"left": dict(self.left), "lengths": list(self.lengths)}

    def load_state_dict(self, state_dict):
        self.left = dict(state_dict["left"])
        self.lengths = list(state_dict["lengths"])
"""


def test_a_curriculum_of_another_package_is_resumed_and_decides_what_is_stored(
    own_module, components, differing
):
    own_module("mylab_tasks", OWN)
    own = ("+curriculum._target_=mylab_tasks.Again", "+curriculum.times=3")
    with pytest.raises(UsageError, match=r"curriculum\._target_: must .* trust="):
        yamame.train(*SMALL, *own)
    own = (*own, "trust=[mylab_tasks.]")
    whole = yamame.train(*SMALL, *own, "run.name=whole")
    with pytest.raises(KeyboardInterrupt):
        yamame.train(*SMALL, *own, "run.name=part", callbacks=[Watch(after_log=4)])
    part = yamame.train(*SMALL, *own, "run.name=part", "resume=true")
    expected = components(whole.path)
    assert differing(expected, components(part.path)) == []
    state = expected["collector"]["env"]["curriculum"]
    assert len(state["lengths"]) == whole.progress.episodes
    source = whole.components["replay"]
    assert 0 < len(source) + source.num_held_out < whole.progress.episodes


def test_an_own_curriculum_that_needs_or_returns_something_unknown_is_named(own_module):
    assert '"success"' in OWN
    own_module("mylab_tasks", OWN.replace('"success"', '"succes"'))
    own = ("+curriculum._target_=mylab_tasks.Again", "+curriculum.times=3", "trust=[mylab_tasks.]")
    with pytest.raises(UsageError, match=r"needs.*'success', 'td_errors'.*succes"):
        yamame.train(*SMALL, *own)
    own_module("mylab_masks", OWN.replace("[seed in self.left", "[float(seed in self.left)"))
    own = [text.replace("mylab_tasks", "mylab_masks") for text in own]
    with pytest.raises(OutsideError, match=r"Again: the result of observe\(\) must be"):
        yamame.train(*SMALL, *own, "run.name=masks")
    assert "observe()" in Path("runs/masks/error.txt").read_text()


def test_a_robust_curriculum_stores_replayed_episodes_alone():
    robust = yamame.train(*SMALL, *PLR, "curriculum.robust=true", "run.name=a")
    metrics = robust.curriculum.metrics()
    episodes = robust.progress.episodes
    replayed = round(metrics["replayed"] * episodes)
    assert 0 < replayed < episodes
    source = robust.components["replay"]
    assert len(source) + source.num_held_out == replayed


@pytest.mark.parametrize("score", ["learnability", "value_loss"])
def test_it_serves_ppo(score):
    small = (
        *("debug=tiny", "logger=none", "env=frozenlake", "relabel=none", "encoder=gru"),
        *("encoder.hidden_size=16", "schedule.steps_per_iteration=64", "budget.updates=6"),
        *(*PLR, f"curriculum.score={score}", "curriculum.robust=true", "run.name=a"),
    )
    run = yamame.train(*small, recipe="ppo")
    assert run.progress.updates == 6
    assert run.curriculum.metrics()["replayed"] > 0


@pytest.mark.parametrize(
    ("recipe", "arguments", "message"),
    [
        ("train", ["collector=ray"], r"collector: must step env .*RayCollector.*collector=sync"),
        ("train", ["agent=bc"], r"curriculum: must not need errors of critics.*learnability"),
        (
            "train",
            ["env=gym", "curriculum.score=learnability"],
            r"curriculum: must not need success.*value_loss",
        ),
        ("offline", ["data=npz", "data.path=a"], r"curriculum"),
        ("distill", [], r"curriculum"),
        ("train", ["curriculum.min_seeds=300"], r"curriculum\.min_seeds: must be at most"),
    ],
)
def test_what_cannot_follow_a_curriculum_is_one_line(refusal, recipe, arguments, message):
    with_plr = ["curriculum=plr", *arguments]
    assert re.search(message, refusal(recipe, "debug=tiny", *with_plr))
