"""Diagnoses of memory on agents whose memory is known by construction."""

import pytest
import torch
import yamame
from tensordict import TensorDict
from yamame.evaluation import evaluate
from yamame.evaluation.diagnosis import probe, recall_density, record_episodes
from yamame.runs.build import build_agent, build_env
from yamame.trajectory import TrajectoryEncoder

LENGTH = 6


class CopyFirst(TrajectoryEncoder):
    """Its context is what was seen at the first timestep."""

    def __init__(self, in_features):
        super().__init__(in_features, in_features)

    def init_memory(self, num_envs, *, capacity=None, device=None):
        return TensorDict({"first": torch.zeros(num_envs, self.in_features)}, [num_envs])

    def step(self, x, memory, is_init, step_index=None):
        first = torch.where(is_init.unsqueeze(-1), x, memory["first"])
        return first, TensorDict({"first": first}, memory.batch_size)


def agent_of(*overrides: str, encoder: TrajectoryEncoder | None = None, num_envs: int = 20):
    """An agent of random weights, and its environment."""
    torch.manual_seed(0)
    cfg = yamame.compose(*overrides)
    env = build_env(cfg, num_envs=num_envs, seed=3)
    agent = build_agent(cfg, env).eval()
    if encoder is not None:
        agent.trajectory_encoder = encoder
    return agent, env


def recalled(encoder: str, **options):
    agent, env = agent_of("env=tmaze", f"env.length={LENGTH}", *encoder.split())
    return recall_density(agent, record_episodes(agent, env, seed=3), **options)


def test_an_agent_without_memory_recalls_exactly_nothing():
    for curve in recalled("encoder=memoryless"):
        assert curve.past == curve.first == 0.0
        assert curve.effect[curve.lags > 0].tolist() == [0.0] * LENGTH
    assert recalled("encoder=memoryless")[0].effect[0] > 0
    assert all(curve.past > 0 for curve in recalled("encoder=gru"))


def test_a_window_recalls_nothing_beyond_itself():
    curve, _ = recalled("encoder=window encoder.window=3")
    assert (curve.effect > 0).tolist() == [lag < 3 for lag in range(LENGTH + 1)]


def test_who_copies_the_first_timestep_has_a_spike_there_and_nowhere_else():
    settings = ("env=tmaze", f"env.length={LENGTH}", "encoder=memoryless", "encoder.d_model=64")
    agent, env = agent_of(*settings, encoder=CopyFirst(64))
    curve, last = recall_density(agent, record_episodes(agent, env, seed=3))
    assert (curve.first, last.first) == (1.0, 1.0)
    assert last.density.tolist() == [0.0] * LENGTH + [1.0]
    assert last.lags.tolist() == list(range(LENGTH + 1))


def test_replacing_some_timesteps_keeps_the_first_one_and_fills_in_for_the_others():
    whole, _ = recalled("encoder=gru")
    some, last = recalled("encoder=gru", most_steps=3)
    assert last.lags.tolist() == [0, LENGTH // 2, LENGTH]
    assert some.first == pytest.approx(whole.first, abs=0.15)
    naive = [recalled("encoder=gru", most_steps=1)[0].first]
    assert naive == [1.0]


def test_episodes_of_different_lengths_count_up_to_their_ends():
    maze = (
        "env=mazerunner",
        "env.size=5",
        "env.split=all",
        "evaluation.env.split=all",
        "env.num_goals=1",
        "env.time_limit=12",
        "encoder=gru",
    )
    agent, env = agent_of(*maze, num_envs=30)
    episodes = record_episodes(agent, env, seed=3)
    lengths = episodes["mask"].sum((1, 2))
    played = evaluate(agent.policy(), env, seed=3)
    assert lengths.tolist() == sorted(played.lengths.tolist(), reverse=True)
    assert lengths[-1] < lengths[0]
    beyond = episodes.clone()
    beyond["features"][~beyond["mask"].squeeze(-1)] = 7.0
    for ours, theirs in zip(
        recall_density(agent, episodes), recall_density(agent, beyond), strict=True
    ):
        assert ours.effect.tolist() == theirs.effect.tolist()
        assert ours.first == theirs.first


def test_a_recording_is_of_the_episodes_of_an_evaluation_and_of_what_the_agent_does_not_see():
    agent, env = agent_of("env=bandits", "env.num_arms=3", "env.time_limit=9", "encoder=gru")
    _, twin = agent_of("env=bandits", "env.num_arms=3", "env.time_limit=9", "env.observable=true")
    blind, seeing = record_episodes(agent, env, seed=4), record_episodes(agent, twin, seed=4)
    assert "hidden" not in blind.keys()
    assert (seeing.exclude("hidden") == blind).all()
    assert seeing["hidden"].equal(seeing["hidden"][:, :1].expand(-1, 9, -1))


def test_one_episode_alone_is_refused():
    agent, env = agent_of("env=tmaze", f"env.length={LENGTH}", num_envs=1)
    with pytest.raises(ValueError, match="episodes must be at least two, got 1"):
        recall_density(agent, record_episodes(agent, env, seed=3))


def synthetic(num_episodes=40, num_steps=12):
    """Hidden variables, which inputs hold from the middle of an episode on, mixed with noise."""
    torch.manual_seed(1)
    hidden = torch.randn(num_episodes, 1, 2).expand(-1, num_steps, -1)
    noise = torch.randn(num_episodes, num_steps, 6)
    known = (torch.arange(num_steps) >= num_steps // 2).view(1, -1, 1)
    inputs = torch.cat(
        [
            noise,
            torch.where(known, hidden @ torch.randn(2, 2), 0.0),
            known.expand(num_episodes, -1, 1),
        ],
        -1,
    )
    return inputs, hidden, torch.ones(num_episodes, num_steps, dtype=torch.bool)


def test_a_probe_finds_a_linear_variable_where_it_is_and_nothing_in_noise():
    inputs, hidden, mask = synthetic()
    curve = probe(inputs, hidden, mask)
    assert curve.steps.tolist() == list(range(12))
    assert curve.r2[:6].max() < 0.1
    assert curve.r2[6:].min() > 0.95
    assert curve.accuracy is None
    assert probe(inputs[..., :6], hidden, mask).r2.max() < 0.1


def test_a_probe_is_judged_on_other_episodes_than_it_was_fitted_to():
    """Inputs that name the episode tell its variable to whoever has seen the episode, and nobody
    else.
    """
    _, hidden, mask = synthetic()
    names = torch.eye(len(mask)).unsqueeze(1).expand(-1, mask.shape[1], -1)
    assert probe(names, hidden, mask).r2.max() < 0.1


def test_a_probe_of_two_values_tells_its_accuracy_beside_chance():
    inputs, hidden, mask = synthetic()
    curve = probe(inputs, (hidden[..., :1] > 0).float(), mask)
    assert curve.accuracy[6:].min() > 0.8 > curve.accuracy[:6].max()
    rate = float((hidden[:, 0, 0] > 0).double().mean())
    assert curve.chance.tolist() == pytest.approx([max(rate, 1 - rate)] * 12)


def test_a_variable_that_never_changes_has_no_probe_and_few_episodes_are_refused():
    inputs, hidden, mask = synthetic()
    assert probe(inputs, torch.ones_like(hidden), mask) is None
    with pytest.raises(ValueError, match="episodes must be at least 10, got 9"):
        probe(inputs[:9], hidden[:9], mask[:9])
