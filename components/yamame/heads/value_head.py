"""The value head: context to the value of the state, of policies that need no values of actions."""

from collections.abc import Sequence

from torch import Tensor, nn
from torchrl.modules import MLP

from yamame.actions.spaces import ActionSpace
from yamame.checks import require, require_at_least


class ValueHead(nn.Module):
    """A perceptron with one value for each discount factor as its output.

    Args:
        in_features: D, the size of the context.
        num_gammas: G.
        hidden_size: Width of the hidden layers.
        num_layers: Number of hidden layers.

    Raises:
        ValueError: If a size is not positive.

    >>> import torch
    >>> ValueHead(8, num_gammas=2)(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 5, 2])
    """

    def __init__(
        self, in_features: int, *, num_gammas: int = 1, hidden_size: int = 128, num_layers: int = 2
    ) -> None:
        super().__init__()
        sizes = {"in_features": in_features, "num_gammas": num_gammas}
        require_at_least("ValueHead", 1, **sizes, hidden_size=hidden_size, num_layers=num_layers)
        self.mlp = MLP(
            in_features, num_gammas, depth=num_layers, num_cells=hidden_size, activation_class=nn.LeakyReLU
        )

    def forward(self, context: Tensor) -> Tensor:
        """``context [*, D]`` to values ``[*, G]``."""
        values: Tensor = self.mlp(context)
        return values


def make_value_head(
    in_features: int,
    *,
    action_space: ActionSpace,
    gammas: Sequence[float],
    num_outputs: int = 1,
    hidden_size: int = 128,
    num_layers: int = 2,
) -> ValueHead:
    """A `ValueHead` from what `make_critic` is given, so that an agent may have it for its critic.

    Raises:
        ValueError: If a value is to have more than one output, or a size is not positive.
    """
    require("make_value_head", "num_outputs", num_outputs, num_outputs == 1, "be 1")
    return ValueHead(in_features, num_gammas=len(gammas), hidden_size=hidden_size, num_layers=num_layers)
