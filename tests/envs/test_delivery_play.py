"""Returns of whole episodes of Package Delivery, played through what is observed."""

import pytest
import torch
from yamame.goals import GOAL_COMPLETED, GOAL_PAD
from yamame_envs.delivery import PackageDelivery

FORWARD, LEFT, RIGHT, FIRST_BUTTON = range(4)


def finish(env, choose, *, steps):
    """Plays the first episode of every row; returns, lengths and successes ``[N]``."""
    td = env.reset()
    n = env.batch_size[0]
    total, length = torch.zeros(n), torch.zeros(n)
    running, won = torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)
    for _ in range(steps):
        step, td = env.step_and_maybe_reset(td.set("action", choose(td)))
        after = step["next"]
        total += running * after["reward"][:, 0]
        length += running
        won |= running & after["success"][:, 0]
        running &= ~after["done"][:, 0]
        if not running.any():
            break
    assert not running.any()
    return total, length, won


@pytest.mark.parametrize(
    ("settings", "steps", "published", "reference", "error"),
    [
        ({}, 180, 0.21, 0.1920, 0.0021),
        ({"length": 100, "max_packages": 6, "time_limit": 400}, 400, 0.11, 0.0994, 0.0020),
    ],
)
def test_random_play_earns_the_known_return(settings, steps, published, reference, error):
    """``reference`` and its standard ``error`` were measured with the rules in plain Python.

    The errors of the published returns are not known: they are allowed those of 1,000 episodes, and
    half a unit of their last digit.
    """
    n = 3000
    env = PackageDelivery(num_envs=n, seed=1, **settings)
    generator = torch.Generator().manual_seed(0)
    total, _, _ = finish(env, lambda td: torch.randint(8, (n,), generator=generator), steps=steps)
    own = total.std() / n**0.5
    assert abs(total.mean() - reference) < 3 * (own**2 + error**2) ** 0.5
    assert abs(total.mean() - published) < 0.005 + 3 * (own**2 + total.var() / 1000) ** 0.5


def active_goal(td):
    """The first goal that is not completed; 0 after the last."""
    goal = td["goal"][..., 0]
    open_ = (goal != GOAL_COMPLETED) & (goal != GOAL_PAD)
    first = open_.to(torch.int64).argmax(1, keepdim=True)
    return torch.where(open_.any(1), goal.gather(1, first)[:, 0], 0.0)


@pytest.mark.parametrize(
    ("settings", "known_return", "known_length"),
    [({}, 3.0, 25), ({"length": 100, "max_packages": 6, "time_limit": 400}, 4.0, 82)],
)
def test_who_knows_the_road_delivers_everything(settings, known_return, known_length):
    n = 2000
    env = PackageDelivery(num_envs=n, seed=2, **settings)

    def choose(td):
        task, position = env.env_state.task, td["observation"][:, 0]
        onward = task["onward"].gather(1, position.long()[:, None])[:, 0]
        return torch.where(position == active_goal(td), task["button"], onward)

    total, length, won = finish(env, choose, steps=400)
    assert won.all()
    assert abs(total.mean() - known_return) < 3 * total.std() / n**0.5
    assert abs(length.mean() - known_length) < 0.5 + 3 * length.std() / n**0.5


class Explorer:
    """Tries the branches of forks and the buttons at destinations in order, and remembers."""

    def __init__(self):
        self.branches, self.buttons = (
            {},
            [FIRST_BUTTON, FIRST_BUTTON + 1, FIRST_BUTTON + 2, FIRST_BUTTON + 3],
        )
        self.last = None

    def act(self, position, at_fork, destination):
        if self.last is not None and position == 0:
            self.learn(*self.last)
        if at_fork:
            action = self.branches.setdefault(position, LEFT)
        else:
            action = self.buttons[0] if position == destination else FORWARD
        self.last = (position, action)
        return action

    def learn(self, position, action):
        """The action led back to the start."""
        if action == LEFT:
            self.branches[position] = RIGHT
        elif action >= FIRST_BUTTON:
            self.buttons.remove(action)


@pytest.mark.parametrize(
    ("settings", "n", "published"),
    [
        ({}, 500, (3.0, 1.0, 59)),
        ({"length": 100, "max_packages": 6, "time_limit": 400}, 200, (3.4, 0.61, None)),
    ],
)
def test_who_tries_and_remembers_delivers_as_much_as_is_known(settings, n, published):
    env = PackageDelivery(num_envs=n, seed=4, **settings)
    explorers = [None] * n

    def choose(td):
        for row in td["is_init"][:, 0].nonzero()[:, 0].tolist():
            explorers[row] = Explorer()
        seen = zip(explorers, td["observation"].tolist(), active_goal(td).tolist(), strict=True)
        return torch.tensor(
            [e.act(int(place), bool(fork), goal) for e, (place, _, fork), goal in seen]
        )

    total, length, won = finish(env, choose, steps=400)
    for values, known in zip((total, won.float(), length), published, strict=True):
        if known is not None:
            # The published figures were estimated too: they are allowed the error of as many
            # episodes.
            assert (
                abs(values.mean() - known)
                < 0.5 * (known > 10) + 0.05 + 3 * (2 * values.var() / n) ** 0.5
            )
