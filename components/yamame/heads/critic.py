"""Critics: ensembles of C value functions as one module with batched weights.

Outputs are raw: a `ValueRepresentation` turns their last dimension O into values. The last two
dimensions are always G (discount factors) and O (outputs per value).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from yamame.actions.spaces import ActionSpace
from yamame.checks import require, require_at_least
from yamame.heads.ensemble import EnsembleMLP

_ACTION_LIMIT = 0.999


class StateActionCritic(nn.Module):
    """Values of every discrete action at once, so that expectations over actions are exact.

    Args:
        in_features: D, the size of the context.
        num_actions: A.
        num_gammas: G.
        num_critics: C, the members of the ensemble (REDQ, arXiv 2101.05982), independently
            initialised.
        num_outputs: O, outputs per value.
        hidden_size: width of the hidden layers.
        num_layers: number of hidden layers.

    Raises:
        ValueError: if a size is not positive.

    >>> critic = StateActionCritic(8, num_actions=5, num_gammas=7)
    >>> critic(torch.zeros(3, 2, 8)).shape
    torch.Size([3, 2, 4, 5, 7, 1])
    """

    def __init__(
        self,
        in_features: int,
        *,
        num_actions: int,
        num_gammas: int,
        num_critics: int = 4,
        num_outputs: int = 1,
        hidden_size: int = 128,
        num_layers: int = 2,
    ) -> None:
        super().__init__()
        sizes = {"num_actions": num_actions, "num_gammas": num_gammas, "num_outputs": num_outputs}
        require_at_least("StateActionCritic", 1, **sizes, num_critics=num_critics)
        self.num_critics = num_critics
        self.out_shape = (num_actions, num_gammas, num_outputs)
        self.ensemble = EnsembleMLP(
            in_features,
            math.prod(self.out_shape),
            num_members=num_critics,
            hidden_size=hidden_size,
            num_layers=num_layers,
        )

    def forward(self, context: Tensor) -> Tensor:
        """`context [*, D]` to raw values `[*, C, A, G, O]`."""
        return self.ensemble(context).unflatten(-1, self.out_shape)


class ActionInputCritic(nn.Module):
    """Values of one given action for each discount factor, for actions that cannot be enumerated.

    Each member reads the concatenation of the context, a feature of the discount factor,
    `symlog(1 / (1 - gamma)) = log(1 + 1 / (1 - gamma))`, and the encoded action. Actions are
    clipped to +-0.999 in value, not in gradient: clipping the gradient, too, would cut
    straight-through actions (which lie at 1) off the actor.

    Args:
        in_features: D, the size of the context.
        action_size: A, the size of an encoded action.
        gammas: the G discount factors, each in [0, 1).
        num_critics, num_outputs, hidden_size, num_layers: as for `StateActionCritic`.

    Raises:
        ValueError: if a size is not positive or a discount factor out of range.

    >>> critic = ActionInputCritic(8, action_size=2, gammas=[0.9, 0.99])
    >>> critic(torch.zeros(3, 8), torch.zeros(3, 2, 2)).shape
    torch.Size([3, 4, 2, 1])
    """

    gamma_feature: Tensor

    def __init__(
        self,
        in_features: int,
        *,
        action_size: int,
        gammas: Sequence[float],
        num_critics: int = 4,
        num_outputs: int = 1,
        hidden_size: int = 128,
        num_layers: int = 2,
    ) -> None:
        super().__init__()
        sizes = {"in_features": in_features, "action_size": action_size, "num_critics": num_critics}
        require_at_least("ActionInputCritic", 1, **sizes)
        self.num_critics = num_critics
        in_range = len(gammas) > 0 and all(0.0 <= gamma < 1.0 for gamma in gammas)
        require("ActionInputCritic", "gammas", list(gammas), in_range, "be in [0, 1), at least one")
        feature = [math.log1p(1.0 / (1.0 - gamma)) for gamma in gammas]
        self.register_buffer("gamma_feature", torch.tensor(feature).unsqueeze(-1), persistent=False)
        self.ensemble = EnsembleMLP(
            in_features + 1 + action_size,
            num_outputs,
            num_members=num_critics,
            hidden_size=hidden_size,
            num_layers=num_layers,
        )

    def forward(self, context: Tensor, action: Tensor) -> Tensor:
        """`context [*, D]` and encoded `action [*, G, A]` to raw values `[*, C, G, O]`.

        The action may have further leading dimensions (several samples for one context): so has the
        output.
        """
        each = action.shape[:-1]  # [*, G]
        action = action + (action.clamp(-_ACTION_LIMIT, _ACTION_LIMIT) - action).detach()
        context = context.unsqueeze(-2).expand(*each, context.shape[-1])
        feature = self.gamma_feature.to(action.dtype).expand(*each, 1)
        return self.ensemble(torch.cat((context, feature, action), -1)).transpose(-2, -3)


def make_critic(
    in_features: int,
    *,
    action_space: ActionSpace,
    gammas: Sequence[float],
    num_critics: int = 4,
    num_outputs: int = 1,
    hidden_size: int = 128,
    num_layers: int = 2,
) -> StateActionCritic | ActionInputCritic | None:
    """The critic of an action space: `StateActionCritic` if it is enumerable, else
    `ActionInputCritic`.

    None if ``num_critics`` is 0: an agent that only clones behaviour has no critic.

    Raises:
        ValueError: If ``num_critics`` is negative, or as the critics do.
    """
    require_at_least("make_critic", 0, num_critics=num_critics)
    if num_critics == 0:
        return None
    sizes = {"num_outputs": num_outputs, "hidden_size": hidden_size, "num_layers": num_layers}
    num_actions = action_space.encoded_size
    if action_space.enumerable:
        return StateActionCritic(
            in_features,
            num_actions=num_actions,
            num_gammas=len(gammas),
            num_critics=num_critics,
            **sizes,
        )
    return ActionInputCritic(
        in_features, action_size=num_actions, gammas=gammas, num_critics=num_critics, **sizes
    )
