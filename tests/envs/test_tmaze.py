import math

import numpy as np
import pytest
import torch
from yamame_envs import PassiveTMaze
from yamame_envs.rendering import CELL, Palette

RIGHT, UP, LEFT, DOWN = range(4)


class Walker:
    """The rules for one corridor, step by step."""

    def __init__(self, length, side, penalty):
        self.length, self.side, self.penalty = length, side, penalty
        self.x, self.y, self.t = 0, 0, 0

    def observation(self):
        if self.x == self.length:
            return [1.0, float(self.y)]
        return [0.0, float(self.side) if self.t == 0 else 0.0]

    def step(self, action):
        x = self.x + {RIGHT: 1, LEFT: -1}.get(action, 0)
        y = self.y + {UP: 1, DOWN: -1}.get(action, 0)
        corridor = {(i, 0) for i in range(self.length + 1)}
        if (x, y) in corridor | {(self.length, 1), (self.length, -1)}:
            self.x, self.y = x, y
        self.t += 1
        if self.t <= self.length:
            return (0.0 if action == RIGHT else self.penalty), False
        return float(self.y == self.side), True


@pytest.mark.parametrize(
    ("length", "penalty"), [(1, None), (4, None), (4, -0.3), ([1, 4, 2], None)]
)
def test_every_step_follows_the_rules(length, penalty):
    n = 40
    env = PassiveTMaze(num_envs=n, length=length, penalty=penalty, seed=5)
    td = env.reset()
    longest = length if isinstance(length, int) else max(length)
    expected_penalty = -1 / longest if penalty is None else penalty
    generator = torch.Generator().manual_seed(0)

    def walker_of(row):
        task = env.env_state.task
        own = task["junction"][row] if "junction" in task else length
        return Walker(int(own), int(task["side"][row]), expected_penalty)

    running = [walker_of(row) for row in range(n)]
    played = {walker.length for walker in running}
    won = turned = 0
    for _ in range(12 * (longest + 1)):
        assert td["observation"].tolist() == [w.observation() for w in running]
        assert td["time"].flatten().tolist() == pytest.approx(
            [w.t / (w.length + 1) for w in running]
        )
        # Mostly to the right, so that the junction is reached.
        action = torch.multinomial(
            torch.tensor([0.7, 0.1, 0.1, 0.1]).expand(n, 4), 1, generator=generator
        )[:, 0]
        step, td = env.step_and_maybe_reset(td.set("action", action))
        for row, walker in enumerate(running):
            reward, done = walker.step(int(action[row]))
            after = step["next"][row]
            assert after["reward"].item() == pytest.approx(reward)
            assert after["terminated"].item() == done
            assert after["success"].item() == (done and reward == 1)
            assert after["observation"].tolist() == walker.observation()
            won += int(done and reward == 1)
            turned += int(walker.y != 0)
            if after["done"].item():
                running[row] = walker_of(row)
    assert played == ({length} if isinstance(length, int) else set(length))
    assert won > 10
    assert turned > won


def play(env, choose):
    td = env.reset()
    total = torch.zeros(env.batch_size[0], 1)
    sign = td["observation"][:, 1].clone()
    for t in range(int(env.horizon)):
        step, td = env.step_and_maybe_reset(td.set("action", choose(t, sign)))
        total += step["next", "reward"]
    assert step["next", "done"].all()
    return total


def test_remembering_the_sign_earns_one_and_forgetting_it_a_half():
    length, n = 20, 400
    env = PassiveTMaze(num_envs=n, length=length)
    right = torch.full((n,), RIGHT)
    remembering = play(
        env, lambda t, sign: right if t < length else torch.where(sign > 0, UP, DOWN)
    )
    assert (remembering == 1).all()
    forgetting = play(env, lambda t, sign: right if t < length else torch.full((n,), UP))
    assert abs(forgetting.mean() - 0.5) < 4 * 0.5 / n**0.5


def test_random_play_earns_the_known_return():
    n = 400
    env = PassiveTMaze(num_envs=n, length=100)
    generator = torch.Generator().manual_seed(0)
    total = play(env, lambda t, sign: torch.randint(4, (n,), generator=generator))
    assert abs(total.mean() + 0.75) < 4 * 0.043 / n**0.5
    assert abs(total.std() - 0.043) < 0.01


@pytest.mark.parametrize("length", [3, 3.0, np.uint8(3), [3], (3,), np.array([3])])
def test_lengths_are_whole_numbers_of_any_kind(length):
    assert PassiveTMaze(length=length).time_limit == 4


def test_both_sides_are_equally_likely():
    env = PassiveTMaze(num_envs=2000)
    assert abs(env.reset()["observation"][:, 1].mean()) < 5 / 2000**0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0}, "PassiveTMaze: length must be at least 1, got 0"),
        ({"length": [3, 0]}, r"PassiveTMaze: length must be at least 1, got \[3, 0\]"),
        ({"length": []}, r"PassiveTMaze: length must be at least 1, got \[\]"),
        ({"length": 2.5}, r"length must be a whole number or a list of them, got 2\.5"),
        ({"length": [True]}, r"length must be a whole number or a list of them, got \[True\]"),
        ({"length": "3"}, "length must be a whole number or a list of them, got '3'"),
        ({"penalty": -math.inf}, "PassiveTMaze: penalty must be finite, got -inf"),
        ({"penalty": 0.5}, "PassiveTMaze: penalty must be at most 0, got 0.5"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PassiveTMaze(**settings)


def agent_cell(picture):
    rows, columns = (picture == Palette.AGENT).all(-1).nonzero()
    return int(rows.mean() // CELL), int(columns.mean() // CELL)


def test_the_picture_shows_the_agent_moving_to_the_junction():
    env = PassiveTMaze(num_envs=1, length=5)
    td = env.reset()
    assert env.render().shape == (5 * CELL, 8 * CELL, 3)
    assert agent_cell(env.render()) == (2, 1)
    for action in (RIGHT, RIGHT, RIGHT, RIGHT, RIGHT):
        td = env.step_and_maybe_reset(td.set("action", torch.tensor([action])))[1]
    assert agent_cell(env.render()) == (2, 6)


def test_a_long_corridor_is_shown_in_part_and_in_constant_size():
    env = PassiveTMaze(num_envs=1, length=200)
    td = env.reset()
    shapes = set()
    for _ in range(150):
        td = env.step_and_maybe_reset(td.set("action", torch.tensor([RIGHT])))[1]
        shapes.add(env.render().shape)
    assert len(shapes) == 1
    assert agent_cell(env.render())[0] == 2
