"""What tests of policies share."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from yamame.agent import InContextAgent
from yamame.heads import ActorHead, PopArt, make_critic
from yamame.timestep import MLPGoalEncoder, MLPTimestepEncoder
from yamame_envs import MazeRunner


@pytest.fixture(scope="session")
def small_agent() -> Callable[..., InContextAgent]:
    """Makes an agent for a maze, of a trajectory encoder, with three discounts; always with the
    same weights.
    """

    def make(env: MazeRunner, trajectory_encoder: Callable) -> InContextAgent:
        torch.manual_seed(0)
        return InContextAgent(
            env.observation_spec,
            env.full_action_spec["action"],
            timestep_encoder=partial(MLPTimestepEncoder, hidden_size=16, out_size=8),
            goal_encoder=MLPGoalEncoder,
            trajectory_encoder=trajectory_encoder,
            actor=partial(ActorHead, hidden_size=16),
            critic=partial(make_critic, hidden_size=16),
            returns=PopArt,
            gammas=(0.9, 0.95, 0.99),
        )

    return make
