"""Replay of running episodes from their seeds and actions."""

from collections.abc import Sequence

import numpy as np

from yamame_envs.adapters.in_process import Failure, InProcessEnvs, Outcome
from yamame_envs.adapters.spaces import Array
from yamame_envs.adapters.timestep import Timestep
from yamame_envs.adapters.workers import Pool

_DIFFERENT = Failure("its episode did not come out the same when it was replayed")


def replay_episodes(
    player: InProcessEnvs | Pool,
    env_ids: Sequence[int],
    seeds: Sequence[int],
    actions: Array,
    expected: Timestep,
) -> dict[int, Failure]:
    """Replay the running episodes of some envs, none of which has ended.

    Args:
        player: Envs to step.
        env_ids: Env indices, in increasing order.
        seeds: Seed of each of these envs.
        actions: ``[N, L, ...]``, actions of all envs.
        expected: Timestep that all envs must reach.

    Returns:
        Failures of the envs that came out differently.
    """
    lengths = expected.column("step_index")
    failed: dict[int, Failure] = {}
    if env_ids:
        outcome = player.reset(env_ids, seeds)
        failed |= _compare(env_ids, outcome, lengths == 0, expected)

    for step in range(int(lengths[list(env_ids)].max(initial=0))):
        # A worker process may fail over another env: its other envs have lost their episodes.
        failed |= player.interrupted
        active = [env_id for env_id in env_ids if lengths[env_id] > step and env_id not in failed]
        if active:
            outcome = player.step(active, actions[active, step])
            failed |= _compare(active, outcome, lengths == step + 1, expected)

    failed |= player.interrupted
    player.interrupted.clear()
    replayed = set(env_ids)
    return {env_id: failure for env_id, failure in failed.items() if env_id in replayed}


def _compare(
    env_ids: Sequence[int], outcome: Outcome, is_last: Array, expected: Timestep
) -> dict[int, Failure]:
    """Compare a step of some envs with the expected timestep, where it is the last one."""
    failed = {env_ids[position]: failure for position, failure in outcome.failures.items()}
    has_ended = outcome.terminated | outcome.truncated
    for position, env_id in enumerate(env_ids):
        is_same = not has_ended[position]
        if is_last[env_id] and is_same:
            is_same = _shows_same(outcome, position, expected, env_id)
        if not is_same:
            failed.setdefault(env_id, _DIFFERENT)
    return failed


def _shows_same(outcome: Outcome, position: int, expected: Timestep, env_id: int) -> bool:
    if outcome.reward[position] != expected.column("prev_reward")[env_id]:
        return False
    for key, leaf in zip(expected.keys, outcome.leaves, strict=True):
        if not np.array_equal(leaf[position], expected.arrays[key][env_id]):
            return False
    return True
