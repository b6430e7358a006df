"""One episode, step by step: to look at it while it is played, and to have all of it afterwards."""

import copy
from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type, step_mdp

from yamame.evaluation.roster import Policy, act, make_fresh, seeded

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
    """Plays one episode: the first that an evaluation with the same seed plays in its first row.

    Args:
        policy: Writes the environment's action; played as a copy, as `evaluate` does.
        env: Environment of one row; seeded, and left where the episode ended.
        max_steps: Steps after which the episode is cut; None for no limit.
        greedy: Act by the mode of the policy instead of sampling.
        seed: Of the environment and of the policy's samples; the global generators are left as they were.
        watch: Called when the episode has begun, with its first timestep, and after every step with that step,
            which has ``next``; ``env.render()`` then draws where the step led. Random numbers that it draws change
            the samples.

    Returns:
        ``[1, T]``: timesteps with actions and what followed, as TorchRL's rollouts.

    Raises:
        ValueError: If ``env`` has several rows or ``max_steps`` is not positive.
    """
    if env.batch_size.numel() != 1:
        raise ValueError(f"play_episode: env must have one row, got {tuple(env.batch_size)}")
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"play_episode: max_steps must be positive, got {max_steps}")
    player = copy.deepcopy(policy)
    make_fresh(player)
    mode = ExplorationType.DETERMINISTIC if greedy else ExplorationType.RANDOM
    steps: list[TensorDictBase] = []
    with seeded(seed), torch.no_grad(), set_exploration_type(mode):
        env.set_seed(seed)
        current = env.reset()
        if watch is not None:
            watch(current)
        while max_steps is None or len(steps) < max_steps:
            stepped = env.step(act(player, current, env.action_key))
            steps.append(stepped.clone())
            if watch is not None:
                watch(stepped)
            if bool(stepped["next", "done"].all()):
                break
            current = step_mdp(stepped)
    return torch.stack(steps, -1).reshape(1, len(steps))
