"""Actor head: maps a context to the parameters of one policy per discount factor."""

from torch import Tensor, nn
from torchrl.modules import MLP

from yamame.actions.spaces import ActionSpace
from yamame.checks import (
    Activation,
    DropoutRate,
    NumLayers,
    PositiveInt,
    check_bounds,
    require_activation,
)
from yamame.heads.ensemble import check_context, full_precision_output


class ActorHead(nn.Module):
    """Multilayer perceptron with one set of policy parameters per discount (arXiv 2310.09971).

    Args:
        in_features: Size D of the context.
        action_space: Sets the number P of parameters, and turns them into distributions.
        num_gammas: Number G of discount factors, with one policy each.
        hidden_size: Width of the hidden layers.
        num_layers: Number of hidden layers.
        dropout: Probability of dropping a hidden unit in training mode, in [0, 1).
        activation: Activation of the hidden layers (`yamame.checks.Activation`).

    Raises:
        ArgumentError: An argument is out of its range.

    >>> import torch
    >>> from torchrl.data import Categorical
    >>> actor = ActorHead(8, action_space=ActionSpace(Categorical(5)), num_gammas=7)
    >>> params = actor(torch.zeros(16, 8))
    >>> params.shape
    torch.Size([16, 7, 5])
    >>> actor.action_space.distribution(params[:, -1]).sample().shape
    torch.Size([16, 5])
    """

    @check_bounds
    def __init__(
        self,
        in_features: PositiveInt,
        *,
        action_space: ActionSpace,
        num_gammas: PositiveInt,
        hidden_size: PositiveInt = 128,
        num_layers: NumLayers = 2,
        dropout: DropoutRate = 0.0,
        activation: Activation = "leaky_relu",
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.action_space = action_space
        self.num_gammas = num_gammas
        self.mlp = MLP(
            in_features,
            (num_gammas, action_space.num_params),
            depth=num_layers,
            num_cells=hidden_size,
            activation_class=getattr(nn, require_activation("ActorHead", activation)),
            # TorchRL inserts a layer also for 0.0, and none for None.
            dropout=dropout or None,
        )

    def forward(self, context: Tensor) -> Tensor:
        """Map a context ``[*, D]`` to policy parameters ``[*, G, P]``, float32 under autocast."""
        check_context(type(self).__name__, context, self.in_features)
        params = full_precision_output(self.mlp, context)
        return params.unflatten(-1, (self.num_gammas, self.action_space.num_params))
