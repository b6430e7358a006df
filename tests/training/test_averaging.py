"""The average forgets the initial weights at once, goes on exactly, and moves as ever in the long
run.
"""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from yamame.training.averaging import AveragedWeights


def line(value=1.0):
    module = nn.Linear(1, 1, bias=False)
    module.weight.data.fill_(value)
    return module


def walk(network, averaged, updates, seed=0):
    """Makes updates towards random weights; returns the averages after each."""
    generator = torch.Generator().manual_seed(seed)
    seen = []
    for _ in range(updates):
        network.weight.data.copy_(torch.randn(network.weight.shape, generator=generator))
        averaged.update()
        seen.append(averaged.network.weight.detach().clone())
    return seen


@pytest.mark.parametrize("updates", [10, 50, 120])
def test_little_of_the_initial_weights_is_left(updates):
    network = line(1.0)
    averaged = AveragedWeights(network, decay=0.98)
    network.weight.data.zero_()
    for _ in range(updates):
        averaged.update()
    share = averaged.network.weight.item()
    assert share < 1e-4 < 0.98**updates  # what would be left without a correction


def test_a_weight_that_stays_is_its_own_average():
    network = line(3.0)
    averaged = AveragedWeights(network, decay=0.98)
    for _ in range(20):
        averaged.update()
    assert averaged.network.weight.item() == pytest.approx(3.0)


def test_without_decay_it_is_a_copy():
    network = line()
    averaged = AveragedWeights(network, decay=0.0)
    for seen in walk(network, averaged, 3):
        assert seen.isfinite().all()
    assert torch.equal(averaged.network.weight, network.weight)


@pytest.mark.parametrize("updates", [1, 7, 60])
def test_a_saved_average_goes_on_exactly(updates):
    network = nn.Linear(3, 3)
    averaged = AveragedWeights(network, decay=0.9)
    walk(network, averaged, updates)
    twin = copy.deepcopy(network)
    again = AveragedWeights(twin, decay=0.9)
    again.load_state_dict(copy.deepcopy(averaged.state_dict()))
    expected = walk(network, averaged, 3, seed=1)
    assert all(map(torch.equal, walk(twin, again, 3, seed=1), expected))
    anew = AveragedWeights(twin, decay=0.9)
    assert not any(map(torch.equal, walk(twin, anew, 3, seed=1), expected))


def test_weights_alone_go_on_without_correction():
    network = nn.Linear(3, 3)
    averaged = AveragedWeights(network, decay=0.9)
    saved = nn.Linear(3, 3)  # what version 0.2 saved is the state of the copy
    averaged.load_state_dict(saved.state_dict())
    expected = [saved.weight.detach().clone()]
    average = get_ema_multi_avg_fn(0.9)
    generator = torch.Generator().manual_seed(0)
    for seen in walk(network, averaged, 3):
        present = torch.randn(3, 3, generator=generator)
        average(expected, [present], None)
        assert torch.equal(seen, expected[0])


def test_weights_of_several_types_are_averaged():
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double(), nn.Linear(2, 2).bfloat16())
    averaged = AveragedWeights(network, decay=0.9)
    for parameter in network.parameters():
        parameter.data.fill_(1.0)
    for _ in range(20):
        averaged.update()
    for parameter in averaged.network.parameters():
        assert (parameter - 1.0).abs().max() < 0.01


def test_an_update_reads_nothing_back(nothing_read_back):
    network = nn.Linear(3, 3)
    averaged = AveragedWeights(network, decay=0.9)
    with nothing_read_back():
        averaged.update()
