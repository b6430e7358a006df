"""Intervals of evaluations whose episodes share tasks cover what they say."""

import dataclasses

import numpy as np
import pytest
import torch
from yamame.evaluation import EvaluationResult, mean_interval, wilson_interval


def episodes_of(rng, num_tasks, spread):
    """Returns and tasks of 256 episodes of a few tasks, whose mean returns spread about 0."""
    tasks = rng.integers(num_tasks, size=256)
    returns = (spread * rng.normal(size=num_tasks))[tasks] + rng.normal(size=256)
    return torch.from_numpy(returns), torch.from_numpy(tasks)


def result_of(returns, success=None, tasks=None):
    """An evaluation of these episodes, with tasks where the class knows them."""
    ones = torch.ones(len(returns))
    known = {field.name for field in dataclasses.fields(EvaluationResult)}
    more = {"tasks": tasks} if "tasks" in known and tasks is not None else {}
    return EvaluationResult(returns, ones, ones.bool(), returns[:, None], success=success, **more)


@pytest.mark.parametrize(("num_tasks", "spread"), [(14, 1.0), (18, 0.3), (60, 1.0)])
def test_intervals_of_returns_cover_what_they_say_where_episodes_share_tasks(num_tasks, spread):
    rng = np.random.default_rng(0)
    covered, covered_over_episodes = 0, 0
    for _ in range(400):
        returns, tasks = episodes_of(rng, num_tasks, spread)
        summary = result_of(returns, tasks=tasks).summary()
        covered += summary["return_low"] <= 0.0 <= summary["return_high"]
        low, high = mean_interval(returns)
        covered_over_episodes += low <= 0.0 <= high
    assert covered / 400 == pytest.approx(0.95, abs=0.03)  # three standard errors of 400 trials
    assert covered_over_episodes / 400 < 0.92


@pytest.mark.parametrize(
    ("num_tasks", "a", "b"), [(18, 1.0, 1.0), (14, 0.9, 0.1), (18, 9.0, 1.0), (60, 2.0, 0.2)]
)
def test_intervals_of_success_cover_what_they_say_where_episodes_share_tasks(num_tasks, a, b):
    rng = np.random.default_rng(0)
    covered, covered_over_episodes = 0, 0
    for _ in range(400):
        tasks = rng.integers(num_tasks, size=256)
        success = torch.from_numpy(rng.random(256) < rng.beta(a, b, num_tasks)[tasks])
        summary = result_of(success.double(), success, torch.from_numpy(tasks)).summary()
        covered += summary["success_low"] <= a / (a + b) <= summary["success_high"]
        low, high = wilson_interval(int(success.sum()), 256)
        covered_over_episodes += low <= a / (a + b) <= high
    assert covered / 400 >= 0.91
    assert covered_over_episodes / 400 < 0.88


def test_intervals_over_tasks_are_those_over_episodes_where_every_episode_is_another_task():
    rng = np.random.default_rng(0)
    returns, success = torch.from_numpy(rng.normal(size=64)), torch.from_numpy(rng.random(64) < 0.3)
    alone = result_of(returns, success).summary()
    apart = result_of(returns, success, torch.arange(64) * 7).summary()
    assert apart.pop("num_tasks", None) == 64
    assert apart == alone
    # Equal tasks give other intervals, and the same means.
    shared = result_of(returns, success, torch.arange(64) // 4).summary()
    assert shared["return_low"] != alone["return_low"]
    assert shared["success_low"] != alone["success_low"]
    assert shared["return_mean"] == alone["return_mean"]
