"""A user's game in JAX, in a file of 40 lines, is trained, resumed, evaluated and acted in, without
a change of the repository.
"""

import json
import signal
import sys

import numpy as np
import pytest
import torch
import yamame
from yamame.runs.trained import load_trained

GAME = '''
import jax
import jax.numpy as jnp


class Safe:
    """Safe with a hidden code; guesses show whether it is higher or lower."""

    num_actions = 16

    def __init__(self, max_steps=6):
        self.max_steps = max_steps

    def sample_task(self, key):
        return {"code": jax.random.randint(key, (), 0, 16)}

    def observe(self, state):
        return {"hint": state["hint"].astype(jnp.float32), "guess": state["guess"]}

    def reset_env(self, key, params):
        state = {"hint": jnp.int32(0), "guess": jnp.int32(0), "key": key}
        return self.observe(state), state

    def step_env(self, key, state, action, params):
        hint = jnp.sign(params["code"] - action)
        noise = jax.random.uniform(key) / 100
        state = {"hint": hint, "guess": action, "key": state["key"]}
        won = hint == 0
        return self.observe(state), state, won + noise, won, {"success": won}
'''
SETTINGS = (
    "env=jax", "env.id=mylab:Safe", "env.tasks=own", "env.split=train",
    "++evaluation.env.split=test", "encoder=gru", "debug=tiny", "logger=none", "run.name=safe",
    "budget.updates=6", "evaluation.video_frames=1",
)  # fmt: skip


class Terminate(yamame.Callback):
    """Ends a run by a signal after an update, in the middle of episodes."""

    def on_log(self, run, metrics, step):
        if 2 <= run.progress.updates < 6:
            signal.raise_signal(signal.SIGTERM)


def weights(run) -> dict:
    return load_trained(run.path, checkpoint="last", trust=["mylab."]).weights


@pytest.fixture
def safe(own_module, monkeypatch, tmp_path):
    pytest.importorskip("jax")
    own_module("mylab", GAME)
    monkeypatch.chdir(tmp_path)


def test_a_users_game_is_resumed_bit_for_bit_evaluated_and_acted_in_without_jax(
    safe, play, monkeypatch, tmp_path
):
    whole = yamame.train(*SETTINGS, "run.root=whole")
    with pytest.raises(KeyboardInterrupt):
        yamame.train(*SETTINGS, callbacks=[Terminate()])
    part = yamame.train(*SETTINGS, "resume=true")
    assert part.progress.updates == whole.progress.updates
    first, second = weights(whole), weights(part)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert whole.summary["evaluated_on"] == "new tasks"

    status, out, err = play(
        "evaluate", tmp_path, "run=runs/safe", "num_episodes=4", "trust=[mylab.]"
    )
    assert status == 0, err
    assert "new tasks" in out

    # An agent that acts needs neither the game nor its library.
    for name in list(sys.modules):
        if name.partition(".")[0] in ("jax", "jaxlib", "mylab"):
            monkeypatch.setitem(sys.modules, name, None)
    agent = yamame.load("runs/safe", trust=["mylab."])
    seen = {"hint": np.zeros((1,), np.float32), "guess": np.zeros((1,), np.int32)}
    action = agent.act(seen)
    assert 0 <= int(np.asarray(action).item()) < 16
    assert json.loads((tmp_path / "runs/safe/summary.json").read_text())["status"] == "FINISHED"
