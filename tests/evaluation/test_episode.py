"""Episodes as the evaluation plays them, how one is described, and videos of some."""

import gymnasium
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule
from yamame.evaluation import describe_step, describe_timestep, evaluate, play_episode, render_video
from yamame.spaces.from_specs import spaces_of
from yamame_envs import HostedEnv, MazeRunner


def wander(observation):
    return torch.randint(5, observation.shape[:1])


def maze(num_envs: int) -> MazeRunner:
    return MazeRunner(num_envs=num_envs, size=5, num_goals=1, time_limit=30)


POLICY = TensorDictModule(wander, ["observation"], ["action"])


def test_the_episode_is_the_first_of_an_evaluation_with_one_env_and_the_same_seed():
    lengths = set()
    for seed in range(4):
        result = evaluate(POLICY, maze(1), seed=seed)
        state = torch.get_rng_state()
        episode = play_episode(POLICY, maze(1), seed=seed)
        assert torch.equal(state, torch.get_rng_state())
        assert episode.shape == (1, int(result.lengths))
        assert float(episode["next", "reward"].sum()) == float(result.returns)
        assert episode["next", "done"].flatten().tolist() == [False] * (episode.shape[1] - 1) + [
            True
        ]
        lengths.add(episode.shape[1])
    assert len(lengths) > 1


def test_steps_follow_each_other_and_are_watched_one_by_one():
    env, seen = maze(1), []
    episode = play_episode(
        POLICY, env, seed=1, max_steps=5, watch=lambda step: seen.append(step.clone())
    )
    assert episode.shape[1] == len(seen) - 1 == 5
    assert "next" not in seen[0].keys()
    assert torch.equal(episode["next", "observation"][:, :-1], episode["observation"][:, 1:])
    for number, step in enumerate(seen[1:]):
        assert torch.equal(step["next", "observation"], episode["next", "observation"][:, number])


def test_a_step_is_described_in_one_line():
    env = MazeRunner(num_envs=1, size=5, num_goals=2, time_limit=3)
    env.set_instruction("2,2 3,2")
    lines = []
    policy = TensorDictModule(
        lambda x: torch.ones(1, dtype=torch.int64), ["observation"], ["action"]
    )
    play_episode(
        policy,
        env,
        watch=lambda step: lines.append(
            describe_step(step) if "next" in step.keys() else describe_timestep(step)
        ),
    )
    assert lines[0].endswith("goals reached 0 of 2")
    assert lines[1].startswith("    1  action 1  reward 1  observation [0.40 0.40 ")
    assert lines[1].endswith("goals reached 1 of 2")
    assert lines[3].endswith("goals reached 1 of 2  the end")


def test_a_step_is_described_in_values_of_the_spaces():
    spaces = gymnasium.spaces
    observation = spaces.Dict(
        {
            "a": spaces.Discrete(3, start=5),
            "b": spaces.Box(2, 4, (2,), np.int64),
            "c": spaces.MultiBinary(2),
        }
    )
    action = spaces.Dict(
        {"x": spaces.Discrete(4, start=1), "y": spaces.MultiDiscrete([2, 2], start=[7, 8])}
    )

    class Fixed(gymnasium.Env):
        observation_space, action_space = observation, action

        def reset(self, *, seed=None, options=None):
            return {"a": 6, "b": np.array([2, 4]), "c": np.array([0, 1], np.int8)}, {}

        def step(self, action):
            return *self.reset()[:1], 0.5, False, False, {}

    env = HostedEnv(Fixed, num_envs=1)
    step = env.step(env.reset().set("action", torch.tensor([[2, 0, 1]])))
    told = describe_step(step, spaces_of(env))
    assert "action {x: 3, y: [7 9]}" in told
    assert "a 6  b [2 4]  c [0 1]" in told
    assert "a 6" not in describe_step(step)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: play_episode(POLICY, maze(2)), r"env must have one env, got \(2,\)"),
        (lambda: play_episode(POLICY, maze(1), max_steps=0), "max_steps must be at least 1, got 0"),
    ],
)
def test_impossible_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


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


@pytest.mark.parametrize(("enough", "shown"), [(1, 6), (6, 6), (7, 12), (None, 18)])
def test_no_further_episode_begins_after_enough_frames(enough, shown):
    env = MazeRunner(num_envs=1, size=7, num_goals=1, time_limit=6)
    policy = TensorDictModule(still, ["observation"], ["action"])
    frames = render_video(policy, env, num_episodes=3, enough_frames=enough, seed=5)
    assert np.array_equal(frames, render_video(policy, env, num_episodes=3, seed=5)[:shown])
