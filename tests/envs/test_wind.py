import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import check_env_specs
from yamame_envs.rendering import Palette
from yamame_envs.wind import Wind

GOAL = torch.tensor([0.0, 1.0])


class Flyer:
    """The rules for one point, step by step, in the environment's precision."""

    def __init__(self, wind, limit=75, radius=0.03):
        self.wind, self.limit, self.radius = np.float32(wind), limit, radius
        self.place, self.t = np.zeros(2, np.float32), 0

    def step(self, action):
        self.place = self.place + np.float32(action) + self.wind
        self.t += 1
        near = float(np.hypot(*(self.place - np.float32([0, 1])))) <= self.radius
        return float(near), near and self.t == self.limit, self.t == self.limit


def best_return(wind, limit=75, radius=0.03):
    """The most that can be earned: all steps after the first at which some place by the goal is in
    reach.
    """
    for steps in range(1, limit + 1):
        low, high = steps * (wind - 0.1), steps * (wind + 0.1)
        gap = np.maximum(np.maximum(low - [0, 1], [0, 1] - high), 0)
        if np.hypot(*gap) <= radius:
            return limit - steps + 1
    return 0


def play(env, choose):
    """Returns the return of every row's next episode and its success."""
    td = env.reset()
    total = torch.zeros(env.batch_size[0])
    for t in range(env.time_limit):
        step, td = env.step_and_maybe_reset(td.set("action", choose(t, td)))
        total += step["next", "reward"][:, 0]
        assert step["next", "done"].all() == (t + 1 == env.time_limit)
    return total, step["next", "success"][:, 0]


def towards_goal(place, wind):
    return (GOAL - place - wind).clamp(-0.1, 0.1)


def knowing(env):
    return lambda t, td: towards_goal(td["observation"], env.env_state.task["wind"])


@pytest.mark.parametrize("settings", [{}, {"num_tasks": 3}, {"time_limit": 20, "goal_radius": 0.3}])
def test_specs_describe_what_is_returned(settings):
    check_env_specs(Wind(num_envs=3, **settings), break_when_any_done="both")


@pytest.mark.parametrize("num_tasks", [None, 7])
def test_every_step_follows_the_rules(num_tasks):
    limit, radius, n = 25, 0.2, 40
    env = Wind(num_envs=n, num_tasks=num_tasks, time_limit=limit, goal_radius=radius, seed=3)
    td = env.reset()
    flyers, paid, won = [], 0, 0
    generator = torch.Generator().manual_seed(0)
    for t in range(6 * limit):
        if t % limit == 0:
            assert (td["observation"] == 0).all()
            flyers = [Flyer(wind.numpy(), limit, radius) for wind in env.env_state.task["wind"]]
        # Noise around the way to the goal, so that rows enter and leave its surroundings.
        noise = torch.rand(n, 2, generator=generator) * 0.4 - 0.2
        action = (GOAL - td["observation"] + noise).clamp(-0.1, 0.1)
        step, td = env.step_and_maybe_reset(td.set("action", action))
        for row, flyer in enumerate(flyers):
            reward, success, done = flyer.step(action[row].numpy())
            after = step["next"][row]
            assert after["reward"].item() == reward
            assert after["success"].item() == success
            assert after["terminated"].item() == done
            assert after["observation"].tolist() == flyer.place.tolist()
            paid += reward
            won += success
    assert 100 < paid < 6 * limit * n - 100
    assert 10 < won < paid


def test_the_only_wind_of_a_list_of_one_is_the_published_one():
    env = Wind(num_envs=5, num_tasks=1)
    env.reset()
    winds = env.env_state.task["wind"]
    assert winds.numpy().round(4).tolist() == [[np.float32(-0.0381), np.float32(-0.0546)]] * 5


def test_a_list_of_winds_is_a_fixed_list_played_in_random_order():
    def seen(seed):
        env = Wind(num_envs=2000, num_tasks=20, seed=seed)
        env.reset()
        return env.env_state.task["wind"]

    first, other = seen(0), seen(1)
    winds, counts = first.unique(dim=0, return_counts=True)
    assert len(winds) == 20
    assert torch.equal(winds, other.unique(dim=0))
    assert not torch.equal(first, other)
    assert ((counts - 100).abs() < 5 * 95**0.5).all()
    # A longer list begins with the shorter one.
    assert torch.equal(Wind(num_tasks=40)._winds[:20], Wind(num_tasks=20)._winds)


def test_winds_are_uniform_and_new_in_every_episode():
    env = Wind(num_envs=20_000)
    env.reset()
    wind = env.env_state.task["wind"].clone()
    assert wind.abs().max() <= 0.08
    sorted_axes = (wind / 0.16 + 0.5).sort(0).values
    levels = (torch.arange(20_000) + 0.5) / 20_000
    assert (
        sorted_axes - levels.unsqueeze(-1)
    ).abs().max() < 1.95 / 20_000**0.5  # Kolmogorov-Smirnov, 0.1 %
    assert torch.corrcoef(wind.T)[0, 1].abs() < 5 / 20_000**0.5
    env.reset()
    assert (env.env_state.task["wind"] != wind).all(1).all()


def played_by_knowing(num_envs, num_tasks):
    """Winds and what knowing them earns, through the environment's own interface."""
    env = Wind(num_envs=num_envs, num_tasks=num_tasks)
    env.reset()
    winds = env.env_state.task["wind"].clone()
    env.set_seed(0)  # the same tasks again
    total, success = play(env, knowing(env))
    assert success.all()
    return winds, total


@pytest.mark.parametrize(("num_tasks", "known"), [(1, 54.0), (20, 61.8), (40, 63.5)])
def test_knowing_the_wind_earns_the_known_optimum_of_a_list(num_tasks, known):
    winds, total = played_by_knowing(500, num_tasks)
    earned = {tuple(wind): ret for wind, ret in zip(winds.tolist(), total.tolist(), strict=True)}
    assert len(earned) == num_tasks
    assert round(sum(earned.values()) / num_tasks, 1) == pytest.approx(known)


def test_knowing_the_wind_earns_all_that_can_be_earned():
    """On the whole distribution 62.18, the mean of `best_return` over 200,000 winds."""
    winds, total = played_by_knowing(4000, None)
    assert total.tolist() == [best_return(wind) for wind in winds.numpy().astype(np.float64)]
    assert abs(total.mean() - 62.18) < 3 * total.std() / 4000**0.5


def test_the_wind_can_be_felt_at_the_first_step_and_must_be():
    env = Wind(num_envs=2000)
    best = play(env, knowing(env))[0].mean()
    felt = torch.zeros(2000, 2)

    def feeling(t, td):
        if t == 1:
            felt[:] = td["observation"] - td["prev_action"] * 0.1
        return towards_goal(td["observation"], felt)

    assert play(env, feeling)[0].mean() > best - 1
    unaware, success = play(env, lambda t, td: towards_goal(td["observation"], 0.0))
    assert unaware.mean() < best / 2
    assert success.float().mean() < 0.5


def test_random_play_earns_next_to_nothing():
    """The known return is between 0.00 and 0.01."""
    n = 20_000
    env = Wind(num_envs=n)
    generator = torch.Generator().manual_seed(0)
    total, success = play(env, lambda t, td: torch.rand(n, 2, generator=generator) * 0.2 - 0.1)
    assert 0 < total.mean() < 0.01 + 3 * total.std() / n**0.5
    assert success.float().mean() < 0.001


def test_success_is_to_be_there_at_the_last_step():
    env = Wind(num_envs=300)
    leave = 70

    def choose(t, td):
        wind = env.env_state.task["wind"]
        return towards_goal(td["observation"], wind) if t < leave else torch.full((300, 2), 0.1)

    total, success = play(env, choose)
    assert (total > 0).all()
    assert not success.any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_tasks": 0}, "Wind: num_tasks must be at least 1, got 0"),
        ({"goal_radius": 0.0}, "Wind: goal_radius must be positive, got 0.0"),
        ({"time_limit": 0}, "Wind: time_limit must be at least 1, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Wind(**settings)


@pytest.mark.parametrize("bad", [0.11, float("nan")])
def test_an_action_out_of_bounds_is_refused(bad):
    env = Wind(num_envs=2)
    action = torch.tensor([[0.1, -0.1], [0.0, bad]])
    with pytest.raises(ValueError, match=r"Wind: action must be in .* in env 1 at step 0"):
        env.step(env.reset().set("action", action))


def center(picture, color):
    rows, columns = (picture == color).all(-1).nonzero()
    return rows.mean(), columns.mean()


def test_the_picture_shows_the_agent_flying_to_the_goal():
    env = Wind(num_envs=2, num_tasks=1)
    td = env.reset()
    heights = []
    for _ in range(40):
        heights.append(center(env.render(1), Palette.AGENT)[0])
        td = env.step_and_maybe_reset(td.set("action", knowing(env)(0, td)))[1]
    assert heights == sorted(heights, reverse=True)
    assert center(env.render(1), Palette.AGENT) == pytest.approx(
        center(env.render(1), Palette.ACTIVE), abs=1
    )
    far = TensorDict({"action": torch.full((2, 2), -0.1)}, [2])
    for _ in range(30):
        env.step(far)
    assert env.render(1).shape == env.render(0).shape
    assert not (env.render(1) == Palette.AGENT).all(-1).any()  # pale now, at the border


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_does_not_exist_is_not_drawn(row):
    env = Wind(num_envs=2)
    env.reset()
    with pytest.raises(ValueError, match=f"Wind: env_id must be an env that was reset, got {row}"):
        env.render(row)
