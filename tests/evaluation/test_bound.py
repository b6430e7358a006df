"""Evaluations of episodes that seem endless are cut and say so; others are played to their end."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from yamame.evaluation import bound, evaluate, play_episode
from yamame.evaluation.bound import EndlessEpisodes, StepLimit, declared_limit
from yamame_envs import HostedEnv, MazeRunner


class Countdown(gymnasium.Env):
    """Episodes whose length the seed chooses from a list; 0 stands for never."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, lengths):
        self.lengths = lengths

    def reset(self, *, seed=None, options=None):
        self.length = self.lengths[seed % len(self.lengths)]
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == self.length, False, {}


@pytest.fixture
def patience(monkeypatch):
    monkeypatch.setattr(bound, "PATIENCE", 40)


def countdown(*lengths, num_envs=1, time_limit=None):
    return HostedEnv(lambda: Countdown(lengths), num_envs=num_envs, time_limit=time_limit)


def test_an_endless_episode_is_cut_with_a_warning(patience):
    env = countdown(0)
    with pytest.warns(EndlessEpisodes, match=r"after 40 steps.*env\.time_limit"):
        result = evaluate(env.rand_action, env)
    assert result.lengths.tolist() == [40]
    assert not result.finished.any()
    with pytest.warns(EndlessEpisodes, match=r"after 40 steps.*env\.time_limit"):
        episode = play_episode(env.rand_action, env)
    assert episode.shape == (1, 40)


@pytest.mark.parametrize(
    ("lengths", "settings"),
    [((39,), {}), ((40,), {}), ((0,), {"max_steps": 90}), ((100,), {"time_limit": 60})],
)
def test_an_episode_with_an_end_is_played_to_it(lengths, settings, patience, recwarn):
    env = countdown(*lengths, time_limit=settings.pop("time_limit", None))
    result = evaluate(env.rand_action, env, **settings)
    expected = settings.get("max_steps") or declared_limit(env) or lengths[0]
    assert result.lengths.tolist() == [expected]
    assert not recwarn


def test_episodes_that_end_now_and_then_are_waited_for(patience, recwarn):
    env = countdown(20, 150, num_envs=8)
    result = evaluate(env.rand_action, env, seed=1)
    assert sorted(set(result.lengths.tolist())) == [20, 150]
    assert not recwarn
    stuck = countdown(20, 0, num_envs=8)
    with pytest.warns(EndlessEpisodes, match="after 200 steps.*since step 20"):
        result = evaluate(stuck.rand_action, stuck, seed=1)
    assert sorted(set(result.lengths.tolist())) == [20, 200]
    assert torch.equal(result.finished, result.lengths == 20)


def test_native_environments_declare_their_limit():
    assert declared_limit(MazeRunner(num_envs=1, time_limit=30)) == 30
    assert declared_limit(countdown(3)) is None
    assert StepLimit(MazeRunner(num_envs=1), None).is_reached(10**9) is False
