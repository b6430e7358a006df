"""The page on the import of AMAGO's agents, with a run as AMAGO leaves it."""

import json
import re
import shlex
import shutil
from pathlib import Path

import gymnasium
import pytest
import torch
import yamame
from safetensors.torch import load_file
from yamame.deploy.service import Service

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "deploy" / "amago" / "gru_discrete"
ENVIRONMENT = """
import gymnasium
import numpy as np
from gymnasium import spaces


class Noise(gymnasium.Env):
    observation_space = spaces.Dict(
        b=spaces.Box(-100.0, 100.0, (3,), np.float32),
        a=spaces.Box(-100.0, 100.0, (2, 1), np.float32),
    )
    action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action):
        return self._observe(), float(action == 2), False, False, {"success": False}

    def render(self):
        return np.zeros((16, 16, 3), np.uint8)

    def _observe(self):
        draw = self.np_random.normal
        return {"b": draw(size=3).astype("f4"), "a": draw(size=(2, 1)).astype("f4")}


gymnasium.register("Noise-v0", entry_point=Noise, max_episode_steps=60)
"""
SMALL = ["logger=none", "debug=tiny", "encoder.hidden_size=16", "evaluation.num_episodes=2"]


@pytest.fixture
def run(tmp_path, own_module, monkeypatch):
    """The folder of a run, in the directory of the test."""
    own_module("my_envs", ENVIRONMENT)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    gymnasium.registry.pop("Noise-v0", None)


def leave_run(place):
    """Write files as AMAGO does."""
    weights = load_file(RECORDED / "model.safetensors")
    checkpoints = place / "demo" / "ckpts"
    for file in ("latest/policy.pt", "policy_weights/policy_epoch_2.pt"):
        (checkpoints / file).parent.mkdir(parents=True)
        torch.save(weights, checkpoints / file)
    shutil.copy(RECORDED / "config.txt", checkpoints)
    for number in range(3):
        target = place / "data" / "buffer" / "fifo" / f"noise_{number}.npz"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(RECORDED / "trajectory.npz", target)


def test_the_page_runs_as_it_stands(run, play):
    leave_run(run)
    page = (ROOT / "docs" / "howto" / "import_amago.md").read_text()
    names, played = {}, []
    for kind, text in re.findall(r"```(sh|py)\n(.*?)```", page, re.DOTALL):
        if kind == "py":
            exec(compile(text, "import_amago.md", "exec"), names)
            continue
        for line in text.splitlines():
            _, script, *arguments = shlex.split(line, comments=True)
            recipe = Path(script).stem
            small = SMALL if recipe == "offline" else []
            status, _, err = play(recipe, run, *arguments, *small)
            assert status == 0, (line, err)
            played.append(recipe)
    assert played == ["import_amago", "import_amago", "evaluate", "play", "export", "offline"]
    assert names["agent"].gammas == (0.9, 0.99, 0.999)
    demo, typed = (
        load_file(run / f"agents/{name}/model.safetensors") for name in ("demo", "typed")
    )
    assert demo.keys() == typed.keys()
    assert all(torch.equal(demo[name], typed[name]) for name in demo)
    summary = json.loads((run / "runs" / "cloned" / "summary.json").read_text())
    assert summary["updates"] == 3


MISTAKES = [
    (["amago.weights=nowhere.pt"], "nowhere.pt"),
    (["amago.weights=demo/ckpts"], "model.safetensors"),
    (["amago.gin.Actor.activation=tanh"], "amago.gin.Actor.activation"),
    (["amago.gin.Actor.n_layer=2"], "amago.gin.Actor.n_layer"),
    (["amago.max_seq_len=0"], "amago.max_seq_len"),
    (["amago.config=nowhere.txt"], "amago.config"),
    (["env.id=CartPole-v1"], "env: must have actions"),
    (["env=mazerunner", "~env.id"], "env: must have"),
]


def test_a_mistake_is_one_line_and_nothing_is_written(run, play):
    leave_run(run)
    before = sorted(run.rglob("*"))
    given = {
        "amago.weights": "demo/ckpts/latest/policy.pt",
        "amago.path": "agents/demo",
        "env": "gym",
        "env.id": "my_envs:Noise-v0",
        "trust": "[my_envs.]",
    }
    for mistake, part in MISTAKES:
        settings = dict(given)
        for text in mistake:
            key, _, value = text.partition("=")
            if value:
                settings[key] = value
            else:
                settings.pop(key.lstrip("~"))
        arguments = [f"{key}={value}" for key, value in settings.items()]
        status, out, err = play("import_amago", run, *arguments)
        assert (status, out) == (2, ""), (mistake, err)
        assert part in err, (mistake, err)
        assert len(err.splitlines()) == 1, err
        assert sorted(run.rglob("*")) == before


def test_an_imported_agent_is_served(run, play):
    leave_run(run)
    arguments = ["amago.path=agents/demo", "env=gym", "env.id=my_envs:Noise-v0"]
    weights = "amago.weights=demo/ckpts/latest/policy.pt"
    status, out, _ = play("import_amago", run, weights, *arguments, "trust=[my_envs.]")
    lines = out.splitlines()
    assert (status, lines[-1]) == (0, "agents/demo")
    assert any(line.endswith("evaluate run=agents/demo 'trust=[my_envs.]'") for line in lines), out
    service = Service(yamame.load("agents/demo", greedy=True, max_sessions=2))
    assert service.answer("/reset", b'{"session": 1}')[0] == 200
    observation = {"a": [[0.5], [-0.5]], "b": [0.1, 0.2, 0.3]}
    request = json.dumps({"session": 1, "observation": observation}).encode()
    status, answer = service.answer("/act", request)
    assert status == 200
    assert answer["action"] in range(4)


def test_an_agent_is_overwritten_only_on_request(run, play):
    leave_run(run)
    weights = "amago.weights=demo/ckpts/latest/policy.pt"
    arguments = [weights, "amago.path=agents/demo", "env=gym", "env.id=my_envs:Noise-v0"]
    (run / "agents" / "demo").mkdir(parents=True)
    assert play("import_amago", run, *arguments)[0] == 0

    file = run / "agents" / "demo" / "README.md"
    file.write_text("mine")
    status, out, err = play("import_amago", run, *arguments)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert "amago.path: agents/demo exists" in err
    assert "amago.overwrite=true" in err
    assert file.read_text() == "mine"
    assert play("import_amago", run, *arguments, "amago.overwrite=true")[0] == 0
    assert file.read_text() != "mine"
