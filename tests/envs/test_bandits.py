import numpy as np
import pytest
import torch
from torchrl.envs.utils import check_env_specs
from yamame_envs.bandits import Bandits
from yamame_envs.rendering import Palette
from yamame_envs.streams import fold, uniform


def play(env, choose):
    """Returns the return of every row's next episode and its success."""
    td = env.reset()
    total = torch.zeros(env.batch_size[0])
    for t in range(env.time_limit):
        step, td = env.step_and_maybe_reset(td.set("action", choose(t, td)))
        total += step["next", "reward"][:, 0]
        assert step["next", "done"].all() == (t + 1 == env.time_limit)
    return total, step["next", "success"][:, 0]


def at_random(env):
    generator = torch.Generator().manual_seed(0)
    return lambda t, td: torch.randint(env._num_arms, env.batch_size, generator=generator)


def best(env):
    return lambda t, td: env.env_state.task["means"].argmax(-1)


class Thompson:
    """Thompson sampling with uniform priors, from what the environment shows alone."""

    def __init__(self, rows, arms):
        self.paid, self.pulled = np.zeros((rows, arms)), np.zeros((rows, arms))
        self.random = np.random.default_rng(0)

    def __call__(self, t, td):
        if t > 0:
            arm = td["prev_action"].numpy()
            self.paid += arm * td["prev_reward"].numpy()
            self.pulled += arm
        return torch.tensor(self.random.beta(1 + self.paid, 1 + self.pulled - self.paid).argmax(1))


def thompson_return(arms, steps, episodes):
    """The same without the environment: mean return and its standard error."""
    random = np.random.default_rng(1)
    means, rows = random.random((episodes, arms)), np.arange(episodes)
    paid, failed, total = np.ones((episodes, arms)), np.ones((episodes, arms)), np.zeros(episodes)
    for _ in range(steps):
        arm = random.beta(paid, failed).argmax(1)
        reward = random.random(episodes) < means[rows, arm]
        paid[rows, arm] += reward
        failed[rows, arm] += ~reward
        total += reward
    return total.mean(), total.std() / episodes**0.5


@pytest.mark.parametrize("reward", ["bernoulli", "gaussian"])
def test_specs_describe_what_is_returned(reward):
    check_env_specs(Bandits(num_envs=3, time_limit=5, reward=reward), break_when_any_done="both")


@pytest.mark.parametrize("reward", ["bernoulli", "gaussian"])
def test_every_step_follows_the_rules(reward):
    n, limit, std = 30, 7, 0.3
    env = Bandits(num_envs=n, num_arms=4, time_limit=limit, reward=reward, gaussian_std=std, seed=2)
    td = env.reset()
    won, paid = 0, set()
    generator = torch.Generator().manual_seed(0)
    for t in range(10 * limit):
        assert (td["observation"] == 0).all()
        action = torch.randint(4, (n,), generator=generator)
        means, seeds = env.env_state.task["means"].tolist(), env.env_state.task["task_seed"]
        quantiles = env._quantiles.on(seeds.device)
        step, td = env.step_and_maybe_reset(td.set("action", action))
        for row, arm in enumerate(action.tolist()):
            after, mean = step["next"][row], means[row][arm]
            chance = uniform(fold(seeds[row], 1, t % limit)).item()
            if reward == "bernoulli":
                expected = float(chance < mean)
            else:
                expected = mean + std * quantiles[int(chance * len(quantiles))].item()
            last = t % limit == limit - 1
            assert after["reward"].item() == pytest.approx(expected, abs=1e-6)
            assert after["success"].item() == (last and mean == max(means[row]))
            assert after["terminated"].item() == last
            won += after["success"].item()
            paid.add(after["reward"].item())
    assert 30 < won < 200
    assert len(paid) == 2 if reward == "bernoulli" else len(paid) > 1000


def kolmogorov_smirnov(sample, distribution):
    ordered = sample.flatten().double().sort().values
    levels = (torch.arange(len(ordered)) + 0.5) / len(ordered)
    return (distribution(ordered) - levels).abs().max() * len(ordered) ** 0.5


@pytest.mark.parametrize("reward", ["bernoulli", "gaussian"])
def test_arms_have_the_stated_distribution_and_are_new_in_every_episode(reward):
    env = Bandits(num_envs=5000, num_arms=4, reward=reward)
    env.reset()
    means = env.env_state.task["means"].clone()
    distribution = torch.special.ndtr if reward == "gaussian" else lambda x: x
    assert kolmogorov_smirnov(means, distribution) < 1.95  # significant at 0.1 %
    correlations = torch.corrcoef(means.T) - torch.eye(4)
    assert correlations.abs().max() < 5 / 5000**0.5
    env.reset()
    assert (env.env_state.task["means"] != means).all(1).float().mean() > 0.99


def test_the_normal_numbers_are_normal():
    """As exactly as their number allows: equally likely quantiles of the normal distribution."""
    quantiles = Bandits(reward="gaussian")._quantiles.on(torch.device("cpu")).double()
    assert kolmogorov_smirnov(quantiles, torch.special.ndtr) < 1e-3
    assert torch.equal(quantiles, -quantiles.flip(0))
    assert quantiles.var() == pytest.approx(1, abs=1e-3)
    assert quantiles.pow(4).mean() == pytest.approx(3, abs=0.02)


def test_gaussian_noise_has_the_stated_deviation_and_none_at_zero():
    for std in (0.0, 0.5):
        env = Bandits(
            num_envs=20_000, num_arms=2, time_limit=2, reward="gaussian", gaussian_std=std
        )
        td = env.reset()
        means = env.env_state.task["means"][:, 0]
        noise = (
            env.step(td.set("action", torch.zeros(20_000, dtype=torch.int64)))["next", "reward"][
                :, 0
            ]
            - means
        )
        assert noise.std() == pytest.approx(std, abs=5 * std / 40_000**0.5)
        assert abs(noise.mean()) <= 5 * std / 20_000**0.5


@pytest.mark.parametrize(("reward", "known"), [("bernoulli", 50.0), ("gaussian", 0.0)])
def test_random_play_earns_the_known_return(reward, known):
    env = Bandits(num_envs=3000, reward=reward)
    total, success = play(env, at_random(env))
    assert abs(total.mean() - known) < 3 * total.std() / 3000**0.5
    assert abs(success.float().mean() - 0.1) < 3 * 0.3 / 3000**0.5


# The expected largest of ten standard normal numbers is 1.53875.
@pytest.mark.parametrize(("reward", "known"), [("bernoulli", 1000 / 11), ("gaussian", 153.875)])
def test_the_best_arm_earns_the_known_return(reward, known):
    env = Bandits(num_envs=3000, reward=reward)
    total, success = play(env, best(env))
    assert abs(total.mean() - known) < 3 * total.std() / 3000**0.5
    assert success.all()


def test_thompson_sampling_earns_as_much_as_outside_of_the_environment():
    env = Bandits(num_envs=1500)
    total, success = play(env, Thompson(1500, 10))
    known, known_error = thompson_return(10, 100, 1500)
    error = total.std() / 1500**0.5
    assert abs(total.mean() - known) < 3 * (error**2 + known_error**2) ** 0.5
    assert 70 < total.mean() < 1000 / 11 - 5  # far above random play, below the best arm
    assert 0.3 < success.float().mean() < 0.9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_arms": 1}, "Bandits: num_arms must be at least 2, got 1"),
        ({"reward": "cauchy"}, r"Bandits: reward must be one of .*, got 'cauchy'"),
        ({"gaussian_std": -1.0}, r"Bandits: gaussian_std must be at least 0, got -1.0"),
        ({"time_limit": 0}, "Bandits: time_limit must be at least 1, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Bandits(**settings)


def column(picture, color):
    """Of ten arms, the one where the colour is."""
    columns = (picture == color).all(-1).nonzero()[1]
    return int(columns.mean() * 21 / picture.shape[1]) // 2


@pytest.mark.parametrize("reward", ["bernoulli", "gaussian"])
def test_the_picture_shows_the_best_arm_and_the_last_pull(reward):
    env = Bandits(num_envs=2, reward=reward)
    td = env.reset()
    assert column(env.render(1), Palette.ACTIVE) == env.env_state.task["best"][1]
    assert not (env.render(1) == Palette.AGENT).all(-1).any()
    seen = set()
    for t in range(40):
        td = env.step_and_maybe_reset(td.set("action", torch.tensor([0, t % 10])))[1]
        picture = env.render(1)
        assert column(picture, Palette.AGENT) == t % 10
        paid = bool((picture == Palette.COMPLETED).all(-1).any())
        assert paid == (td["prev_reward"][1].item() > (0.5 if reward == "bernoulli" else 0.0))
        seen.add(paid)
    assert seen == {False, True}


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_does_not_exist_is_not_drawn(row):
    env = Bandits(num_envs=2)
    env.reset()
    with pytest.raises(
        ValueError, match=f"Bandits: env_id must be an env that was reset, got {row}"
    ):
        env.render(row)
