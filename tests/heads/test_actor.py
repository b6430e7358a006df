import pytest
import torch
from torchrl.data import Bounded, Categorical
from yamame.actions import ActionSpace
from yamame.heads import ActorHead

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
