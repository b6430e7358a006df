"""The value head: context to the value of the state, of policies that need no values of actions."""

from collections.abc import Sequence

from torch import nn
from torchrl.modules import MLP

from yamame.actions.spaces import ActionSpace
from yamame.checks import require, require_at_least


def make_value_head(
    in_features: int,
    *,
    action_space: ActionSpace,
    gammas: Sequence[float],
    num_outputs: int = 1,
    hidden_size: int = 128,
    num_layers: int = 2,
) -> MLP:
    """A perceptron ``[*, D] -> [*, G]`` with one value for each discount factor as its output.

    It takes what `make_critic` takes, so that an agent may have it for its critic.

    Args:
        in_features: D, the size of the context.
        action_space: Not used.
        gammas: The G discount factors.
        num_outputs: Outputs per value: one.
        hidden_size: Width of the hidden layers.
        num_layers: Number of hidden layers.

    Raises:
        ValueError: If a value is to have more than one output, or a size is not positive.

    >>> import torch
    >>> from torchrl.data import Categorical
    >>> head = make_value_head(8, action_space=ActionSpace(Categorical(3)), gammas=[0.9, 0.99])
    >>> head(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 5, 2])
    """
    owner, num_gammas = "make_value_head", len(gammas)
    require(owner, "num_outputs", num_outputs, num_outputs == 1, "be 1")
    sizes = {"in_features": in_features, "num_gammas": num_gammas}
    require_at_least(owner, 1, **sizes, hidden_size=hidden_size, num_layers=num_layers)
    return MLP(
        in_features,
        num_gammas,
        depth=num_layers,
        num_cells=hidden_size,
        activation_class=nn.LeakyReLU,
    )
