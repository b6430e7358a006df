import pytest
import torch
from torchrl.envs.utils import check_env_specs
from yamame_envs.rendering import CELL, Palette
from yamame_envs.tmaze import ActiveTMaze

RIGHT, UP, LEFT, DOWN = range(4)


class Walker:
    """The rules for one corridor, step by step."""

    def __init__(self, length, side, penalty):
        self.junction, self.side, self.penalty = length + 1, side, penalty
        self.x, self.y, self.t, self.sign_seen = 1, 0, 0, False
        self.sign = 0
        self.cells = {(i, 0) for i in range(length + 2)} | {(length + 1, 1), (length + 1, -1)}

    def observation(self):
        if self.x == self.junction:
            return [1.0, float(self.y)]
        return [0.0, float(self.sign)]

    def step(self, action):
        x = self.x + {RIGHT: 1, LEFT: -1}.get(action, 0)
        y = self.y + {UP: 1, DOWN: -1}.get(action, 0)
        if (x, y) in self.cells:
            self.x, self.y = x, y
        self.sign = 0
        if self.x == 0 and not self.sign_seen:
            self.sign, self.sign_seen = self.side, True
        self.t += 1
        if self.t == self.junction + 2:
            return float(self.y == self.side), True
        penalised = self.t > 1 and action != RIGHT
        return (self.penalty if penalised else 0.0), False


@pytest.mark.parametrize(("length", "penalty"), [(1, None), (4, None), (4, -0.3)])
def test_every_step_follows_the_rules(length, penalty):
    n = 60
    env = ActiveTMaze(num_envs=n, length=length, penalty=penalty, seed=5)
    td = env.reset()
    expected_penalty = -1 / length if penalty is None else penalty
    generator = torch.Generator().manual_seed(0)

    def walkers():
        return [
            Walker(length, side, expected_penalty) for side in env.env_state.task["side"].tolist()
        ]

    running = walkers()
    won = turned = late = stayed = 0
    chances = torch.tensor([0.6, 0.1, 0.2, 0.1]).expand(n, 4)
    for _ in range(12 * (length + 3)):
        assert td["observation"].tolist() == [w.observation() for w in running]
        action = torch.multinomial(chances, 1, generator=generator)[:, 0]
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
            late += int(walker.sign != 0 and walker.t > 1)
            stayed += int(walker.x == 0 and walker.sign_seen and walker.sign == 0)
        if step["next", "done"].any():
            assert step["next", "done"].all()
            running = walkers()
    assert won > 10
    assert turned > won
    assert late > 10, "the sign must be seen later than at once too"
    assert stayed > 10, "the sign must be gone at a second look"


def play(env, choose):
    """Plays one episode; ``choose`` is given the step and the sign as far as it was seen."""
    td = env.reset()
    n = env.batch_size[0]
    total, sign, won = torch.zeros(n, 1), torch.zeros(n), torch.zeros(n, 1, dtype=torch.bool)
    for t in range(int(env.horizon)):
        step, td = env.step_and_maybe_reset(td.set("action", choose(t, sign)))
        seen = step["next", "observation"]
        sign = torch.where((seen[:, 0] == 0) & (seen[:, 1] != 0), seen[:, 1], sign)
        total += step["next", "reward"]
        won |= step["next", "success"]
    assert step["next", "done"].all()
    return total, won


@pytest.mark.parametrize("length", [1, 2, 30])
def test_fetching_the_sign_and_remembering_it_earns_one(length):
    n = 200
    env = ActiveTMaze(num_envs=n, length=length)

    def choose(t, sign):
        if t == length + 2:
            return torch.where(sign > 0, UP, DOWN)
        return torch.full((n,), LEFT if t == 0 else RIGHT)

    total, won = play(env, choose)
    assert (total == 1).all()
    assert won.all()


def test_not_fetching_the_sign_earns_a_half_and_shows_nothing():
    n, length = 400, 20
    env = ActiveTMaze(num_envs=n, length=length)
    seen = []

    def choose(t, sign):
        seen.append(sign)
        return torch.full((n,), UP if t == length + 2 else RIGHT)

    total, _ = play(env, choose)
    assert abs(total.mean() - 0.5) < 4 * 0.5 / n**0.5
    assert not torch.stack(seen).any()


def test_fetching_the_sign_later_is_paid_for_and_leaves_no_time_to_turn():
    n, length = 50, 10
    env = ActiveTMaze(num_envs=n, length=length)

    def choose(t, sign):
        # The first step is wasted, for free; from there on as if it were the first.
        if t == length + 3:
            return torch.where(sign > 0, UP, DOWN)
        return torch.full((n,), {0: UP, 1: LEFT}.get(t, RIGHT))

    total, won = play(env, choose)
    assert not won.any()
    torch.testing.assert_close(total, torch.full_like(total, -1 / length))


@pytest.mark.parametrize("length", [10, 100])
def test_random_play_earns_what_its_penalties_cost(length):
    """Three of four actions are penalised in ``length + 1`` steps; the junction is hardly ever
    reached.
    """
    n = 2000
    env = ActiveTMaze(num_envs=n, length=length, seed=1)
    generator = torch.Generator().manual_seed(0)
    total, won = play(env, lambda t, sign: torch.randint(4, (n,), generator=generator))
    penalties = total - won.float()
    assert abs(penalties.mean() + 0.75 * (length + 1) / length) < 3 * penalties.std() / n**0.5
    assert won.float().mean() < 0.01


def test_both_sides_are_equally_likely_and_hidden_at_first():
    env = ActiveTMaze(num_envs=2000)
    td = env.reset()
    assert not td["observation"].any()
    side = env.step(td.set("action", torch.full((2000,), LEFT)))["next", "observation"][:, 1]
    assert (side.abs() == 1).all()
    assert abs(side.mean()) < 5 / 2000**0.5


def test_specs_describe_what_is_returned():
    check_env_specs(ActiveTMaze(num_envs=3, length=4))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0}, "ActiveTMaze: length must be at least 1, got 0"),
        ({"penalty": 0.5}, "ActiveTMaze: penalty must be at most 0, got 0.5"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ActiveTMaze(**settings)


def has(picture, cell, color):
    rows, columns = (slice(i * CELL, (i + 1) * CELL) for i in cell)
    return bool((picture[rows, columns] == color).all(-1).any())


def test_the_picture_shows_the_sign_before_and_while_it_is_seen():
    env = ActiveTMaze(num_envs=1, length=5)
    td = env.reset()
    sign = (2 - int(env.env_state.task["side"][0]), 1)
    assert env.render().shape == (5 * CELL, 9 * CELL, 3)
    pictures = [env.render()]
    for action in (LEFT, RIGHT):
        td = env.step_and_maybe_reset(td.set("action", torch.tensor([action])))[1]
        pictures.append(env.render())
    agents = [
        next(column for column in range(9) if has(p, (2, column), Palette.AGENT)) for p in pictures
    ]
    assert agents == [2, 1, 2]
    assert [has(p, (2, 1), Palette.ACTIVE_TILE) for p in pictures] == [True, False, False]
    assert [has(p, sign, Palette.ACTIVE) for p in pictures] == [False, True, False]
    assert all(has(p, (sign[0], 7), Palette.ACTIVE) for p in pictures)


def test_a_long_corridor_is_shown_in_part_and_in_constant_size():
    env = ActiveTMaze(num_envs=1, length=200)
    td = env.reset()
    shapes = set()
    for _ in range(150):
        td = env.step_and_maybe_reset(td.set("action", torch.tensor([RIGHT])))[1]
        shapes.add(env.render().shape)
    assert shapes == {(5 * CELL, 43 * CELL, 3)}
    assert not has(env.render(), (2, 1), Palette.ACTIVE_TILE)
