"""Discount factors whose effective horizons follow the length of an episode."""

import itertools
import math

import pytest
import torch
from torchrl.data import Composite
from yamame.agent.assembly import learned_gammas
from yamame.agent.discounts import discount_horizon, follow_horizon, resolve_gammas
from yamame.checks import SettingError
from yamame.transforms.context import context_specs

HORIZONS = sorted({9, 33, 499, *(d * 10**p for p in range(6) for d in (1, 2, 5)), 10**6})


def reaches(gammas: list[float]) -> list[float]:
    """The effective horizons of discount factors."""
    return [1.0 / (1.0 - gamma) for gamma in gammas]


def is_ladder(gammas: list[float], horizon: int) -> bool:
    """Whether effective horizons are geometric from 10 to three episodes, but for rounding."""
    first, *spaced = reaches(gammas)
    farthest = 3 * max(horizon, 10)
    ends = math.isclose(spaced[0], 10, rel_tol=0.06) and math.isclose(
        spaced[-1], farthest, rel_tol=0.06
    )
    steps = [math.log(after / before) for before, after in itertools.pairwise(spaced)]
    mean = math.log(farthest / 10) / 3
    # Two significant digits leave an error of at most a twentieth at either end of a step.
    return first < 2 and ends and all(abs(step - mean) < 0.11 for step in steps)


@pytest.mark.parametrize("horizon", HORIZONS)
def test_effective_horizons_are_geometric_whatever_the_length_of_an_episode(horizon):
    gammas = follow_horizon(horizon)
    assert is_ladder(gammas, horizon)
    assert len(gammas) == 5

    # The loss computes in float32, where they must still increase and stay below 1.
    stored = torch.tensor(gammas, dtype=torch.float32)
    assert bool((stored.diff() > 0).all())
    assert float(stored.min()) > 0
    assert float(stored.max()) < 1
    last = 1 / (1 - float(stored[-1].double()))
    assert math.isclose(last, reaches(gammas)[-1], rel_tol=0.1)


def test_a_fixed_list_is_no_ladder_for_another_horizon():
    fixed = follow_horizon(100)
    assert is_ladder(fixed, 100)
    assert not any(is_ladder(fixed, horizon) for horizon in HORIZONS if abs(horizon - 100) > 90)


def test_numbers_read_well_and_short_episodes_count_as_ten_steps():
    assert follow_horizon(100) == [0.1, 0.9, 0.968, 0.99, 0.9967]
    assert follow_horizon(10_000)[-1] == 0.999967
    assert follow_horizon(1) == follow_horizon(10) != follow_horizon(20)
    assert follow_horizon(10**9) == follow_horizon(10**6)
    with pytest.raises(ValueError, match="horizon"):
        follow_horizon(0)


@pytest.mark.parametrize(("limit", "horizon"), [(7, 7), (10_000, 10_000), (None, 100)])
def test_the_horizon_is_the_bound_of_the_steps_and_a_hundred_without(limit, horizon):
    specs = context_specs([3], encoded_size=2, horizon=limit)
    assert discount_horizon(Composite(specs, batch_size=[3])) == horizon
    assert discount_horizon(Composite({}, batch_size=[3])) == 100


def test_a_list_stays_and_auto_needs_a_horizon():
    config = {"agent": {"gammas": [0.5, 0.99], "multi_gamma": True}}
    assert learned_gammas(config) == learned_gammas(config, 7) == resolve_gammas([0.5, 0.99])
    config["agent"]["gammas"] = "auto"
    assert learned_gammas(config, 100) == follow_horizon(100)
    with pytest.raises(SettingError, match=r"agent\.gammas: must .*'auto'"):
        learned_gammas(config)
    config["agent"]["multi_gamma"] = False
    assert learned_gammas(config, 100) == [0.9967]
