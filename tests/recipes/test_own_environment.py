"""The Gymnasium environment of the how-to: its commands run as they stand, in an empty folder."""

import json
import re
import shlex
import sys
from functools import partial
from pathlib import Path

import gymnasium
import pytest
from yamame_envs import Gym
from yamame_envs.testing import check_env

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "own_environment.md").read_text()
SHORT = [
    "debug=tiny",
    "logger=none",
    "encoder=gru",
    "encoder.hidden_size=8",
    "evaluation.num_episodes=4",
]
"""Fewer updates, and a smaller agent."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with the file of the page, and a record of trusted runs of its own."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("YAMAME_TRUST_RECORD", str(tmp_path / "trusted.jsonl"))
    sys.modules.pop("mylab", None)
    ((title, text),) = re.findall(r'```python title="(.*?)"\n(.*?)```', PAGE, re.DOTALL)
    (tmp_path / title).write_text(text)
    yield tmp_path
    sys.modules.pop("mylab", None)
    gymnasium.registry.pop("PushCart-v0", None)


def test_the_commands_of_the_page_run(play, folder):
    (block,) = re.findall(r"## 2. Train in it\n\n```sh\n(.*?)```", PAGE, re.DOTALL)
    ran = []
    for line in block.splitlines():
        _, recipe, *arguments = shlex.split(line)
        more = SHORT if recipe == "train" else []
        status, _, err = play(recipe, folder, *more, *arguments)
        assert status == 0, (line, err)
        ran.append(recipe)
    assert ran == ["train", "train", "evaluate", "play"]
    summary = json.loads((folder / "runs" / "cart" / "summary.json").read_text())
    assert summary["status"] == "FINISHED"
    assert "success" in summary


def test_the_environment_of_the_page_keeps_the_laws_and_is_reproducible(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    made = partial(Gym, id="mylab:PushCart-v0", tasks="own")
    check_env(made, num_steps=24)
    env = made(num_envs=2)
    assert env.observation_spec["observation", "camera"].shape == (2, 24, 24, 3)
    env.close()


def test_a_resumed_run_names_modules_that_have_changed(play, folder):
    run = ["env=gym", "env.id=mylab:PushCart-v0", *SHORT, "run.name=cart", "resume=auto"]
    for updates, is_changed in ((2, False), (4, False), (6, True)):
        if is_changed:
            with (folder / "mylab.py").open("a") as file:
                file.write("\n# another version\n")
        status, _, err = play("train", folder, *run, f"budget.updates={updates}")
        assert status == 0, err
        assert ("cart: changed since the last session: mylab; " in err) == is_changed


@pytest.mark.parametrize("recipe", ["evaluate", "play"])
def test_what_plays_a_run_names_modules_that_have_changed(play, folder, recipe):
    run = ["env=gym", "env.id=mylab:PushCart-v0", *SHORT, "run.name=cart", "budget.updates=2"]
    assert play("train", folder, *run)[0] == 0
    for is_changed in (False, True):
        if is_changed:
            with (folder / "mylab.py").open("a") as file:
                file.write("\n# another version\n")
        arguments = ["num_episodes=2"] if recipe == "evaluate" else []
        status, _, err = play(recipe, folder, "run=runs/cart", *arguments)
        assert status == 0, err
        assert ("runs/cart: changed since training: mylab; " in err) == is_changed
