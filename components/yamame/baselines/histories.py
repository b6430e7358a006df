"""Learning histories: all observations, actions and rewards of a learner, in order."""

from collections.abc import Callable

from tensordict import TensorDict, TensorDictBase
from torchrl.envs import EnvBase

from yamame.replay.packing import pack


def learning_histories(
    env: EnvBase, learner: Callable[[TensorDictBase], TensorDictBase], *, max_steps: int
) -> TensorDict:
    """Record how one learner per env learns its task, over the next episode of every env.

    An environment with many trials of one task in an episode gives one learning history per env
    (algorithm distillation, arXiv 2210.14215).

    Args:
        env: Environment with one batch dimension ``[N]``.
        learner: Writes actions, and learns between calls.
        max_steps: Largest number of steps; longer episodes are cut.

    Returns:
        Trajectories ``[N, L]``, packed as by `yamame.replay.pack`.
    """
    rollout = env.rollout(max_steps, learner, break_when_any_done=False, break_when_all_done=True)
    return pack(rollout, split=False)
