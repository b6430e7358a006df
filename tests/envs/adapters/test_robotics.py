"""FetchReach of Gymnasium-Robotics plays, and a relabelled trajectory is what it would have
shown.
"""

import gymnasium
import numpy as np
import pytest
import torch
from yamame.goals import GOAL_COMPLETED
from yamame.replay import Relabel, pack
from yamame_envs import GymGoals
from yamame_envs.adapters.goals import SingleGoal

pytest.importorskip("gymnasium_robotics", reason="needs pip install 'yamame[robotics]'")

ID, LENGTH = "gymnasium_robotics:FetchReach-v4", 50


@pytest.fixture(scope="module")
def played():
    """Trajectories of random actions, and the radius of their goals."""
    env = GymGoals(id=ID, num_envs=4, seed=3)
    env.set_seed(3)
    torch.manual_seed(0)
    batch = pack(env.rollout(LENGTH, break_when_any_done=False))
    env.close()
    return batch, env.goal_radius


def test_a_way_straight_to_the_goal_pays_once_and_ends_with_success():
    env = GymGoals(id=ID, num_envs=3, seed=1)
    td = env.reset()
    for goal, total in (("goal", 1.0), ("achieved", 0.0)):  # who goes nowhere earns nothing
        td, paid = env.reset(), torch.zeros(3, 1)
        for _ in range(LENGTH):
            way = (td[goal] - td["achieved"])[:, 0] * 0.05
            action = torch.cat([(10.0 * way).clamp(-1.0, 1.0), torch.zeros(3, 1)], 1)
            step = env.step(td.set("action", action))["next"]
            new = (step["reward"] > 0) & ~td["done"]
            assert torch.equal(new, step["terminated"] & step["success"] & ~td["done"])
            assert (step["goal"][new.flatten()] == GOAL_COMPLETED).all()
            paid, td = paid + step["reward"], step.exclude("reward")
        assert paid.flatten().tolist() == [total] * 3
    env.close()


def test_a_relabelled_trajectory_is_what_the_environment_would_have_shown(played):
    batch, radius = played
    out = Relabel("all", radius=radius, generator=torch.Generator().manual_seed(0))(batch)
    changed = (out["goal"][:, 0] != batch["goal"][:, 0]).flatten(1).any(-1)
    assert changed.sum() >= 2
    env = SingleGoal(
        gymnasium.make("FetchReach-v4", max_episode_steps=-1), radius=None, owner="a test"
    )
    for row in changed.nonzero().flatten().tolist():
        env.reset(seed=0)
        env.unwrapped.goal = env._origin + env.radius * out["goal"][row, 0, 0].double().numpy()
        for t in range(int(out["mask"][row].sum()) - 1):
            shown, reward, terminated, _, info = env.step(out["action"][row, t].double().numpy())
            assert reward == out["next", "reward"][row, t].item()
            assert terminated == out["next", "terminated"][row, t].item()
            assert info["success"] == bool(reward)
            # Goals are stored in float32, in radii of 5 cm.
            assert np.allclose(shown["goal"], out["goal"][row, t + 1].numpy(), atol=1e-4)
            assert np.allclose(shown["achieved"], out["achieved"][row, t + 1].numpy(), atol=1e-4)
        assert out["next", "terminated"][row].any()
    env.close()
