import numpy as np
import pytest
import torch
from yamame_envs.suites.half_cheetah import HalfCheetahVel
from yamame_envs.suites.half_cheetah_task import HalfCheetahVelTask

pytest.importorskip("mujoco", reason="MuJoCo is not installed")

STILL = np.zeros(6, np.float32)


@pytest.fixture(scope="module")
def cheetah():
    return HalfCheetahVelTask()


def plan(steps, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (steps, 6)).astype(np.float32)


def trajectory(env, seed, actions):
    seen = [env.reset(seed=seed)[0], [env.target]]
    for action in actions:
        vector, reward, *_ = env.step(action)
        seen += [vector, [reward]]
    return np.concatenate(seen)


def test_what_is_seen_and_done_has_the_sizes_of_half_cheetah(cheetah):
    seen, _ = cheetah.reset(seed=0)
    assert seen.dtype == np.float32
    assert cheetah.observation_space.shape == seen.shape == (17,)
    assert cheetah.action_space.shape == (6,)
    assert (cheetah.action_space.low == -1).all()
    assert (cheetah.action_space.high == 1).all()


def test_the_body_moves_as_in_both_versions_of_half_cheetah(cheetah):
    from gymnasium.envs.mujoco import half_cheetah_v4, half_cheetah_v5

    for version in (half_cheetah_v4, half_cheetah_v5):
        official = version.HalfCheetahEnv()
        expected, _ = official.reset(seed=3)
        seen, _ = cheetah.reset(seed=3)
        assert np.array_equal(seen, expected.astype(np.float32))
        for action in plan(200):
            expected, *_ = official.step(action)
            seen, *_ = cheetah.step(action)
            assert np.array_equal(seen, expected.astype(np.float32))


def test_the_reward_is_the_distance_to_the_target_velocity_and_half_the_usual_cost(cheetah):
    cheetah.reset(seed=5)
    for action in plan(50):
        before = cheetah._env.data.qpos[0]
        _, reward, terminated, truncated, _ = cheetah.step(action)
        velocity = (cheetah._env.data.qpos[0] - before) / 0.05
        assert reward == pytest.approx(
            -abs(velocity - cheetah.target) - 0.05 * np.sum(np.square(action))
        )
        assert not terminated
        assert not truncated


def test_a_seed_decides_target_posture_and_motion_whatever_was_played_before(cheetah):
    expected = trajectory(HalfCheetahVelTask(), 7, plan(30))
    trajectory(cheetah, 8, plan(30, seed=1))
    other = HalfCheetahVelTask()
    other.reset(seed=9)
    assert np.array_equal(trajectory(cheetah, 7, plan(30)), expected)
    assert not np.array_equal(trajectory(cheetah, 8, plan(30)), expected)


def test_targets_are_uniform_and_cannot_be_told_from_the_posture(cheetah):
    seen, targets = [], []
    for seed in range(400):
        seen.append(cheetah.reset(seed=seed)[0])
        targets.append(cheetah.target)
    counts, _ = np.histogram(targets, bins=6, range=(0.0, 3.0))
    assert counts.sum() == 400
    assert np.abs(counts - 400 / 6).max() < 4 * np.sqrt(400 / 6 * 5 / 6)  # four standard deviations
    related = np.corrcoef(np.array(seen).T, targets)[-1, :-1]
    assert np.abs(related).max() < 4 / np.sqrt(400)


def test_targets_reach_the_fastest_wanted_velocity():
    fast = HalfCheetahVelTask(max_velocity=10.0)
    targets = []
    for seed in range(50):
        fast.reset(seed=seed)
        targets.append(fast.target)
    assert 3.0 < max(targets) <= 10.0


def test_random_actions_return_what_others_measured_and_standing_still_costs_the_target(cheetah):
    returns, still = [], []
    for seed in range(30):
        trajectory(cheetah, seed, [])
        returns.append(sum(cheetah.step(action)[1] for action in plan(1000, seed)))
        cheetah.reset(seed=seed)
        still.append(sum(cheetah.step(STILL)[1] for _ in range(1000)) + 1000 * cheetah.target)
    error = np.sqrt(
        2 * 811**2 / 30
    )  # measured elsewhere: -1942, standard deviation 811, 30 episodes
    assert abs(np.mean(returns) + 1942) < 3 * error
    assert np.abs(still).max() < 10.0


def test_an_episode_ends_at_the_time_limit():
    env = HalfCheetahVel(num_envs=2, time_limit=4, seed=1)
    played = env.rollout(6, break_when_any_done=False)
    assert played["observation"].shape == (2, 6, 17)
    ends = torch.tensor([False, False, False, True, False, False])
    assert torch.equal(played["next", "terminated"].squeeze(-1), ends.expand(2, 6))
    assert not played["next", "truncated"].any()
    assert "success" not in played.keys()
    env.close()


@pytest.mark.parametrize("velocity", [0.0, -1.0, float("inf"), float("nan")])
def test_a_velocity_that_cannot_be_is_refused(velocity):
    with pytest.raises(
        ValueError, match=f"HalfCheetahVel: max_velocity must be positive.*, got {velocity}"
    ):
        HalfCheetahVel(max_velocity=velocity)
