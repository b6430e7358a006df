"""Distributions of actions have the interface that PyTorch and TorchRL expect."""

import pytest
import torch
from torchrl.data import Binary, Bounded, Categorical, MultiCategorical
from torchrl.modules.distributions.utils import has_analytic_entropy
from yamame.actions import ActionSpace

SPACES = {
    "discrete": ActionSpace(Categorical(4)),
    "multi_discrete": ActionSpace(MultiCategorical([2, 3])),
    "multi_binary": ActionSpace(Binary(3)),
    "box": ActionSpace(Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 10.0]))),
}


@pytest.mark.parametrize("name", SPACES)
def test_what_torchrl_asks_for_is_there(name):
    torch.manual_seed(0)
    space = SPACES[name]
    params = torch.randn(5, 2, space.num_params)
    distribution = space.distribution(params)
    action = distribution.sample()
    assert torch.equal(distribution.deterministic_sample, distribution.mode)
    assert has_analytic_entropy(distribution)
    assert distribution.batch_shape == (5, 2)
    assert distribution.event_shape == action.shape[-1:]
    other = space.distribution(params + torch.randn_like(params))
    assert not torch.equal(other.log_prob(action), distribution.log_prob(action))


@pytest.mark.parametrize("name", SPACES)
def test_samples_have_their_shape_first_and_only_rsample_has_a_gradient(name):
    space = SPACES[name]
    params = torch.randn(5, space.num_params, requires_grad=True)
    distribution = space.distribution(params)
    for draw in (distribution.sample, distribution.rsample):
        assert draw().shape == (5, space.encoded_size)
        assert draw((3, 2)).shape == (3, 2, 5, space.encoded_size)
    assert distribution.rsample().requires_grad
    assert not distribution.sample((2,)).requires_grad
    assert not torch.equal(*distribution.sample((2, 100)))


def test_actions_that_are_not_allowed_are_never_drawn():
    mask = torch.tensor([True, False, True, False])
    distribution = SPACES["discrete"].distribution(torch.zeros(200, 4), mask)
    assert not distribution.sample()[:, ~mask].any()
    assert distribution.sample()[:, mask].any(0).all()
