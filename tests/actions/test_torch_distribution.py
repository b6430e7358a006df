"""The adapter is the project's distribution, as PyTorch and TorchRL see one."""

import pytest
import torch
from torchrl.data import Binary, Bounded, Categorical, MultiCategorical
from torchrl.modules.distributions.utils import has_analytic_entropy
from yamame.actions import ActionSpace, TorchDistribution

SPACES = {
    "discrete": ActionSpace(Categorical(4)),
    "multi_discrete": ActionSpace(MultiCategorical([2, 3])),
    "multi_binary": ActionSpace(Binary(3)),
    "box": ActionSpace(Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 10.0]))),
}


@pytest.mark.parametrize("name", SPACES)
def test_it_says_what_the_action_space_says(name):
    torch.manual_seed(0)
    space = SPACES[name]
    params = torch.randn(5, 2, space.num_params)
    ours, theirs = space.distribution(params), TorchDistribution(params, action_space=space)
    action = ours.sample()
    assert torch.equal(theirs.log_prob(action), ours.log_prob(action))
    assert torch.equal(theirs.entropy(), ours.entropy())
    assert torch.equal(theirs.mode, ours.mode())
    assert has_analytic_entropy(theirs)
    assert theirs.batch_shape == (5, 2)
    assert theirs.event_shape == action.shape[-1:]
    other = TorchDistribution(params + torch.randn_like(params), action_space=space)
    assert not torch.equal(other.log_prob(action), ours.log_prob(action))


@pytest.mark.parametrize("name", SPACES)
def test_samples_have_their_shape_first_and_only_rsample_has_a_gradient(name):
    space = SPACES[name]
    params = torch.randn(5, space.num_params, requires_grad=True)
    distribution = TorchDistribution(params, action_space=space)
    for draw in (distribution.sample, distribution.rsample):
        assert draw().shape == (5, space.encoded_size)
        assert draw((3, 2)).shape == (3, 2, 5, space.encoded_size)
    assert distribution.rsample().requires_grad
    assert not distribution.sample((2,)).requires_grad
    assert not torch.equal(*distribution.sample((2, 100)))


def test_actions_that_are_not_allowed_are_never_drawn():
    mask = torch.tensor([True, False, True, False])
    distribution = TorchDistribution(torch.zeros(200, 4), mask, action_space=SPACES["discrete"])
    assert not distribution.sample()[:, ~mask].any()
    assert distribution.sample()[:, mask].any(0).all()
