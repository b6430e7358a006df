"""The actor head: context to the parameters of one policy per discount factor."""

from torch import Tensor, nn
from torchrl.modules import MLP

from yamame.actions.spaces import ActionSpace
from yamame.checks import require, require_at_least
from yamame.heads.ensemble import full_precision_output


class ActorHead(nn.Module):
    """A perceptron with `num_gammas` sets of policy parameters as its output (arXiv 2310.09971).

    Args:
        in_features: D, the size of the context.
        action_space: gives the number of parameters P and, later, the distributions.
        num_gammas: G, one policy each.
        hidden_size: width of the hidden layers.
        num_layers: number of hidden layers.
        dropout: probability of dropping a hidden unit in training mode.

    Raises:
        ValueError: if a size is not positive or `dropout` is out of range.

    >>> import torch
    >>> from torchrl.data import Categorical
    >>> actor = ActorHead(8, action_space=ActionSpace(Categorical(5)), num_gammas=7)
    >>> params = actor(torch.zeros(16, 8))
    >>> params.shape
    torch.Size([16, 7, 5])
    >>> actor.action_space.distribution(params[:, -1]).sample().shape
    torch.Size([16, 5])
    """

    def __init__(
        self,
        in_features: int,
        *,
        action_space: ActionSpace,
        num_gammas: int,
        hidden_size: int = 128,
        num_layers: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = {"in_features": in_features, "num_gammas": num_gammas}
        require_at_least("ActorHead", 1, **sizes, hidden_size=hidden_size, num_layers=num_layers)
        require("ActorHead", "dropout", dropout, 0.0 <= dropout < 1.0, "be in [0, 1)")
        self.action_space = action_space
        self.num_gammas = num_gammas
        self.mlp = MLP(
            in_features,
            (num_gammas, action_space.num_params),
            depth=num_layers,
            num_cells=hidden_size,
            activation_class=nn.LeakyReLU,
            dropout=dropout or None,
        )

    def forward(self, context: Tensor) -> Tensor:
        """`context [*, D]` to policy parameters `[*, G, P]`, float32 also under autocast."""
        params = full_precision_output(self.mlp, context)
        return params.unflatten(-1, (self.num_gammas, self.action_space.num_params))
