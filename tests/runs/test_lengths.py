"""Checks of lengths before a run: of episodes without a limit, and of the first update."""

import math
from types import SimpleNamespace

import pytest
import torch
import yamame
from torchrl.data import Bounded, Composite, Unbounded
from yamame.checks import SettingError
from yamame.runs.build import check_lengths, longest_episode
from yamame.runs.checks import check_encoder, check_positions
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


def test_a_learned_table_has_a_row_for_every_timestep_that_is_not_cut():
    cfg = yamame.compose("encoder.positions=learned", "encoder.num_positions=8")
    too_long = env_of(counted(8))
    check_positions(cfg, env_of(counted(7)))
    check_positions(cfg, env_of(Unbounded((2, 1), dtype=torch.int64)))
    check_positions(cfg, too_long, max_steps=7)
    with pytest.raises(SettingError, match=r"encoder.num_positions: .* 8 steps, got 8"):
        check_positions(cfg, too_long)


@pytest.mark.parametrize("recipe", ["train", "ppo"])
def test_a_table_that_is_too_small_is_found_before_training(recipe, tmp_path):
    settings = ["env=tmaze", "encoder=transformer"]
    settings += ["encoder.positions=learned", "encoder.num_positions=5"]
    small = ["debug=tiny", "logger=none", f"run.root={tmp_path}", "run.name=short"]
    with pytest.raises(SettingError, match=r"^encoder.num_positions: must exceed"):
        yamame.train(*settings, *small, recipe=recipe)
    assert not (tmp_path / "short" / "summary.json").exists()


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
