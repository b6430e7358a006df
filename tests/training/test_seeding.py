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


@pytest.mark.parametrize("device", ["torch_cuda", "torch_xpu", "torch_mps"])
def test_the_state_of_a_device_that_is_missing_is_left_out(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    seed_everything(1)
    state = GlobalRNGState().state_dict()
    state[device] = (
        torch.zeros(16, dtype=torch.uint8) if device == "torch_mps" else [torch.zeros(16)]
    )
    expected, refused = draw(), False
    try:
        GlobalRNGState().load_state_dict(state)
    except RuntimeError:
        refused = True
    assert not refused
    assert draw() == expected


def test_states_of_more_gpus_than_there_are_are_left_out(monkeypatch):
    restored = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", restored.extend)
    state = GlobalRNGState().state_dict() | {"torch_cuda": [torch.full((16,), n) for n in range(4)]}
    GlobalRNGState().load_state_dict(state)
    assert [int(one[0]) for one in restored] == [0, 1]
