"""One episode, step by step: to look at it while it is played, and to have all of it afterwards."""

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type, step_mdp

from yamame.checks import require, require_at_least
from yamame.evaluation.held_out import Policy, act, fresh_copy, seeded

Watch = Callable[[TensorDictBase], None]


def play_episode(
    policy: Policy,
    env: EnvBase,
    *,
    max_steps: int | None = None,
    greedy: bool = False,
    seed: int = 0,
    watch: Watch | None = None,
) -> TensorDictBase:
    """Plays one episode: the first that an evaluation of one env with the same seed plays.

    Args:
        policy, max_steps, greedy, seed: As for `evaluate`.
        env: Environment of one env; seeded, and left where the episode ended.
        watch: Called when the episode has begun, with its first timestep, and after every step with that step,
            which has ``next``; ``env.render()`` then draws where the step led. Random numbers that it draws change
            the samples.

    Returns:
        ``[1, T]``: timesteps with actions and what followed, as TorchRL's rollouts.

    Raises:
        ValueError: If ``env`` has several envs or ``max_steps`` is not positive.
    """
    require("play_episode", "env", tuple(env.batch_size), env.batch_size.numel() == 1, "have one env")
    require_at_least("play_episode", 1, max_steps=1 if max_steps is None else max_steps)
    acting = fresh_copy(policy)
    mode = ExplorationType.DETERMINISTIC if greedy else ExplorationType.RANDOM
    steps: list[TensorDictBase] = []
    with seeded(seed), torch.no_grad(), set_exploration_type(mode):
        env.set_seed(seed)
        timestep = env.reset()
        if watch is not None:
            watch(timestep)
        while max_steps is None or len(steps) < max_steps:
            step = env.step(act(acting, timestep, env.action_key))
            steps.append(step.clone())
            if watch is not None:
                watch(step)
            if bool(step["next", "done"].all()):
                break
            timestep = step_mdp(step)
    return torch.stack(steps, -1).reshape(1, len(steps))
