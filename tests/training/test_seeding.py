"""One seed decides all random numbers."""

import random

import numpy as np
import pytest
import torch
from yamame.training.seeding import GlobalRNGState, seed_everything


def draw():
    return random.random(), float(np.random.rand()), float(np.random.randn()), float(torch.rand(()))


def test_the_same_seed_gives_the_same_numbers_and_another_seed_does_not():
    seed_everything(1)
    first = draw()
    assert draw() != first
    seed_everything(1)
    assert draw() == first
    seed_everything(2)
    assert all(mine != theirs for mine, theirs in zip(draw(), first, strict=True))


def test_the_state_of_all_generators_is_restored():
    seed_everything(1)
    draw()
    state = GlobalRNGState().state_dict()
    expected = draw()
    seed_everything(2)
    GlobalRNGState().load_state_dict(state)
    assert draw() == expected


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "one", True, None])
def test_a_seed_must_be_an_integer_all_generators_accept(seed):
    with pytest.raises(ValueError, match=r"seed must be an integer from 0 to .*, got"):
        seed_everything(seed)
