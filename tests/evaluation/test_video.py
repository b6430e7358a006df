"""Videos show the episodes that an evaluation with the same seed plays, frame by frame."""

import numpy as np
import torch
from tensordict.nn import TensorDictModule
from yamame.evaluation import render_video
from yamame_envs import MazeRunner


def still(observation):
    return torch.full(observation.shape[:1], 4)


def test_one_frame_per_timestep_of_every_episode_and_the_same_at_every_call():
    env = MazeRunner(num_envs=1, size=7, num_goals=1, time_limit=6)
    policy = TensorDictModule(still, ["observation"], ["action"])
    random = torch.get_rng_state()
    frames = render_video(policy, env, num_episodes=3, seed=5)
    assert frames.shape[0] == 18
    assert frames.dtype == np.uint8
    assert frames.shape[-1] == 3
    assert torch.equal(random, torch.get_rng_state())
    assert np.array_equal(frames, render_video(policy, env, num_episodes=3, seed=5))
    assert not np.array_equal(frames, render_video(policy, env, num_episodes=3, seed=6))
    assert not np.array_equal(frames[0], frames[6])
    assert np.array_equal(frames[0], frames[5])


def test_a_video_is_cut_at_its_longest():
    env = MazeRunner(num_envs=1, size=7, num_goals=1, time_limit=6)
    policy = TensorDictModule(still, ["observation"], ["action"])
    frames = render_video(policy, env, num_episodes=3, max_frames=8, seed=5)
    assert np.array_equal(frames, render_video(policy, env, num_episodes=3, seed=5)[:8])
