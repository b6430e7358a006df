"""What a policy does, as pictures."""

import copy

import numpy as np
import numpy.typing as npt
import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type


@torch.no_grad()
def film(
    policy: TensorDictModuleBase,
    env: EnvBase,
    *,
    num_episodes: int = 1,
    max_frames: int = 1000,
    greedy: bool = False,
    seed: int = 0,
) -> npt.NDArray[np.uint8]:
    """Plays the first row of an environment and draws every timestep.

    Args:
        policy: Writes the environment's action; played as a copy in evaluation mode.
        env: Environment with ``render()``, which gives ``[H, W, 3]`` uint8.
        num_episodes: Episodes to play, complete unless ``max_frames`` cuts the last one.
        max_frames: Timesteps to draw at most.
        greedy: Act by the mode of the policy instead of sampling.
        seed: Of the environment and of the policy's samples; the global generators are left as they were.

    Returns:
        ``[T, H, W, 3]`` uint8.

    Raises:
        NotImplementedError: If the environment has no picture.
    """
    player = copy.deepcopy(policy).eval()
    frames: list[npt.NDArray[np.uint8]] = []
    env.set_seed(seed)
    mode = ExplorationType.DETERMINISTIC if greedy else ExplorationType.RANDOM
    with torch.random.fork_rng(), set_exploration_type(mode):
        torch.manual_seed(seed)
        current = env.reset()
        while num_episodes > 0 and len(frames) < max_frames:
            frames.append(env.render())
            stepped, current = env.step_and_maybe_reset(player(current))
            num_episodes -= int(stepped["next", "done"].reshape(-1)[0])
    return np.stack(frames)
