"""Recordings of AMAGO 3.3 (``tools/record_amago.py``), and what an imported agent computes."""

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
import yamame
from gymnasium import spaces
from tensordict import TensorDict
from yamame.checks import UsageError
from yamame.cli.nodes import plain
from yamame.deploy import Interface, import_amago
from yamame.deploy.build import build_agent, load_weights
from yamame.runs.build import build_env

FOLDER = Path(__file__).parent / "amago"
SPACES = {
    "transformer_discrete": spaces.Discrete(3),
    "transformer_box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "transformer_beta": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "gru_discrete": spaces.Discrete(4),
    "gru_bits": spaces.MultiBinary(3),
}
LENGTH = 48
TOLERANCE = 1e-5


class Noise(gymnasium.Env):
    """The environment of the recordings, with observations of its own."""

    observation_space = spaces.Dict(
        b=spaces.Box(-100.0, 100.0, (3,), np.float32),
        a=spaces.Box(-100.0, 100.0, (2, 1), np.float32),
    )

    def __init__(self, case):
        self.action_space = SPACES[case]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action):
        self._step += 1
        return self._observe(), 1.0, False, self._step >= 60, {}

    def _observe(self):
        draw = self.np_random.normal
        return {"b": draw(size=3).astype("f4"), "a": draw(size=(2, 1)).astype("f4")}


def register():
    """Register an environment per recording; once per process."""
    for case in SPACES:
        name = env_id(case)
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=Noise, kwargs={"case": case}, max_episode_steps=60)


def env_id(case):
    return f"Amago{case.title().replace('_', '')}-v0"


@cache
def environment(case):
    """Configuration and interface of the environment of a recording."""
    register()
    cfg = yamame.compose("env=gym", f"env.id={env_id(case)}", "env.time_limit=null")
    env = build_env(cfg, num_envs=1, seed=0)
    found = SimpleNamespace(config=plain(cfg), interface=Interface.of(env))
    env.close()
    return found


def imported(case, source=None, **options):
    """The content of an imported agent's file."""
    place = environment(case)
    options = {"max_seq_len": LENGTH, **options}
    return import_amago(
        source or FOLDER / case, interface=place.interface, config=place.config, **options
    )


def agent_of(saved):
    agent = build_agent(saved.config, saved.interface)
    load_weights(agent, saved.weights, source="a test", fit="its configuration")
    return agent


def recorded(case):
    with np.load(FOLDER / case / "steps.npz") as file:
        columns = {name: torch.from_numpy(file[name]) for name in file.files}
    for name in ("a", "b", "rl2s", "actions"):
        columns[name] = columns[name].float()
    columns["times"] = columns["times"].long()
    return columns


def timesteps(agent, columns, place):
    """Timesteps of all streams at some steps, or of whole streams."""
    times = columns["times"][place]
    batch = times.shape
    values = {
        ("observation", "a"): columns["a"][place],
        ("observation", "b"): columns["b"][place],
        "prev_reward": columns["rl2s"][place][..., :1],
        "prev_action": columns["rl2s"][place][..., 1:],
        "step_index": times.unsqueeze(-1),
        "is_init": (times == 0).unsqueeze(-1),
        "trial_start": (times == 0).unsqueeze(-1),
    }
    entries = TensorDict({}, batch)
    for key, value in values.items():
        entries.set(key, value)
    return entries


@torch.no_grad()
def decide(agent, context, actions):
    """Distributions and values, as in the recordings."""
    distribution = agent.action_space.distribution(agent.actor(context))
    if agent.action_space.kind != "box":
        policy = distribution.probs
    elif hasattr(distribution, "_beta"):
        beta = distribution._beta
        policy = torch.cat([beta.concentration1, beta.concentration0], -1)
    else:
        policy = torch.cat([distribution._loc, distribution._log_std.exp()], -1)
    if agent.action_space.enumerable:
        chosen = actions[..., None, :, None, None]
        raw = (agent.critic(context) * chosen).sum(-3)
    else:
        every = actions.unsqueeze(-2).expand(*actions.shape[:-1], len(agent.gammas), -1)
        raw = agent.critic(context, every)
    return {
        "context": context,
        "policy": policy,
        "normalized": agent.returns.to_normalized(raw),
        "returns": agent.returns.to_returns(raw),
    }


@torch.no_grad()
def stepwise(agent, columns):
    """All outputs step by step, and the memories after each 50th step."""
    memory = agent.trajectory_encoder.init_memory(2, capacity=len(columns["times"]))
    rows = {}
    memories = []
    for step in range(len(columns["times"])):
        entries = agent.timestep_encoder(timesteps(agent, columns, step))
        x, is_init, step_index = agent.trajectory_encoder.read_step(entries)
        context, memory = agent.trajectory_encoder.step(x, memory, is_init, step_index)
        for name, value in decide(agent, context, columns["actions"][step]).items():
            rows.setdefault(name, []).append(value)
        if (step + 1) % 50 == 0:
            memories.append(memory.clone())
    return {name: torch.stack(values) for name, values in rows.items()}, memories


@torch.no_grad()
def whole(agent, columns):
    """All outputs of the first stream as one sequence."""
    place = (slice(None), slice(1))
    entries = timesteps(agent, columns, place).transpose(0, 1).contiguous()
    features = agent.timestep_encoder(entries)["features"]
    is_init = entries["is_init"].squeeze(-1)
    step_index = entries["step_index"].squeeze(-1)
    context = agent.trajectory_encoder.parallel(features, step_index, is_init)
    return {
        name: value[0]
        for name, value in decide(agent, context, columns["actions"][place].transpose(0, 1)).items()
    }


def refused(case, *parts, source=None, **options):
    """Assert that an import is refused with a message of one line that has all parts."""
    with pytest.raises(UsageError) as caught:
        imported(case, source, **options)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message
