"""Critics: ensembles of C value functions as one module with batched weights.

Outputs are raw: a `Returns` turns their last dimension O into values. The last two dimensions are always
G (discount factors) and O (outputs per value).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from yamame.actions.spaces import ActionSpace
from yamame.heads.mlp import EnsembleMLP, check_sizes
from yamame.rows import in_row_blocks

_ACTION_LIMIT = 0.999


class StateActionCritic(nn.Module):
    """Values of every discrete action at once, so that expectations over actions are exact.

    Args:
        in_features: D, the size of the context.
        num_actions: A.
        num_gammas: G.
        num_critics: C, the members of the ensemble (REDQ, arXiv 2101.05982), independently initialised.
        num_outputs: O, outputs per value.
        hidden_size: H, width of the hidden layers.
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
        check_sizes(
            "StateActionCritic",
            in_features=in_features,
            num_actions=num_actions,
            num_gammas=num_gammas,
            num_critics=num_critics,
            num_outputs=num_outputs,
            hidden_size=hidden_size,
            num_layers=num_layers,
        )
        self._out_shape = (num_critics, num_actions, num_gammas, num_outputs)
        self.ensemble = EnsembleMLP(
            in_features,
            num_actions * num_gammas * num_outputs,
            num_members=num_critics,
            hidden_size=hidden_size,
            num_layers=num_layers,
        )

    def forward(self, context: Tensor) -> Tensor:
        """`context [*, D]` to raw values `[*, C, A, G, O]`."""
        values = in_row_blocks(self._values, context.reshape(-1, context.shape[-1]))
        return values.reshape(*context.shape[:-1], *self._out_shape)

    def _values(self, context: Tensor) -> Tensor:
        """`[N, D]` to `[N, C, A * G * O]`."""
        bias = self.ensemble.first_bias.unsqueeze(1)
        return self.ensemble(torch.addmm(bias, self.ensemble.first_weight, context.t())).permute(2, 0, 1)


class ActionInputCritic(nn.Module):
    """Values of one given action for each discount factor, for actions that cannot be enumerated.

    Each member reads the concatenation of the context, a feature of the discount factor,
    `symlog(1 / (1 - gamma)) = log(1 + 1 / (1 - gamma))`, and the encoded action. The context's share of the
    first layer is computed once for all discount factors. Actions are clipped to +-0.999 in value, not in
    gradient: clipping the gradient, too, would cut straight-through actions (which lie at 1) off the actor.

    Args:
        in_features: D, the size of the context.
        action_size: A, the size of an encoded action.
        gammas: the G discount factors, each in [0, 1).
        num_critics: C, the members of the ensemble (REDQ, arXiv 2101.05982), independently initialised.
        num_outputs: O, outputs per value.
        hidden_size: H, width of the hidden layers.
        num_layers: number of hidden layers.

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
        check_sizes(
            "ActionInputCritic",
            in_features=in_features,
            action_size=action_size,
            num_critics=num_critics,
            num_outputs=num_outputs,
            hidden_size=hidden_size,
            num_layers=num_layers,
        )
        if not len(gammas) or not all(0.0 <= gamma < 1.0 for gamma in gammas):
            raise ValueError(f"ActionInputCritic: gammas must be in [0, 1), at least one, got {list(gammas)}")
        self.in_features = in_features
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

        The action may have further leading dimensions (several samples for one context): so has the output.
        """
        samples = action.shape[: action.ndim - 1 - context.ndim]
        rows = context.reshape(-1, context.shape[-1])
        actions = action.reshape(samples.numel(), rows.shape[0], *action.shape[-2:]).transpose(0, 1)
        values = in_row_blocks(self._values, rows, actions, rows_per_input=actions.shape[1:-1].numel())
        return values.transpose(0, 1).reshape(*action.shape[:-2], *values.shape[2:])

    def _values(self, context: Tensor, action: Tensor) -> Tensor:
        """`[N, D]` and `[N, S, G, A]` to `[N, S, C, G, O]`, for S samples."""
        action = action + (action.clamp(-_ACTION_LIMIT, _ACTION_LIMIT) - action).detach()
        feature = self.gamma_feature.to(action.dtype).expand(*action.shape[:-1], 1)
        inputs = torch.cat((feature, action), -1).flatten(0, -2)
        weight, split = self.ensemble.first_weight, self.in_features
        # W [context, feature, action] = W_1 context + W_2 [feature, action], of which the first has no G.
        from_context = torch.addmm(self.ensemble.first_bias.unsqueeze(1), weight[:, :split], context.t())
        hidden = torch.mm(weight[:, split:], inputs.t()).view(
            weight.shape[0], context.shape[0], action.shape[1:-1].numel()
        )
        out = self.ensemble(hidden + from_context.unsqueeze(-1))
        return out.view(*out.shape[:2], *action.shape[:-1]).permute(2, 3, 0, 4, 1)


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
    """The critic of an action space: `StateActionCritic` if it is enumerable, else `ActionInputCritic`.

    None if ``num_critics`` is 0: an agent that only clones behaviour has no critic.
    """
    if num_critics == 0:
        return None
    if action_space.enumerable:
        return StateActionCritic(
            in_features,
            num_actions=action_space.encoded_size,
            num_gammas=len(gammas),
            num_critics=num_critics,
            num_outputs=num_outputs,
            hidden_size=hidden_size,
            num_layers=num_layers,
        )
    return ActionInputCritic(
        in_features,
        action_size=action_space.encoded_size,
        gammas=gammas,
        num_critics=num_critics,
        num_outputs=num_outputs,
        hidden_size=hidden_size,
        num_layers=num_layers,
    )
