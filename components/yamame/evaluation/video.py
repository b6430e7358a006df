"""What a policy does, as pictures."""

import numpy as np
import numpy.typing as npt
import torch
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from yamame.evaluation.held_out import Policy, act, fresh_copy, seeded


@torch.no_grad()
def render_video(
    policy: Policy,
    env: EnvBase,
    *,
    num_episodes: int = 1,
    max_frames: int = 1000,
    greedy: bool = False,
    seed: int = 0,
) -> npt.NDArray[np.uint8]:
    """Plays the first env of an environment and draws every timestep.

    Args:
        policy, greedy, seed: As for `evaluate`.
        env: Environment with ``render()``, which gives ``[H, W, 3]`` uint8.
        num_episodes: Episodes to play, complete unless ``max_frames`` cuts the last one.
        max_frames: Timesteps to draw at most.

    Returns:
        ``[T, H, W, 3]`` uint8.

    Raises:
        NotImplementedError: If the environment has no picture.
    """
    acting = fresh_copy(policy)
    frames: list[npt.NDArray[np.uint8]] = []
    mode = ExplorationType.DETERMINISTIC if greedy else ExplorationType.RANDOM
    with seeded(seed), set_exploration_type(mode):
        env.set_seed(seed)
        timestep = env.reset()
        while num_episodes > 0 and len(frames) < max_frames:
            frames.append(env.render())
            step, timestep = env.step_and_maybe_reset(act(acting, timestep, env.action_key))
            num_episodes -= int(step["next", "done"].reshape(-1)[0])
    return np.stack(frames)
