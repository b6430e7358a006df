from collections import deque

import pytest
import torch
from yamame_envs.frozenlake import MetaFrozenLake

MOVES = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]


def run(env, choose):
    """Plays the next episode of every row: return, success, steps and returns of the attempts
    ``[N, k]``.
    """
    td = env.reset()
    n, rows = env.batch_size[0], torch.arange(env.batch_size[0])
    running, trial = torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.int64)
    paid = torch.zeros(n, env.num_trials)
    success, steps = torch.zeros(n, dtype=torch.bool), torch.zeros(n)
    while running.any():
        step, td = env.step_and_maybe_reset(td.set("action", choose(td)))
        after = step["next"]
        paid[rows, trial] += after["reward"][:, 0] * running
        success |= running & after["success"][:, 0]
        steps += running
        running &= ~after["done"][:, 0]
        trial += running & after["trial_start"][:, 0]
    assert (trial == env.num_trials - 1).all()
    return paid.sum(1), success, steps, paid


# Of the known means, the digits are known but not their standard errors: they are allowed those of
# a run of
# 1,000 episodes, and half a unit of their last digit.
@pytest.mark.parametrize(
    ("settings", "n", "known", "digit"),
    [
        ({}, 4000, 0.117, 0.001),
        ({"hard": True}, 4000, 0.055, 0.001),
        ({"recover": True}, 2000, -2.2, 0.1),
        ({"hard": True, "recover": True}, 1000, -20.0, 0.1),
        ({"size": 8}, 4000, 0.006, 0.001),
    ],
    ids=["easy", "hard", "recover", "hard and recover", "8x8"],
)
def test_random_play_earns_the_known_return(settings, n, known, digit):
    env = MetaFrozenLake(num_envs=n, seed=1, **settings)
    generator = torch.Generator().manual_seed(0)
    total = run(env, lambda td: torch.randint(5, (n,), generator=generator))[0]
    error = total.std() * (1 / n + 1 / 1000) ** 0.5
    assert abs(total.mean() - known) < digit / 2 + 3 * error


def way_home(holes):
    """Steps to the goal and the action of a shortest way from every cell, over neighbours without
    holes.
    """
    size = len(holes)
    steps, action = {(size - 1, size - 1): 0}, {(size - 1, size - 1): 0}
    waiting = deque(steps)
    while waiting:
        i, j = waiting.popleft()
        for a, (di, dj) in list(enumerate(MOVES))[1:]:
            place = (i - di, j - dj)
            if (
                min(place) >= 0
                and max(place) < size
                and place not in steps
                and not holes[place[0]][place[1]]
            ):
                steps[place], action[place] = steps[i, j] + 1, a
                waiting.append(place)
    return steps, action


def places_of(td, size):
    return [tuple(place) for place in (td["observation"][:, :2] * size).round().int().tolist()]


@pytest.mark.parametrize("recover", [False, True])
def test_knowing_the_lake_earns_every_attempt_in_the_fewest_steps(recover):
    n = 150
    env = MetaFrozenLake(num_envs=n, recover=recover)
    env.reset()
    ways = [way_home(lake.view(5, 5).tolist()) for lake in env.env_state.task["holes"]]
    env.set_seed(0)  # the same tasks again

    def knowing(td):  # a row that has ended plays anything in another lake
        return torch.tensor(
            [way[1].get(place, 0) for way, place in zip(ways, places_of(td, 5), strict=True)]
        )

    total, success, steps, _ = run(env, knowing)
    assert (total == 10).all()
    assert success.all()
    assert steps.tolist() == [10 * way[0][0, 0] for way in ways]


class Explorer:
    """Takes the shortest way over all cells that were not seen to be holes, from what is shown
    alone.
    """

    def __init__(self, n, *, remembers):
        self.remembers = remembers
        self.holes = [[[False] * 5 for _ in range(5)] for _ in range(n)]
        self.target = [None] * n

    def __call__(self, td):
        actions = []
        for row, place in enumerate(places_of(td, 5)):
            fell = td["trial_start"][row].item() and td["prev_reward"][row].item() == 0
            if fell and self.remembers and self.target[row]:
                i, j = self.target[row]
                self.holes[row][i][j] = True
            action = way_home(self.holes[row])[1].get(place, 0)
            self.target[row] = (place[0] + MOVES[action][0], place[1] + MOVES[action][1])
            actions.append(action)
        return torch.tensor(actions)


def test_remembering_holes_earns_most_attempts_and_forgetting_them_few():
    n = 100
    remembering, success, _, paid = run(MetaFrozenLake(num_envs=n), Explorer(n, remembers=True))
    forgetting = run(MetaFrozenLake(num_envs=n), Explorer(n, remembers=False))[0]
    assert remembering.mean() > forgetting.mean() + 3
    assert success.float().mean() > 0.9
    assert (paid.mean(0).diff() >= 0).all()
    assert set(forgetting.tolist()) == {0.0, 10.0}
