"""A whole training program in one page, with the base dependencies alone: no recipe, no
configuration.

``nox -s base`` runs it where nothing else is installed. It collects, stores, relabels and learns,
in turn.
"""

import tempfile
from functools import partial
from pathlib import Path

import torch
from tensordict import TensorDict
from yamame.agent import InContextAgent
from yamame.collectors import SyncCollector
from yamame.heads import ActorHead, PopArt, make_critic
from yamame.losses import MultiGammaREDQLoss
from yamame.replay import Relabel, TrajectoryReplayBuffer
from yamame.timestep import MLPGoalEncoder, MLPTimestepEncoder
from yamame.training import Learner, seed_everything
from yamame.trajectory import TransformerEncoder
from yamame_envs import MazeRunner

GAMMAS = (0.9, 0.99)


def main(folder: Path) -> None:
    """Trains for a few updates."""
    seed_everything(0)
    env = MazeRunner(num_envs=4, size=5, num_goals=1, time_limit=12)
    agent = InContextAgent(
        env.observation_spec,
        env.action_spec,
        timestep_encoder=partial(MLPTimestepEncoder, hidden_size=16, out_size=16),
        goal_encoder=MLPGoalEncoder,
        trajectory_encoder=partial(TransformerEncoder, d_model=16, num_heads=2, num_layers=1),
        actor=partial(ActorHead, hidden_size=16),
        critic=partial(make_critic, hidden_size=16),
        returns=PopArt,
        gammas=GAMMAS,
    )
    parts = agent.encoder, agent.actor, agent.critic, agent.returns
    loss = MultiGammaREDQLoss(*parts, action_space=agent.action_space, gammas=GAMMAS)
    optimizer = torch.optim.AdamW(agent.parameters(), lr=1e-3)
    learner = Learner(loss, optimizer, max_grad_norm=1.0)
    replay = TrajectoryReplayBuffer(
        path=folder / "replay", capacity=2_000, batch_size=4, transform=Relabel("some")
    )
    policy = agent.policy()
    collector = SyncCollector(env, policy, replay)
    before = [parameter.clone() for parameter in agent.parameters()]
    for _ in range(3):
        episodes = collector.collect(100)
        metrics = learner.update(replay.sample())
        collector.update_policy_weights_(TensorDict.from_module(policy).data)
        assert episodes.num_steps >= 100
        assert torch.isfinite(metrics["loss"])
    changed = [
        not torch.equal(old, new) for old, new in zip(before, agent.parameters(), strict=True)
    ]
    print(f"{sum(changed)} of {len(changed)} parameters moved, {len(replay)} trajectories")
    assert all(changed)
    collector.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
