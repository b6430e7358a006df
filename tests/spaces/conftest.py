"""Fixtures of the tests of spaces: agents with new weights for small environments."""

import json
import sys
from pathlib import Path

import gymnasium
import pytest
from hydra import compose, initialize_config_dir
from yamame import conf_dir
from yamame.cli.nodes import plain
from yamame.deploy import DeployedAgent, Interface, SavedAgent
from yamame.deploy.build import build_agent

sys.path.insert(0, str(Path(__file__).parent / "support"))

from recorded_episodes import Echo

gymnasium.register("SpacesEcho-v0", entry_point=Echo)


@pytest.fixture(autouse=True)
def minari_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


@pytest.fixture(scope="module")
def config():
    """The configuration of a small agent."""
    widths = [
        f"{part}.hidden_size=16"
        for part in ("encoder", "timestep_encoder", "agent.actor", "agent.critic")
    ]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return plain(
            compose("train", overrides=["encoder=gru", "encoder.out_features=16", *widths])
        )


@pytest.fixture
def deployed(config):
    """Makes an agent with new weights from the file of an environment, and the list of entries that
    it has read.
    """

    def make(env, change=lambda data: data):
        interface = Interface.decode(json.loads(json.dumps(change(Interface.of(env).encode()))))
        weights = build_agent(config, interface).state_dict()
        agent = DeployedAgent(SavedAgent("a test", config, interface, weights), greedy=True)
        seen = []
        agent.step.register_forward_hook(
            lambda module, given, answer: seen.append(given[0].clone())
        )
        return agent, seen

    return make
