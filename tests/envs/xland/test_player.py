"""A player that knows the goal and sees the whole room reaches nearly all goals without rules."""

from collections import deque

import torch
from torchrl.envs.utils import RandomPolicy
from yamame.evaluation import evaluate
from yamame_envs import XLand
from yamame_envs.xland.rules import CLOCKWISE, COUNTERCLOCKWISE, FORWARD, PICK_UP, PUT_DOWN

SIZE = 6
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
# Directions by kind of goal: of a tile from the agent, and of the second tile from the first.
BESIDE = {3: (0, 1, 2, 3), 11: (0,), 12: (1,), 13: (2,), 14: (3,)}
PAIRED = {4: (0, 1, 2, 3), 7: (0,), 8: (1,), 9: (2,), 10: (3,)}


def moved(cell, direction):
    return cell + MOVES[direction][0] * SIZE + MOVES[direction][1]


def path(start, walkable, is_end):
    """Return the shortest actions from a pose to an end, and that pose; None if there are none."""
    queue, seen = deque([(start, ())]), {start}
    while queue:
        (cell, direction), actions = queue.popleft()
        if is_end(cell, direction, actions[-1] if actions else None):
            return list(actions), (cell, direction)
        ahead = moved(cell, direction)
        options = [
            (CLOCKWISE, (cell, (direction + 1) % 4)),
            (COUNTERCLOCKWISE, (cell, (direction - 1) % 4)),
        ]
        if ahead in walkable:
            options.append((FORWARD, (ahead, direction)))
        for action, pose in options:
            # A goal beside the agent is tested after a move alone.
            if pose not in seen or (action == FORWARD and is_end(*pose, action)):
                seen.add(pose)
                queue.append((pose, (*actions, action)))
    return None


def plan(goal, grid, pose):
    """Return actions that reach a goal, or an empty list if none are found."""
    kind, first, second = goal[0], tuple(goal[1:3]), tuple(goal[3:5])
    cells = {cell: tuple(tile) for cell, tile in enumerate(grid)}
    walkable = {cell for cell, (tile, _) in cells.items() if tile in (1, 6)}
    start = (pose // 4, pose % 4)
    if kind == 1:
        found = path(start, walkable, lambda c, d, a: cells[moved(c, d)] == first)
        return [*found[0], PICK_UP] if found else []
    if kind in BESIDE:

        def is_beside(cell, direction, action):
            near = (cells[moved(cell, side)] for side in BESIDE[kind])
            return action == FORWARD and first in near

        found = path(start, walkable, is_beside)
        if found or kind == 3:
            return found[0] if found else []
        # A tile that cannot be stood beside is carried to where it can: this is tested as well.
        found = path(start, walkable, lambda c, d, a: cells[moved(c, d)] == first)
        if first[0] == 6 or not found:
            return []
        left = {**cells, moved(*found[1]): (1, 7)}
        free = walkable | {moved(*found[1])}
        end = path(
            found[1], free, lambda c, d, a: d in BESIDE[kind] and left[moved(c, d)] == (1, 7)
        )
        return [*found[0], PICK_UP, *end[0], PUT_DOWN] if end else []

    for taken, other, turn in ((second, first, 0), (first, second, 2)):
        found = path(start, walkable, lambda c, d, a, t=taken: cells[moved(c, d)] == t)
        if taken[0] == 6 or not found:
            continue
        place = moved(*found[1])
        left = {**cells, place: (1, 7)}

        def fits(cell, direction, action, left=left, other=other, turn=turn):
            ahead = moved(cell, direction)
            sides = [(side + turn) % 4 for side in PAIRED[kind]]
            return left[ahead] == (1, 7) and any(
                left[moved(ahead, (side + 2) % 4)] == other for side in sides
            )

        end = path(found[1], walkable | {place}, fits)
        if end:
            return [*found[0], PICK_UP, *end[0], PUT_DOWN]
    return []


def test_goals_can_be_reached_by_a_player_that_knows_them():
    num = 128
    env = XLand(num_envs=num, size=SIZE, num_trials=1, trial_limit=25, reward="success", seed=1)
    env.reset()
    state = env.env_state.state
    pairs = state["grid"][:, :-1].contiguous().view(torch.uint8).view(num, -1, 2).tolist()
    goals, poses = env.env_state.task["goal"].tolist(), state["pose"].tolist()
    plans = [plan(*row) for row in zip(goals, pairs, poses, strict=True)]
    length = max(map(len, plans))
    reached = torch.zeros(num, dtype=torch.bool)
    over = torch.zeros(num, dtype=torch.bool)
    for index in range(length):
        action = [row[index] if index < len(row) else CLOCKWISE for row in plans]
        step = env.step(env.present().set("action", torch.tensor(action)))["next"]
        reached |= step["success"].squeeze(1) & ~over
        over |= step["done"].squeeze(1)
    informed = float(reached.float().mean())
    other = XLand(num_envs=num, size=SIZE, num_trials=1, trial_limit=25, reward="success", seed=1)
    by_chance = evaluate(RandomPolicy(other.action_spec), other, num_episodes=num, seed=1)
    chance = float(by_chance.returns.mean())
    # Every plan works. There is none where a goal tile lies at a wall, or the way is blocked.
    assert torch.equal(reached, torch.tensor([len(row) > 0 for row in plans]))
    assert informed > 0.85
    assert chance < 0.25
