"""Averaged sigma-reparametrised matrices have the spectral norm of theirs, wherever they act."""

import copy

import torch
from torch import nn
from yamame.evaluation.held_out import fresh_copy
from yamame.files.checkpoint import Checkpointer
from yamame.training.averaging import AveragedWeights
from yamame.trajectory import SigmaReparamLinear

WITHIN = 0.01
"""Of the factor gamma: float32 alone would leave less than 1e-5."""


class Network(nn.Module):
    """Two layers whose weights are moved by hand."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([SigmaReparamLinear(24, 32), SigmaReparamLinear(32, 32)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def prepare_to_act(self):
        for layer in self.layers:
            layer.prepare_to_act()


def factors(network):
    """The spectral norm of what each layer multiplies by in evaluation mode, in units of gamma."""
    found = []
    for layer in network.layers:
        with torch.no_grad():
            weight = (layer(torch.eye(layer.weight.shape[1])) - layer.bias).T
        found.append(torch.linalg.matrix_norm(weight.double(), ord=2) / layer.gamma.detach())
    return torch.stack(found)


@torch.no_grad()
def train(network, averaged, updates):
    """Moves every weight towards another matrix, so that other directions come out on top."""
    aims = [torch.randn_like(layer.weight) for layer in network.layers]
    for _ in range(updates):
        network.train()(torch.randn(4, 24))
        for layer, aim in zip(network.layers, aims, strict=True):
            layer.weight.lerp_(aim, 0.02)
            layer.gamma.mul_(1.01)
        averaged.update()


def trained(updates=40):
    torch.manual_seed(0)
    network = Network()
    averaged = AveragedWeights(network, decay=0.95)
    train(network, averaged, updates)
    return network, averaged


def test_an_average_acts_with_the_spectral_norm_that_its_gammas_say():
    network, averaged = trained()
    for _ in range(5):
        acting = fresh_copy(averaged.network)
        assert (factors(acting) - 1.0).abs().max() < WITHIN
        train(network, averaged, 10)
    # With the vectors of the latest weights, which a network of its own has, it is beyond that.
    plain = copy.deepcopy(averaged.network)
    for layer, latest in zip(plain.layers, network.layers, strict=True):
        layer.is_average = False
        layer.u.copy_(latest.u)
        layer.v.copy_(latest.v)
    assert (factors(fresh_copy(plain)) - 1.0).abs().max() > 2 * WITHIN


def test_what_is_saved_acts_as_the_average_does(tmp_path):
    network, averaged = trained()
    acting = fresh_copy(averaged.network)
    Checkpointer(tmp_path).save({"averaged": averaged}, step=1)
    loaded = AveragedWeights(Network(), decay=0.95)
    Checkpointer(tmp_path).load({"averaged": loaded})
    x = torch.randn(3, 24)
    with torch.no_grad():
        expected = acting(x)
        assert torch.equal(fresh_copy(loaded.network)(x), expected)
        assert not torch.allclose(fresh_copy(network)(x), expected, rtol=0.01)


def test_the_network_that_is_followed_stays_as_it_is():
    network, averaged = trained()
    state = copy.deepcopy(network.state_dict())
    fresh_copy(averaged.network)
    averaged.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    alone, _ = trained()
    assert all(torch.equal(value, state[name]) for name, value in alone.state_dict().items())


def test_what_is_saved_acts_in_a_network_that_is_no_average():
    """A checkpoint is deployed without an evaluation before; its singular vectors must be those of
    its weights.
    """
    _, averaged = trained()
    state = averaged.state_dict()["network"]
    plain = Network()
    plain.load_state_dict(state)
    assert (factors(fresh_copy(plain)) - 1.0).abs().max() < WITHIN

    # With other vectors, as those of the initial weights, which the copy began with, it is far off.
    other = {
        name: value for name, value in Network().state_dict().items() if name.endswith((".u", ".v"))
    }
    plain.load_state_dict({**state, **other})
    assert (factors(fresh_copy(plain)) - 1.0).abs().max() > 2 * WITHIN


def test_an_average_is_right_without_any_preparation():
    network, averaged = trained()
    for prepares in (False, True, False):
        if prepares:
            averaged.network.prepare_to_act()
        assert (factors(averaged.network) - 1.0).abs().max() < WITHIN
        with torch.no_grad():
            found = averaged.network(torch.ones(1, 24))
        with torch.enable_grad():
            torch.testing.assert_close(averaged.network(torch.ones(1, 24)), found)
        before = copy.deepcopy(averaged.network.layers[0].weight)
        train(network, averaged, 10)  # what was prepared before is that of other weights
        assert not torch.allclose(averaged.network.layers[0].weight, before)
        assert (factors(averaged.network) - 1.0).abs().max() < WITHIN
        with torch.no_grad():
            expected = fresh_copy(averaged.network)(torch.ones(1, 24))
            torch.testing.assert_close(averaged.network(torch.ones(1, 24)), expected)


def test_a_replayed_update_leaves_no_prepared_weights():
    """A replay moves the average without running `update`; whoever replays it marks the copy."""
    network, averaged = trained()
    with torch.no_grad():
        averaged.network.prepare_to_act()
        for average, weight in zip(
            averaged.network.parameters(), network.parameters(), strict=True
        ):
            average.copy_(2.0 * weight + 0.1)
        averaged.mark_stale()
        found = averaged.network(torch.ones(1, 24))
        torch.testing.assert_close(found, fresh_copy(averaged.network)(torch.ones(1, 24)))
    assert (factors(averaged.network) - 1.0).abs().max() < WITHIN
