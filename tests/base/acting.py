"""A trained agent is loaded and acts with the base dependencies alone; its environment is for
playing with it only.

``nox -s deploy`` runs it on an installed wheel.
"""

import sys
import tempfile
from pathlib import Path

import torch
import yamame
from yamame.deploy import DeployedAgent, Interface, SavedAgent
from yamame.deploy.build import build_agent
from yamame.deploy.folder import ZOOS
from yamame.files.checkpoint import Checkpointer
from yamame_envs import MazeRunner

FOREIGN = ("hydra", "omegaconf", "mlflow", "psutil", "rich", "scipy", "matplotlib")


def node(target: str, **arguments) -> dict:
    """A node of a configuration that makes a factory."""
    return {"_target_": f"yamame.{target}", "_partial_": True, **arguments}


CONFIG = {
    "timestep_encoder": node("timestep.make_timestep_encoder", hidden_size=16, out_size=16),
    "goal_encoder": node("timestep.MLPGoalEncoder"),
    "encoder": node(
        "trajectory.TransformerEncoder", d_model=16, num_heads=2, num_layers=1, context_length=64
    ),
    "agent": {
        "actor": node("heads.ActorHead", hidden_size=16),
        "critic": node("heads.make_critic", hidden_size=16),
        "returns": node("heads.PopArt"),
        "loss": {"_target_": "yamame.losses.MultiGammaREDQLoss"},
        "gammas": [0.9, 0.99],
        "multi_gamma": True,
        "probability_floor": 0.01,
        "box_distribution": "tanh_normal",
    },
}


def played(agent: DeployedAgent, num_steps: int = 30) -> list[int]:
    """The actions of one stream."""
    env = MazeRunner(num_envs=1, size=5, num_goals=1, time_limit=12)
    agent.reset()
    timestep, given, actions = env.reset(), {}, []
    for _ in range(num_steps):
        shown = {key: timestep[key][0].numpy() for key in agent.observation_spec.keys()}
        actions.append(int(agent.act(shown, **given)))
        step, timestep = env.step_and_maybe_reset(
            timestep.set("action", torch.tensor(actions[-1:]))
        )
        given = {"reward": step["next", "reward"].item(), "done": step["next", "done"].item()}
    return actions


def main(folder: Path) -> None:
    """Saves an agent in both forms, and loads it from them."""
    torch.manual_seed(0)
    interface = Interface.of(MazeRunner(num_envs=2, size=5, num_goals=1, time_limit=12))
    weights = build_agent(CONFIG, interface).state_dict()
    first = DeployedAgent(SavedAgent("here", CONFIG, interface, weights))
    first.save_pretrained(folder / "agent")
    checkpoints = Checkpointer(folder / "run" / "checkpoints", config=CONFIG)
    checkpoints.save({"agent": weights, "interface": interface.encode()}, step=1, metric=0.0)
    expected = played(first)
    for source in ("agent", "run"):
        assert played(yamame.load(folder / source)) == expected
    assert any(place.is_dir() for place in ZOOS)
    first.export(folder / "agent.pt2")
    loaded = [name for name in FOREIGN if name in sys.modules]
    assert not loaded, loaded
    print(f"{len(expected)} actions from {yamame.__file__}, without {', '.join(FOREIGN)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
