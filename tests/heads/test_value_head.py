import pytest
import torch
from torchrl.data import Categorical
from yamame.actions import ActionSpace
from yamame.heads import ValueHead, make_value_head


def test_every_context_and_discount_has_a_value_of_its_own():
    torch.manual_seed(0)
    head = ValueHead(8, num_gammas=3, hidden_size=16)
    context = torch.randn(4, 5, 8)
    values = head(context)
    assert values.shape == (4, 5, 3)
    # Matrix products of other row counts add in another order.
    torch.testing.assert_close(values[2, 1], head(context[2, 1:2])[0], rtol=1e-5, atol=1e-6)
    assert values.unique().numel() == values.numel()


def test_an_agent_may_have_it_for_its_critic():
    head = make_value_head(8, action_space=ActionSpace(Categorical(3)), gammas=[0.9, 0.99], num_outputs=1)
    assert head(torch.zeros(2, 8)).shape == (2, 2)


@pytest.mark.parametrize(
    ("settings", "message"), [({"num_gammas": 0}, "num_gammas.*0"), ({"hidden_size": 0}, "hidden_size.*0")]
)
def test_sizes_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"ValueHead: {message}"):
        ValueHead(8, **settings)


def test_values_of_several_outputs_are_refused():
    with pytest.raises(ValueError, match="make_value_head: num_outputs must be 1, got 33"):
        make_value_head(8, action_space=ActionSpace(Categorical(3)), gammas=[0.9], num_outputs=33)
