"""Value head: maps a context to the value of the state, for policies without action values."""

from collections.abc import Sequence

from torch import nn
from torchrl.modules import MLP

from yamame.actions.spaces import ActionSpace
from yamame.checks import NumLayers, PositiveInt, check_bounds, require


@check_bounds
def make_value_head(
    in_features: PositiveInt,
    *,
    action_space: ActionSpace,
    gammas: Sequence[float],
    num_outputs: int = 1,
    hidden_size: PositiveInt = 128,
    num_layers: NumLayers = 2,
) -> MLP:
    """Build a perceptron ``[*, D] -> [*, G]`` with one value per discount factor.

    It has the arguments of `make_critic`, so that an agent can use it in place of a critic.

    Args:
        in_features: Size D of the context.
        action_space: Not used.
        gammas: The G discount factors.
        num_outputs: Outputs per value, which must be 1.
        hidden_size: Width of the hidden layers.
        num_layers: Number of hidden layers.

    Raises:
        ArgumentError: ``num_outputs`` is not 1, ``gammas`` is empty, or a size is not positive.

    >>> import torch
    >>> from torchrl.data import Categorical
    >>> head = make_value_head(8, action_space=ActionSpace(Categorical(3)), gammas=[0.9, 0.99])
    >>> head(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 5, 2])
    """
    require("make_value_head", "num_outputs", num_outputs, num_outputs == 1, "be 1")
    require("make_value_head", "gammas", list(gammas), len(gammas) > 0, "hold at least one")
    return MLP(
        in_features,
        len(gammas),
        depth=num_layers,
        num_cells=hidden_size,
        activation_class=nn.LeakyReLU,
    )
