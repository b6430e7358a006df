import pytest
import torch
from torchrl.data import Bounded, Categorical
from yamame.actions import ActionSpace
from yamame.heads import ActionInputCritic, ActorHead, make_critic

BOX = ActionSpace(Bounded(-torch.ones(2), torch.ones(2)))


@pytest.mark.parametrize("space", [ActionSpace(Categorical(5)), BOX])
@pytest.mark.parametrize("batch", [(), (4,), (3, 4)])
def test_every_gamma_has_its_own_parameters(space, batch):
    actor = ActorHead(8, action_space=space, num_gammas=3, hidden_size=16)
    params = actor(torch.randn(*batch, 8))
    assert params.shape == (*batch, 3, space.num_params)
    assert space.distribution(params).sample().shape == (*batch, 3, space.encoded_size)


def test_the_head_is_a_plain_perceptron():
    actor = ActorHead(
        8, action_space=ActionSpace(Categorical(5)), num_gammas=2, hidden_size=16, num_layers=3
    )
    context = torch.randn(4, 8)
    hidden = context
    *inner, last = (layer for layer in actor.modules() if isinstance(layer, torch.nn.Linear))
    assert [layer.out_features for layer in inner] == [16, 16, 16]
    for layer in inner:
        hidden = torch.nn.functional.leaky_relu(layer(hidden))
    torch.testing.assert_close(actor(context), last(hidden).view(4, 2, 5))


def test_a_policy_does_not_depend_on_the_other_gammas():
    actor = ActorHead(8, action_space=ActionSpace(Categorical(5)), num_gammas=4, hidden_size=16)
    context = torch.randn(6, 8)
    before = actor(context)
    last = actor.mlp[-1]
    order = [2, 0, 1, 3]
    with torch.no_grad():
        for parameter in (last.weight, last.bias):
            by_gamma = parameter.unflatten(0, (4, 5))
            by_gamma.copy_(by_gamma[order].clone())
    after = actor(context)
    assert torch.equal(after[:, 3], before[:, 3])
    assert torch.equal(after, before[:, order])
    assert not torch.equal(after[:, 0], before[:, 0])


def test_dropout_acts_in_training_mode_only():
    actor = ActorHead(8, action_space=ActionSpace(Categorical(5)), num_gammas=1, dropout=0.5)
    context = torch.randn(4, 8)
    assert not torch.equal(actor(context), actor(context))
    actor.eval()
    assert torch.equal(actor(context), actor(context))


@pytest.mark.parametrize("name", ["relu", "gelu", "mish"])
def test_activations_are_options_of_the_heads(name):
    """By hand, where another activation gives other numbers."""
    function = getattr(torch.nn.functional, name)
    space = ActionSpace(Categorical(5))
    context = torch.randn(4, 8)
    actor = ActorHead(8, action_space=space, num_gammas=1, num_layers=1, activation=name)
    first, last = (layer for layer in actor.mlp if isinstance(layer, torch.nn.Linear))
    torch.testing.assert_close(actor(context)[:, 0], last(function(first(context))))
    other = last(torch.nn.functional.leaky_relu(first(context)))
    assert not torch.allclose(actor(context)[:, 0], other, atol=1e-3)

    critic = make_critic(8, action_space=space, gammas=[0.9], num_layers=1, activation=name)
    first, last = critic.ensemble.layers[0], critic.ensemble.layers[-1]
    hidden = function(first(context.expand(2, -1, -1)))
    by_hand = last(hidden).transpose(0, 1).unflatten(-1, (5, 1, 1))
    torch.testing.assert_close(critic(context), by_hand)


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match=r"ActorHead: activation .*'tanh'"):
        ActorHead(8, action_space=BOX, num_gammas=1, activation="tanh")


def test_the_feature_of_a_discount_factor_may_be_that_of_float32():
    exact, rounded = (
        ActionInputCritic(8, action_size=2, gammas=[0.5, 0.99995], round_gammas=flag).gamma_feature
        for flag in (False, True)
    )
    assert exact[0] == rounded[0]
    difference = float((exact[1] - rounded[1]).abs())
    # One unit of float32 beside 1, 6e-8, is a thousandth of 1 - gamma.
    assert 1e-5 < difference < 1e-3


def test_a_context_of_another_size_is_refused():
    actor = ActorHead(8, action_space=BOX, num_gammas=2)
    with pytest.raises(ValueError, match=r"end in 8, the in_features .*got \(3, 9\)"):
        actor(torch.zeros(3, 9))
