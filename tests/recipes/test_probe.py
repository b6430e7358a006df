"""A probe of a tiny corridor: what is done stays, what its agents see ends where it says, mistakes
begin nothing.
"""

import json
import re

import pytest
import torch
import yamame
from tensordict import TensorDict
from torchrl.modules import set_recurrent_mode
from yamame.runs import api
from yamame.runs.build import build_agent, build_env

CORRIDOR = ("env=tmaze", "env.length=3")
SETTINGS = (
    "probe.settings=[evaluation.num_episodes=4,evaluation.video_frames=1,encoder.d_model=16,"
    "encoder.num_heads=2]"
)
TINY = (*CORRIDOR, "debug=tiny", "logger=none", SETTINGS)
FOLDER = "runs/probe-debug=tiny-env.length=3-env=tmaze"


def test_agents_are_trained_once_and_judged_and_what_sees_a_whole_episode_counts_once(
    play, tmp_path
):
    status, out, errors = play("probe", tmp_path, *TINY, "probe.windows=[4,9]", "probe.seeds=[0]")
    assert status == 0, errors
    folder = tmp_path / FOLDER
    found = json.loads((folder / "probe.json").read_text())
    assert [one["window"] for one in found["reached"]] == [1, 4]
    assert f"\n{found['verdict']}\n" in out
    assert found["command"] == [*CORRIDOR, "debug=tiny", "logger=none"]
    assert [path.split("-window-")[1] for [path] in found["runs"]] == ["1-seed-0", "4-seed-0"]
    files = sorted(folder.glob("*/checkpoints/*"))
    assert len(files) >= 2
    times = [file.stat().st_mtime_ns for file in files]
    assert play("probe", tmp_path, *TINY, "probe.windows=[9]", "probe.seeds=[0,1]")[0] == 0
    assert [file.stat().st_mtime_ns for file in files] == times
    again = json.loads((folder / "probe.json").read_text())
    for several, [before], window in zip(again["runs"], found["runs"], (1, 4), strict=True):
        assert several[0] == before
        assert [path.split("-window-")[1] for path in several] == [
            f"{window}-seed-0",
            f"{window}-seed-1",
        ]


def test_each_agent_prints_one_line_at_its_end_and_the_verdict_stands_alone(play, tmp_path):
    status, out, errors = play(
        "probe", tmp_path, *TINY, "probe.windows=[4]", "probe.seeds=[0]", "run.name=mine"
    )
    assert status == 0, errors
    assert "next:" not in out
    lines = out.splitlines()
    for name in ("mine-window-1-seed-0", "mine-window-4-seed-0"):
        (line,) = [line for line in lines if line.endswith(f"{name}/summary.json")]
        assert re.match(rf"{name}: .*success \d", line)
        assert lines.count(name) == 0  # no table of its own


def test_one_seed_gives_no_verdict_and_the_default_has_several(play, tmp_path):
    status, out, errors = play("probe", tmp_path, *TINY, "probe.windows=[4]", "probe.seeds=[0]")
    assert status == 0, errors
    found = json.loads((tmp_path / FOLDER / "probe.json").read_text())
    assert found["outcome"] == "not settled"
    assert not {"enough", "short"}.intersection(out.split())
    assert len(yamame.compose(recipe="probe").probe.seeds) > 1


def test_a_probe_that_is_asked_to_end_goes_on_where_it_was(play, tmp_path, monkeypatch):
    train, begun = api.train, []

    def interrupted(*overrides, **options):
        begun.append(overrides)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return train(*overrides, **options)

    monkeypatch.setattr(api, "train", interrupted)
    call = (*TINY, "probe.windows=[1,null]", "probe.seeds=[0]", "run.name=mine")
    assert play("probe", tmp_path, *call)[0] == 75
    first = tmp_path / "runs/mine/mine-window-1-seed-0/summary.json"
    written = first.stat().st_mtime_ns
    assert not (tmp_path / "runs/mine/probe.json").exists()
    assert play("probe", tmp_path, *call)[0] == 0
    assert first.stat().st_mtime_ns == written
    assert (tmp_path / "runs/mine/probe.json").exists()
    assert begun[1] == begun[3]


@pytest.mark.parametrize("window", [1, 5])
def test_agents_are_exactly_blind_beyond_their_window(window):
    """With the settings of the recipe, acting and learning: a timestep reaches the decisions of its
    window alone.
    """
    own = yamame.compose(recipe="probe").probe.settings
    layer = ("encoder.num_layers=1", f"encoder.window={window}")
    cfg = yamame.compose("env=tmaze", "env.length=9", *own, *layer)
    env = build_env(cfg, num_envs=3, seed=0)
    torch.manual_seed(0)
    agent = build_agent(cfg, env).eval()
    seen = env.rollout(10, break_when_any_done=False)
    changed = seen.clone()
    for key in ("observation", "prev_reward", "prev_action"):
        changed[key][:, 2] += torch.randn_like(changed[key][:, 2])
    for run in (acted, learned):
        differs = (run(agent, seen) != run(agent, changed)).flatten(2).any(-1)
        assert differs[:, 2 : 2 + window].all()
        assert not differs[:, :2].any()
        assert not differs[:, 2 + window :].any()


def acted(agent, seen: TensorDict) -> torch.Tensor:
    policy, memory = (
        agent.policy(),
        agent.trajectory_encoder.init_memory(len(seen), capacity=seen.shape[1]),
    )
    decided = []
    for timestep in seen.unbind(1):
        with torch.no_grad():
            params, memory = policy.decide(timestep.select(*policy.in_keys), memory)
        decided.append(params)
    return torch.stack(decided, 1)


def learned(agent, seen: TensorDict) -> torch.Tensor:
    with torch.no_grad(), set_recurrent_mode(True):
        return agent.encoder(seen.clone())["context"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["encoder=gru"], "encoder: must be left to the probe; see probe.windows and probe.seeds"),
        (["encoder.num_layers=2"], "encoder.num_layers: must be left to the probe"),
        (["probe.seeds=[]"], "probe.seeds: must be a list of at least one"),
        (["probe.confidence=2"], "probe.confidence: must be"),
        (["probe.windows=[]"], "probe.windows: must be a list of at least one"),
        (["probe.windows=[1]"], "probe.windows: must name a window of more than 1 timestep"),
        (["probe.windows=[1,1]"], "got [1, 1]"),
        (["probe.margin=2"], "probe.margin: must be"),
        (["probe.margin=1"], "probe.margin: must be"),
        (["probe.margin=-0.5"], "probe.margin: must be"),
        (["evaluation.num_episodes=1"], "evaluation.num_episodes: must be at least 2, got 1"),
        (
            ["probe.windows=[0]"],
            "each an integer of at least 1 or null, got [0]",
        ),
        (["probe.settings=[encoder.d_modl=3]"], "encoder.d_modl: no such key"),
        (["env.length=0"], "length: must be at least 1, got 0"),
    ],
)
def test_a_mistake_begins_nothing(play, tmp_path, arguments, message):
    status, _, errors = play("probe", tmp_path, *CORRIDOR, *arguments)
    assert status == 2
    assert message in errors
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
