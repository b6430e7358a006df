"""Checks of lengths before a run: of episodes without a limit, and of the first update."""

import math
from types import SimpleNamespace

import pytest
import torch
import yamame
from torchrl.data import Bounded, Composite, Unbounded
from yamame.checks import SettingError
from yamame.runs.build import check_lengths, longest_episode
from yamame.runs.checks import check_encoder
from yamame.training import OverfittingRegulator


def env_of(spec):
    return SimpleNamespace(observation_spec=Composite(step_index=spec, shape=(2,)))


def counted(high):
    return Bounded(0, high, shape=(2, 1), dtype=torch.int64)


def test_an_environment_without_a_limit_has_no_longest_episode():
    unlimited = env_of(Unbounded((2, 1), dtype=torch.int64))
    assert longest_episode(unlimited) is None
    assert longest_episode(env_of(counted(7))) == 7
    encoder = SimpleNamespace(num_positions=8)
    cfg = SimpleNamespace(device="cpu")
    check_encoder(cfg, encoder, unlimited)
    check_encoder(cfg, encoder, env_of(counted(7)))
    with pytest.raises(SettingError, match="8 steps"):
        check_encoder(cfg, encoder, env_of(counted(8)))


@pytest.mark.parametrize("first", [0.25, 1.0])
def test_a_budget_holds_the_first_update_of_a_regulated_run(first):
    per_step = 0.01
    least = math.ceil(1 / (per_step * first))
    regulator = OverfittingRegulator(first=first)
    env = env_of(counted(7))

    def check(steps, regulator):
        schedule = f"schedule.updates_per_step={per_step}"
        cfg = yamame.compose(schedule, f"budget.env_steps={steps}", "schedule.learning_starts=0")
        check_lengths(cfg, env, regulator)

    check(least, regulator)
    with pytest.raises(SettingError, match=rf"budget.env_steps: must be at least {least}\b"):
        check(least - 1, regulator)
    check(100, None)
    # Custom regulators may allow no update at first.
    check(1, SimpleNamespace(factor=0.0))
