"""Flat configurations."""

from omegaconf import OmegaConf
from yamame.files.config import flatten

CONFIG = {
    "seed": 1,
    "budget": {"minutes": 5},
    "agent": {"gammas": [0.9], "parts": [{"a": 1}], "none": {}},
}


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
