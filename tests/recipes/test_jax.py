"""A user's game in JAX, in a file of 40 lines, is trained, resumed, evaluated and acted in, without
a change of the repository.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import yamame

GAME = '''
import jax
import jax.numpy as jnp


class Safe:
    """Safe with two dials; guesses show whether the hidden number is higher or lower."""

    num_actions = 16

    def __init__(self, max_steps=6):
        self.max_steps = max_steps

    def sample_task(self, key):
        return {"code": jax.random.randint(key, (2,), 0, 16)}

    def observe(self, state):
        return {"hint": state["hint"].astype(jnp.float32), "guess": state["guess"]}

    def reset_env(self, key, params):
        zero = jnp.int32(0)
        state = {"dial": zero, "hint": zero, "guess": zero, "key": key}
        return self.observe(state), state

    def step_env(self, key, state, action, params):
        hint = jnp.sign(params["code"][state["dial"]] - action)
        found = hint == 0
        dial = state["dial"] + found
        noise = jax.random.uniform(key) / 100
        state = {"dial": dial, "hint": hint, "guess": action, "key": state["key"]}
        opened = dial == 2
        return self.observe(state), state, found + noise, opened, {"success": opened}
'''
STOP = """
import os
import signal

import yamame


class Stop(yamame.Callback):
    def on_log(self, run, metrics, step):
        if "STOP" in os.environ and 2 <= run.progress.updates < 6:
            signal.raise_signal(signal.SIGTERM)
"""
"""Ends a run by a signal after an update, in the middle of episodes."""

SETTINGS = (
    "env=jax", "env.id=mylab:Safe", "env.tasks=own", "env.split=train",
    "++evaluation.env.split=test", "encoder=gru", "debug=tiny", "logger=none", "run.name=safe",
    "budget.updates=6", "evaluation.video_frames=1",
    "+callbacks.stop._target_=mystop.Stop", "trust=[mylab.,mystop.]",
)  # fmt: skip
COMMAND = "from yamame.cli.console import main; main()"
"""The program ``yamame``, which finds modules in its working directory."""


def status_of(run: Path) -> str:
    return json.loads((run / "summary.json").read_text())["status"]


def test_commands_train_resume_and_evaluate_a_game_beside_them_which_nothing_else_knows(
    run_forked, tmp_path, components, differing, monkeypatch
):
    pytest.importorskip("jax")
    whole, home = tmp_path / "whole", tmp_path / "home"
    for folder in (whole, home):
        folder.mkdir()
        (folder / "mylab.py").write_text(GAME)
        (folder / "mystop.py").write_text(STOP)

    def command(*arguments: str, cwd: Path, **env: str) -> tuple[int, str]:
        ended = run_forked(COMMAND, *arguments, cwd=cwd, **env)
        return ended.returncode, ended.stdout + ended.stderr

    # Each is a process of its own: nothing that one has imported or compiled helps the next.
    code, text = command("train", *SETTINGS, cwd=whole)
    assert code == 0, text
    code, text = command("train", *SETTINGS, cwd=home, STOP="1")
    assert code not in (0, 1, 2), text
    run = home / "runs/safe"
    assert status_of(run) != "FINISHED"
    code, text = command("train", *SETTINGS, "resume=true", cwd=home)
    assert code == 0, text
    assert status_of(run) == "FINISHED"
    assert differing(components(whole / "runs/safe"), components(run)) == []

    code, text = command(
        "evaluate", "run=runs/safe", "num_episodes=4", "trust=[mylab.,mystop.]", cwd=home
    )
    assert code == 0, text
    assert "new tasks" in text

    # An agent that acts needs neither the game nor its library.
    for name in ("jax", "jaxlib", "mylab", *sys.modules):
        if name.partition(".")[0] in ("jax", "jaxlib", "mylab"):
            monkeypatch.setitem(sys.modules, name, None)
    agent = yamame.load(run, trust=["mylab.", "mystop."])
    seen = {"hint": np.zeros((1,), np.float32), "guess": np.zeros((1,), np.int32)}
    action = agent.act(seen)
    assert 0 <= int(np.asarray(action).item()) < 16
