"""Rounds of complete episodes: one per env, acted out by one policy, exactly resumable."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict.nn import TensorDictModule
from yamame.agent import InContextAgent
from yamame.collectors import EpisodeCollector
from yamame.heads import ActorHead, PopArt, make_critic
from yamame.replay import OnPolicyBuffer
from yamame.timestep import make_timestep_encoder
from yamame.trajectory import GRUEncoder
from yamame_envs import HostedEnv, MetaFrozenLake

NUM_ENVS = 6


def make(seed=0, size=4):
    torch.manual_seed(seed)
    env = MetaFrozenLake(num_envs=NUM_ENVS, size=size, num_trials=1, seed=3)
    agent = InContextAgent(
        env.observation_spec,
        env.full_action_spec["action"],
        timestep_encoder=make_timestep_encoder,
        goal_encoder=lambda *_: None,
        trajectory_encoder=lambda width: GRUEncoder(
            width, hidden_size=8, num_layers=1, out_features=8
        ),
        actor=lambda *args, **kwargs: ActorHead(*args, **kwargs, hidden_size=8, num_layers=1),
        critic=make_critic,
        returns=PopArt,
        gammas=[0.9],
    )
    buffer = OnPolicyBuffer()
    return EpisodeCollector(env, agent.policy(), buffer), buffer, agent


def test_a_round_brings_one_complete_episode_of_every_env():
    collector, buffer, _ = make()
    episodes = collector.collect(1)
    batch = buffer.take()
    mask = batch["mask"].squeeze(-1)
    lengths = mask.sum(-1) - 1
    assert len(batch) == NUM_ENVS == len(episodes.returns)
    assert lengths.unique().numel() > 1, "the episodes must differ in length to show anything"
    assert episodes.num_steps == NUM_ENVS * int(lengths.max())
    assert torch.equal(lengths, episodes.lengths)
    env = torch.arange(NUM_ENVS)
    assert batch["is_init"].squeeze(-1)[:, 0].all()
    assert batch["is_init"].sum() == NUM_ENVS
    ends = batch["next", "terminated"].squeeze(-1)
    assert ends[env, lengths - 1].all()
    assert ends.sum() == NUM_ENVS
    torch.testing.assert_close(batch["next", "reward"].flatten(1).sum(-1), episodes.returns)
    steps = batch["step_index"].squeeze(-1)
    assert torch.equal(steps, torch.where(mask, torch.arange(mask.shape[1]), 0))


def test_a_round_is_the_same_where_a_look_at_its_end_waits_for_a_device():
    rounds = []
    for waits in (False, True):
        collector, buffer, _ = make(size=5)
        collector._is_async_device, stepped, step = waits, [], collector.env.step_and_maybe_reset
        collector.env.step_and_maybe_reset = lambda td, step=step, stepped=stepped: (
            stepped.append(1) or step(td)
        )
        rounds.append((len(stepped), collector.collect(1), buffer.take(), len(stepped)))
    (_, episodes, batch, exact), (_, others, again, steps) = rounds
    assert exact % 16 != 0
    assert steps == exact + -exact % 16
    assert (batch == again).all()
    assert episodes.num_steps == others.num_steps == NUM_ENVS * exact
    assert torch.equal(episodes.returns, others.returns)


def test_every_round_begins_with_the_first_timestep_of_every_env():
    collector, buffer, _ = make()
    first = collector.env.reset
    presented = []

    def reset(tensordict=None):
        out = first(tensordict)
        presented.append(collector.env.present())
        return out

    collector.env.reset = reset
    for _ in range(8):
        collector.collect(1)
        start = buffer.take()[:, 0]
        assert start["is_init"].all()
        for key in ("observation", "step_index", "prev_action"):
            assert torch.equal(start[key], presented[-1][key]), key
    assert len(presented) > 4, "envs that end together would be reset by their last step"


def test_rounds_go_on_until_the_steps_are_taken():
    collector, buffer, _ = make()
    episodes = collector.collect(200)
    assert episodes.num_steps >= 200
    assert len(buffer) == len(episodes.returns)
    assert len(buffer) % NUM_ENVS == 0
    assert len(buffer) > NUM_ENVS


def test_a_restored_collector_plays_on_exactly():
    whole, held, _ = make()
    whole.collect(1)
    state, random = whole.state_dict(), torch.get_rng_state()
    held.take()
    whole.collect(50)
    restored, other, _ = make(seed=1)
    restored.load_state_dict(state)
    torch.set_rng_state(random)
    restored.collect(50)
    assert (held.take() == other.take()).all()
    fresh, different, _ = make(seed=1)
    fresh.collect(50)
    torch.set_rng_state(random)
    whole.collect(50)
    first, second = held.take(), different.take()
    assert first.shape != second.shape or not (first == second).all()


class Endless(gymnasium.Env):
    observation_space = spaces.Box(0, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize(("limit", "refused"), [(None, True), (25, False)])
def test_a_round_that_would_never_end_is_refused(limit, refused, monkeypatch):
    monkeypatch.setattr("yamame.collectors.episodes._PATIENCE", 20)
    env = HostedEnv(Endless, num_envs=2, time_limit=limit)

    def choose(observation):
        return torch.zeros(len(observation), dtype=torch.int64)

    policy = TensorDictModule(choose, in_keys=["observation"], out_keys=["action"])
    collector = EpisodeCollector(env, policy, OnPolicyBuffer())
    if refused:
        with pytest.raises(ValueError, match=r"within 20 steps.*env\.time_limit"):
            collector.collect(1)
    else:
        assert collector.collect(1).lengths.tolist() == [25, 25]
