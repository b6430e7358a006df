import random

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from yamame_envs.suites.domains import Domain, Domains, survey
from yamame_envs.suites.multi_domain import POPGYM_SUITE, MultiDomain

MIXED = ("CartPole-v1", "Acrobot-v1", "FrozenLake-v1")


class Leaky(gymnasium.Env):
    """Draws from the generators of the whole process, as some suites do."""

    observation_space = spaces.Tuple((spaces.Discrete(3), spaces.MultiDiscrete([2, 4])))
    action_space = spaces.MultiDiscrete([2, 3], start=[1, 0])

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed)
        self.actions = []
        return self._draw(), {}

    def step(self, action):
        self.actions.append(action.tolist())
        return self._draw(), random.random(), False, len(self.actions) >= 50, {}

    def _draw(self):
        return random.randrange(3), np.random.randint([2, 4])


class Buttons(gymnasium.Env):
    observation_space = spaces.Box(-1.0, 1.0, (2, 2), np.float32)
    action_space = spaces.MultiBinary(2)

    def reset(self, *, seed=None, options=None):
        return np.ones((2, 2), np.float32), {}

    def step(self, action):
        return (
            np.zeros((2, 2), np.float32),
            float(action[0]) + 2 * float(action[1]),
            False,
            False,
            {},
        )


class Growing(gymnasium.Env):
    observation_space = spaces.Sequence(spaces.Discrete(3))
    action_space = spaces.Discrete(2)


class Unbounded(gymnasium.Env):
    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Lever(gymnasium.Env):
    """Shows the action it was given."""

    observation_space = spaces.Box(-100.0, 100.0, (3,), np.float64)
    action_space = spaces.Box(
        np.array([0.0, -10.0, 5.0]), np.array([1.0, 30.0, 6.0]), dtype=np.float64
    )

    def reset(self, *, seed=None, options=None):
        return np.zeros(3), {}

    def step(self, action):
        return action, 0.0, False, False, {"success": True}


@pytest.fixture(autouse=True)
def _registered():
    kinds = {
        "Leaky": Leaky,
        "Buttons": Buttons,
        "Growing": Growing,
        "Unbounded": Unbounded,
        "Lever": Lever,
    }
    for name, kind in kinds.items():
        gymnasium.register(
            f"test/{name}-v0", entry_point=kind, max_episode_steps=None if name == "Growing" else 60
        )
    yield
    for name in kinds:
        gymnasium.registry.pop(f"test/{name}-v0")


def domains(*ids, show_domain=False):
    return Domains(common=survey(ids or MIXED), show_domain=show_domain)


def play(env, seed, steps=40):
    rng = np.random.default_rng(0)
    seen = [(env.reset(seed=seed)[0], 0.0, False)]
    for _ in range(steps):
        action = int(rng.integers(env.action_space.n))
        observation, reward, over, truncated, _ = env.step(action)
        assert not truncated
        assert env.observation_space.contains(observation)
        seen.append((observation, reward, over))
        if over:
            break
    return seen


def alike(first, second):
    def same(a, b):
        return a[1:] == b[1:] and all(np.array_equal(a[0][name], b[0][name]) for name in a[0])

    return len(first) == len(second) and all(
        same(a, b) for a, b in zip(first, second, strict=False)
    )


def seed_of(env, name):
    return next(seed for seed in range(200) if env.reset(seed=seed)[1]["domain"] == name)


def test_what_domains_have_in_common():
    layout = survey(MIXED)
    assert layout.observation_size == 16  # FrozenLake's cells
    assert layout.action_sizes == (2, 3, 4)
    assert layout.limit == 500
    assert survey(("Pendulum-v1", "MountainCarContinuous-v0")).limit == 999


def test_observations_are_flattened_and_filled_up():
    env, raw = domains(show_domain=True), {name: gymnasium.make(name) for name in MIXED}
    for index, name in enumerate(MIXED):
        observation, _ = env.reset(seed=seed_of(env, name))
        size = spaces.flatdim(raw[name].observation_space)
        assert observation["domain"] == index
        assert observation["observation"].shape == (16,)
        assert observation["observation"][:size].any()
        assert not observation["observation"][size:].any()
    assert observation["observation"].tolist() == [1.0] + 15 * [0.0]  # FrozenLake's first cell
    assert "domain" not in domains().reset(seed=0)[0]


def test_an_episode_is_that_of_the_domain_itself():
    env = domains()
    for name in ("CartPole-v1", "Acrobot-v1"):
        raw, seed = gymnasium.make(name), seed_of(env, name)
        drawn, actions = np.random.default_rng(seed), np.random.default_rng(0)
        drawn.integers(3)  # the domain; what is drawn next is the domain's own seed
        expected, _ = raw.reset(seed=int(drawn.integers(2**31)))
        observation, over, steps = env.reset(seed=seed)[0], False, 0
        while not over:
            assert np.array_equal(
                observation["observation"][: len(expected)], expected.astype(np.float32)
            )
            action = int(actions.integers(2))
            observation, reward, over, _, _ = env.step(action)
            expected, paid, terminated, truncated, _ = raw.step(action)
            assert (reward, over) == (paid, terminated or truncated)
            steps += 1
        assert steps > 5


def test_an_action_the_domain_does_not_have_is_one_of_its_own_and_told():
    env = domains("FrozenLake-v1", "test/Leaky-v0")
    assert env.action_space.n == 6
    seed, cells = seed_of(env, "FrozenLake-v1"), set()
    for action in range(6):
        env.reset(seed=seed)
        assert env.step(action)[0]["valid_action"] == [action < 4]
    for chance in range(400):
        observation, info = env.reset(seed=chance)
        assert observation["valid_action"] == [1]
        if info["domain"] == "FrozenLake-v1":
            cells.add(int(env.step(5)[0]["observation"].argmax()))
    assert cells == {0, 1, 4}  # all that can be reached in a step, so all actions are tried


def test_the_chance_of_a_wrong_action_is_even():
    env, taken = domains("CartPole-v1", "Acrobot-v1"), []
    for seed in range(600):
        env.reset(seed=seed)
        if env._domain.action_size == 2:
            env._domain._decode = lambda index: taken.append(index) or index
            env.step(2)
    share = np.mean(taken)
    assert len(taken) > 200
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(len(taken))


def test_equal_numbers_of_actions_need_no_flag():
    assert "valid_action" not in domains("CartPole-v1").observation_space.spaces
    assert "valid_action" in domains().observation_space.spaces


def test_several_choices_are_counted_through_row_by_row():
    env = domains("test/Leaky-v0")
    assert env.action_space.n == 6
    env.reset(seed=0)
    for action in range(6):
        env.step(action)
    assert env._domain.env.unwrapped.actions == [[1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2]]
    env = domains("test/Buttons-v0")
    env.reset(seed=0)
    assert [env.step(action)[1] for action in range(4)] == [0.0, 2.0, 1.0, 3.0]


def test_several_categories_are_shown_one_hot():
    env = domains("test/Leaky-v0")
    observation = env.reset(seed=0)[0]["observation"]
    assert observation.shape == (3 + 2 + 4,)
    assert [part.sum() for part in np.split(observation, [3, 5])] == [1.0, 1.0, 1.0]


def test_continuous_actions_are_stretched_to_the_bounds():
    env = domains("Pendulum-v1", "test/Lever-v0")
    assert env.action_space == spaces.Box(-1.0, 1.0, (3,), np.float32)
    seed = seed_of(env, "test/Lever-v0")
    for action, expected in [
        ([-1, -1, -1], [0, -10, 5]),
        ([1, 1, 1], [1, 30, 6]),
        ([0, 0.5, -0.5], [0.5, 20, 5.25]),
    ]:
        env.reset(seed=seed)
        shown = env.step(np.array(action, dtype=np.float32))[0]["observation"]
        assert np.allclose(shown, expected, atol=1e-6)
    assert "valid_action" not in env.observation_space.spaces
    raw, seed = gymnasium.make("Pendulum-v1").unwrapped, seed_of(env, "Pendulum-v1")
    env.reset(seed=seed)
    raw.reset(seed=0)
    raw.state = env._domain.env.unwrapped.state.copy()
    shown = env.step(np.array([0.25, 0.9, -0.9], dtype=np.float32))[0]["observation"]
    assert np.allclose(shown, raw.step(np.array([0.5], dtype=np.float32))[0])


def test_a_seed_decides_all_of_an_episode():
    ids = (*MIXED, "test/Leaky-v0", "yamame_envs:yamame/MazeRunner-v0")
    env = domains(*ids)
    first = [play(env, seed) for seed in range(15)]
    for seed in range(50, 60):
        play(env, seed, steps=9)
    assert all(alike(first[seed], play(env, seed)) for seed in reversed(range(15)))
    fresh = domains(*ids)
    assert all(alike(first[seed], play(fresh, seed)) for seed in range(15))
    assert not any(alike(first[a], first[b]) for a in range(15) for b in range(a))


def test_rows_that_draw_from_global_generators_do_not_influence_each_other():
    alone = play(domains("test/Leaky-v0"), seed=0)

    def beside(env, other):
        rng, seen = np.random.default_rng(0), [(env.reset(seed=0)[0], 0.0, False)]
        other.reset(seed=1)
        for _ in range(40):
            action = int(rng.integers(6))
            seen.append(env.step(action)[:3])
            other.step(action)
        return seen

    assert alike(alone, beside(domains("test/Leaky-v0"), domains("test/Leaky-v0")))
    careless = [domains("test/Leaky-v0") for _ in range(2)]
    for env in careless:
        env._built[0] = Domain("test/Leaky-v0")
        env._built[0]._random = None
    assert not alike(alone, beside(*careless))


def test_domains_are_drawn_evenly():
    env = domains()
    drawn = [env.reset(seed=seed)[1]["domain"] for seed in range(450)]
    counts = np.array([drawn.count(name) for name in MIXED])
    assert (np.abs(counts - 150) < 4 * np.sqrt(450 * 2 / 9)).all()


def test_the_time_limit_of_a_domain_terminates():
    env = domains("test/Leaky-v0", "test/Buttons-v0")
    for name, length in [("test/Leaky-v0", 50), ("test/Buttons-v0", 60)]:
        env.reset(seed=seed_of(env, name))
        ends = [env.step(0)[2:4] for _ in range(length)]
        assert ends == [(False, False)] * (length - 1) + [(True, False)]


def test_domains_that_cannot_be_mixed_are_refused():
    for ids, message in [
        (
            ("CartPole-v1", "Pendulum-v1"),
            "discrete ones in 'CartPole-v1' and continuous ones in 'Pendulum-v1'",
        ),
        ("CartPoll-v1", "ids must name environments that can be made, got 'CartPoll-v1'"),
        (
            "nowhere_at_all:Some-v0",
            "ids must name environments that can be made, got 'nowhere_at_all:Some-v0'",
        ),
        ((), r"ids must name at least one environment, got \(\)"),
        (("test/Unbounded-v0",), "Box with finite bounds, got Box.* of 'test/Unbounded-v0'"),
        (
            ("test/Growing-v0",),
            "observations must have a fixed size, got Sequence.* of 'test/Growing-v0'",
        ),
    ]:
        with pytest.raises(ValueError, match=f"MultiDomain: .*{message}"):
            MultiDomain(ids=ids)


def test_the_rows_of_all_domains_look_alike():
    env = MultiDomain(ids=MIXED, show_domain=True, num_envs=4, seed=3)
    td = env.rollout(60, break_when_any_done=False)
    assert td["observation"].shape == (4, 60, 16)
    assert td["valid_action"].dtype == torch.bool
    assert td["domain"].shape == (4, 60, 3)
    assert (td["domain"].sum(-1) == 1).all()
    assert td["time"].max() <= 60 / 500
    played = td["domain"].argmax(-1)
    changes = played[:, 1:] != played[:, :-1]
    assert changes.any()
    assert td["is_init"][:, 1:].squeeze(-1)[changes].all()
    env.close()


def test_the_horizon_can_be_chosen():
    env = MultiDomain(ids="Pendulum-v1", time_limit=7, num_envs=2)
    td = env.rollout(7)
    assert td["next", "terminated"][:, -1].all()
    assert td["next", "time"][0, -1] == 1.0
    env.close()
    env = MultiDomain(ids="yamame_envs:yamame/MazeRunner-v0")
    assert "time" not in env.reset()
    env.close()


def test_success_is_told_if_asked_to():
    env = MultiDomain(ids="test/Lever-v0", tells_success=True)
    assert env.rollout(2)["next", "success"].all()
    env.close()
    assert "success" not in MultiDomain(ids="test/Lever-v0").reset()


def test_the_domains_of_popgym_fit_the_published_sizes():
    pytest.importorskip("popgym", reason="POPGym is not installed")
    layout = survey(POPGYM_SUITE)
    assert len(set(POPGYM_SUITE)) == 27
    assert layout.observation_size == 26
    assert layout.action_sizes[POPGYM_SUITE.index("popgym:popgym-CountRecallHard-v0")] == 17
    limits = {name: Domain(name).limit for name in POPGYM_SUITE}
    unknown = [name for name, limit in limits.items() if limit is None]
    assert all("HigherLower" in name for name in unknown)  # three decks of cards at most: 155 steps
    env = MultiDomain(ids="popgym")
    assert env.rollout(3)["next", "time"][0, 0] == 1 / max(
        limit for limit in limits.values() if limit
    )
    env.close()
    env = Domains(common=layout, show_domain=True)
    played = set()
    for seed in range(60):
        seen = play(env, seed, steps=30)
        played.add(seen[0][0]["domain"])
        assert alike(seen, play(env, seed, steps=30))
    assert len(played) > 20
