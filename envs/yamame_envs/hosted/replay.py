"""Playing running episodes again, from their seeds and actions, to where they were."""

from collections.abc import Sequence

import numpy as np

from yamame_envs.hosted.rows import Fault, Outcome, Rows
from yamame_envs.hosted.spaces import Array
from yamame_envs.hosted.timestep import Timestep
from yamame_envs.hosted.workers import Pool

_DIFFERENT = Fault("its episode did not come out the same when it was played again")


def replay(
    player: Rows | Pool,
    rows: Sequence[int],
    seeds: Sequence[int],
    actions: Array,
    wanted: Timestep,
) -> dict[int, Fault]:
    """Plays the running episodes of some rows, none of which is over.

    Args:
        player: Plays them.
        rows: The rows, in increasing order.
        seeds: Their seeds.
        actions: ``[N, L, ...]``, the actions of all rows.
        wanted: What all rows must show in the end.

    Returns:
        Faults of the rows that did not come out the same.
    """
    lengths = wanted.column("step_index")
    failed: dict[int, Fault] = {}
    if rows:
        failed |= _check(rows, player.reset(rows, seeds), lengths == 0, wanted)
    for step in range(int(lengths[list(rows)].max(initial=0))):
        failed |= player.lost
        active = [row for row in rows if lengths[row] > step and row not in failed]
        if active:
            outcome = player.step(active, actions[active, step])
            failed |= _check(active, outcome, lengths == step + 1, wanted)
    failed |= player.lost
    player.lost.clear()
    return {row: fault for row, fault in failed.items() if row in set(rows)}


def _check(rows: Sequence[int], outcome: Outcome, last: Array, wanted: Timestep) -> dict[int, Fault]:
    failed = {rows[position]: fault for position, fault in outcome.faults.items()}
    ended = outcome.terminated | outcome.truncated
    leaves = [wanted.arrays[key] for key in wanted.keys]
    for position, row in enumerate(rows):
        same = not ended[position]
        if last[row] and same:
            same = outcome.reward[position] == wanted.column("prev_reward")[row] and all(
                np.array_equal(leaf[position], expected[row])
                for leaf, expected in zip(outcome.leaves, leaves, strict=True)
            )
        if not same:
            failed.setdefault(row, _DIFFERENT)
    return failed
