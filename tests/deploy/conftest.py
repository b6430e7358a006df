"""Fixtures of the tests of deployment: small agents with new weights, and their environments."""

from types import SimpleNamespace

import pytest
import torch
from hydra import compose, initialize_config_dir
from yamame import conf_dir
from yamame.cli.nodes import plain
from yamame.deploy import DeployedAgent, Interface, SavedAgent
from yamame.runs.build import build_agent, build_env

MAZE = ("env.size=7", "env.split_by=walls_and_goals", "env.num_goals=2", "env.time_limit=23")
WIDTHS = {
    "transformer": ("encoder.d_model=16", "encoder.num_heads=2", "encoder.num_layers=2"),
    "gru": ("encoder.hidden_size=16", "encoder.out_features=16"),
    "gru_rounded": ("encoder.hidden_size=16", "encoder.out_features=16"),
    "window": ("encoder.d_model=16", "encoder.window=4"),
    "memoryless": ("encoder.d_model=16",),
    "linear_recurrent": ("encoder.d_model=16",),
    "lru": ("encoder.d_model=16",),
    "deltanet": ("encoder.d_model=16",),
    "rsm": ("encoder.d_model=16", "encoder.num_heads=2", "encoder.segment_length=7"),
    "memo": ("encoder.d_model=16", "encoder.num_heads=2", "encoder.segment_length=7"),
}
HEADS = tuple(
    f"{part}.hidden_size=16" for part in ("timestep_encoder", "agent.actor", "agent.critic")
)


def make_subject(
    encoder: str = "transformer", *overrides: str, num_envs: int = 4
) -> SimpleNamespace:
    """Return an environment, an agent for it, and the content of the agent's file."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        given = MAZE if not any(text.startswith("env=") for text in overrides) else ()
        cfg = compose(
            "train", overrides=[f"encoder={encoder}", *WIDTHS[encoder], *HEADS, *given, *overrides]
        )
    env = build_env(cfg, num_envs=num_envs, seed=0)
    torch.manual_seed(0)
    agent = build_agent(cfg, env).eval()
    with torch.no_grad():
        # The outputs of new networks hardly depend on observations, so weights are enlarged.
        for module in agent.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.mul_(2.0)
                if module.bias is not None:
                    module.bias.zero_()
    saved = SavedAgent("a test", plain(cfg), Interface.of(env), agent.state_dict(), {"step": 7})
    return SimpleNamespace(cfg=cfg, env=env, agent=agent, saved=saved)


@pytest.fixture(scope="session")
def subject():
    """Return the function `make_subject`."""
    return make_subject


@pytest.fixture(scope="session")
def maze():
    """Return an agent with a Transformer for a maze; tests must not change it."""
    return make_subject()


@pytest.fixture
def agent(maze):
    """Return a new greedy agent for the maze."""
    return DeployedAgent(maze.saved, greedy=True)


@pytest.fixture(scope="session")
def observations():
    """Return a function that draws random observations of one stream, or of ``num``."""

    def draw(agent, num=None, seed=0):
        torch.manual_seed(seed)
        spec = agent.observation_spec
        shape = [] if num is None else [num]
        values = spec.expand(*shape, *spec.shape).rand() if shape else spec.rand()
        return {key: value.numpy() for key, value in values.items()}

    return draw
