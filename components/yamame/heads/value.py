"""The value head: context to the value of the state, of policies that need no values of actions."""

from collections.abc import Sequence

from torch import Tensor, nn

from yamame.actions.spaces import ActionSpace
from yamame.heads.mlp import check_sizes, make_mlp
from yamame.rows import in_row_blocks


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
        check_sizes(
            "ValueHead",
            in_features=in_features,
            num_gammas=num_gammas,
            hidden_size=hidden_size,
            num_layers=num_layers,
        )
        self.mlp = make_mlp(in_features, num_gammas, hidden_size=hidden_size, num_layers=num_layers)

    def forward(self, context: Tensor) -> Tensor:
        """``context [*, D]`` to values ``[*, G]``."""
        values = in_row_blocks(self.mlp, context.reshape(-1, context.shape[-1]))
        return values.view(*context.shape[:-1], values.shape[-1])


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
    if num_outputs != 1:
        raise ValueError(f"make_value_head: num_outputs must be 1, got {num_outputs}")
    return ValueHead(in_features, num_gammas=len(gammas), hidden_size=hidden_size, num_layers=num_layers)
