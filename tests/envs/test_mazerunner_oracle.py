"""Who knows the maze reaches every goal, in as many steps as the shortest ways have."""

from collections import deque

import pytest
import torch
from yamame_envs import MazeRunner

MOVES = [(0, -1), (-1, 0), (0, 1), (1, 0)]
ROWS = 256


def way(walls, start, goal):
    """Actions of a shortest way between two cells."""
    came, queue = {start: None}, deque([start])
    while goal not in came:
        i, j = queue.popleft()
        for action, (di, dj) in enumerate(MOVES):
            cell = (i + di, j + dj)
            if not walls[cell[0]][cell[1]] and cell not in came:
                came[cell] = ((i, j), action)
                queue.append(cell)
    actions = []
    while came[goal] is not None:
        goal, action = came[goal]
        actions.append(action)
    return actions[::-1]


def plan(env, row, seen):
    """All actions of an episode: the start and the goals as the agent sees them, the walls from the
    task.
    """
    size = env._size
    walls = env.env_state.task["walls"][row].view(size, size).tolist()
    place = tuple((seen["observation"][row, :2] * size).round().int().tolist())
    actions = []
    for goal in seen["goal"][row].int().tolist():
        actions += way(walls, place, tuple(goal))
        place = tuple(goal)
    return actions


@pytest.mark.parametrize(
    ("size", "limit", "known", "digit"), [(11, 250, 24, 1.0), (15, 400, 36, 1.0)]
)
def test_who_knows_the_maze_reaches_all_goals_in_the_fewest_steps(size, limit, known, digit):
    env = MazeRunner(num_envs=ROWS, size=size, num_goals=3, time_limit=limit, seed=3)
    td = env.reset()
    plans = [plan(env, row, td) for row in range(ROWS)]
    lengths = torch.tensor([float(len(actions)) for actions in plans])
    returns, taken = torch.zeros(ROWS), torch.zeros(ROWS)
    alive = torch.ones(ROWS, dtype=torch.bool)
    for t in range(int(lengths.max())):
        td.set("action", torch.tensor([actions[t] if t < len(actions) else 4 for actions in plans]))
        stepped, td = env.step_and_maybe_reset(td)
        returns += stepped["next", "reward"].squeeze(-1) * alive
        taken += alive
        alive &= ~stepped["next", "success"].squeeze(-1)
    assert (returns == 3).all()
    assert torch.equal(
        taken, lengths
    )  # one step fewer would not do: rows end exactly at the end of their way
    error = float(lengths.std()) / ROWS**0.5
    assert (
        abs(float(lengths.mean()) - known) < 3 * error + digit / 2
    )  # the known mean has no decimals
