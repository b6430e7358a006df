"""Playing running episodes again, from their seeds and actions, to where they were."""

from collections.abc import Sequence

import numpy as np

from yamame_envs.adapters.in_process import Failure, InProcessEnvs, Outcome
from yamame_envs.adapters.spaces import Array
from yamame_envs.adapters.timestep import Timestep
from yamame_envs.adapters.workers import Pool

_DIFFERENT = Failure("its episode did not come out the same when it was played again")


def play_again(
    player: InProcessEnvs | Pool,
    env_ids: Sequence[int],
    seeds: Sequence[int],
    actions: Array,
    wanted: Timestep,
) -> dict[int, Failure]:
    """Plays the running episodes of some envs, none of which is over.

    Args:
        player: Plays them.
        env_ids: The envs, in increasing order.
        seeds: Their seeds.
        actions: ``[N, L, ...]``, the actions of all envs.
        wanted: What all envs must show in the end.

    Returns:
        Faults of the envs that did not come out the same.
    """
    lengths = wanted.column("step_index")
    failed: dict[int, Failure] = {}
    if env_ids:
        failed |= _check(env_ids, player.reset(env_ids, seeds), lengths == 0, wanted)
    for step in range(int(lengths[list(env_ids)].max(initial=0))):
        failed |= player.interrupted
        active = [env_id for env_id in env_ids if lengths[env_id] > step and env_id not in failed]
        if active:
            outcome = player.step(active, actions[active, step])
            failed |= _check(active, outcome, lengths == step + 1, wanted)
    failed |= player.interrupted
    player.interrupted.clear()
    return {env_id: failure for env_id, failure in failed.items() if env_id in set(env_ids)}


def _check(
    env_ids: Sequence[int], outcome: Outcome, last: Array, wanted: Timestep
) -> dict[int, Failure]:
    failed = {env_ids[position]: failure for position, failure in outcome.failures.items()}
    ended = outcome.terminated | outcome.truncated
    leaves = [wanted.arrays[key] for key in wanted.keys]
    for position, env_id in enumerate(env_ids):
        same = not ended[position]
        if last[env_id] and same:
            same = outcome.reward[position] == wanted.column("prev_reward")[env_id] and all(
                np.array_equal(leaf[position], expected[env_id])
                for leaf, expected in zip(outcome.leaves, leaves, strict=True)
            )
        if not same:
            failed.setdefault(env_id, _DIFFERENT)
    return failed
