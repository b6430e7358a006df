import pytest
import torch
from torchrl.data import Categorical
from yamame.actions import ActionSpace
from yamame.heads import make_value_head

SPACE = ActionSpace(Categorical(3))


def test_every_context_and_discount_has_a_value_of_its_own():
    torch.manual_seed(0)
    head = make_value_head(
        8, action_space=SPACE, gammas=[0.9, 0.99, 0.999], num_outputs=1, hidden_size=16
    )
    context = torch.randn(4, 5, 8)
    values = head(context)
    assert values.shape == (4, 5, 3)
    # Matrix products of other row counts add in another order.
    torch.testing.assert_close(values[2, 1], head(context[2, 1:2])[0], rtol=1e-5, atol=1e-6)
    assert values.unique().numel() == values.numel()


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"gammas": []}, r"gammas.*\[\]"), ({"hidden_size": 0}, "hidden_size.*0")],
)
def test_sizes_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"make_value_head: {message}"):
        make_value_head(8, action_space=SPACE, **{"gammas": [0.9], **settings})


def test_values_of_several_outputs_are_refused():
    with pytest.raises(ValueError, match="make_value_head: num_outputs must be 1, got 33"):
        make_value_head(8, action_space=SPACE, gammas=[0.9], num_outputs=33)
