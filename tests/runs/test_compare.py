"""Flat configurations and what may change on resume."""

import pytest
from omegaconf import OmegaConf
from yamame.runs import UsageError, compare_config, flatten

CONFIG = {"seed": 1, "budget": {"minutes": 5}, "agent": {"gammas": [0.9], "parts": [{"a": 1}], "none": {}}}


def test_flattening_gives_the_same_for_plain_and_omegaconf_containers():
    expected = {
        "seed": 1,
        "budget.minutes": 5,
        "agent.gammas": [0.9],
        "agent.parts.0.a": 1,
        "agent.none": {},
    }
    assert flatten(CONFIG) == expected
    assert flatten(OmegaConf.create(CONFIG)) == expected


def test_every_differing_key_is_named_with_both_values():
    current = {
        "seed": 2,
        "budget": {"minutes": 5},
        "agent": {"gammas": [0.9], "parts": [{"a": 1}], "new": "x"},
    }
    with pytest.raises(UsageError) as raised:
        compare_config(CONFIG, current)
    message = str(raised.value)
    for part in ("seed: 1 -> 2", "agent.none: {} -> '(absent)'", "agent.new: '(absent)' -> 'x'"):
        assert part in message
    assert "gammas" not in message


def test_budget_logger_and_resume_may_change_but_no_other_key_that_begins_alike():
    compare_config(CONFIG, {**CONFIG, "budget": {"minutes": 9}, "logger": {"a": 1}, "resume": True})
    with pytest.raises(UsageError, match="budgets"):
        compare_config(CONFIG, {**CONFIG, "budgets": 1})
    with pytest.raises(UsageError, match=r"budget\.minutes: 5 -> 9"):
        compare_config(CONFIG, {**CONFIG, "budget": {"minutes": 9}}, ignore=())
