"""Learning histories: everything a learner saw, did and was paid, from its first step to its
last.
"""

from collections.abc import Callable

from tensordict import TensorDict, TensorDictBase
from torchrl.envs import EnvBase

from yamame.replay.packing import pack


def learning_histories(
    env: EnvBase, learner: Callable[[TensorDictBase], TensorDictBase], *, max_steps: int
) -> TensorDict:
    """Lets one learner per env learn its task, from the next episode of every env to its end.

    An environment with many trials of one task in an episode gives one history of learning per env
    (algorithm distillation, arXiv 2210.14215).

    Args:
        env: Environment with one batch dimension ``[N]``.
        learner: Writes actions, and learns between its calls.
        max_steps: Steps after which a history is cut, if the episode has not ended.

    Returns:
        Trajectories ``[N, L]``, packed as by `yamame.replay.pack`.
    """
    rollout = env.rollout(max_steps, learner, break_when_any_done=False, break_when_all_done=True)
    return pack(rollout, split=False)
