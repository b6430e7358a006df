"""Critics: ensembles of C value functions as one module with batched weights.

Outputs are raw: a `ValueRepresentation` turns their last dimension into values. The last two
dimensions are always G discount factors and O outputs per value.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from yamame.actions.spaces import ActionSpace
from yamame.checks import Activation, NonNegativeInt, NumLayers, PositiveInt, check_bounds, require
from yamame.heads.ensemble import EnsembleMLP, check_context

_ACTION_LIMIT = 0.999
"""Largest action that critics read: the ends of squashed actions are rarely sampled."""


class StateActionCritic(nn.Module):
    """Values of every discrete action at once, so that expectations over actions are exact.

    Args:
        in_features: Size D of the context.
        num_actions: Number A of actions.
        num_gammas: Number G of discount factors.
        num_critics: Number C of independently initialised critics (REDQ, arXiv 2101.05982).
        num_outputs: Outputs O per value.
        hidden_size: Width of the hidden layers.
        num_layers: Number of hidden layers.
        activation: Activation of the hidden layers (`yamame.checks.Activation`).

    Raises:
        ArgumentError: A size is not positive.

    >>> critic = StateActionCritic(8, num_actions=5, num_gammas=7)
    >>> critic(torch.zeros(3, 2, 8)).shape
    torch.Size([3, 2, 2, 5, 7, 1])
    """

    @check_bounds
    def __init__(
        self,
        in_features: PositiveInt,
        *,
        num_actions: PositiveInt,
        num_gammas: PositiveInt,
        num_critics: PositiveInt = 2,
        num_outputs: PositiveInt = 1,
        hidden_size: PositiveInt = 128,
        num_layers: NumLayers = 2,
        activation: Activation = "leaky_relu",
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.num_critics = num_critics
        self.num_actions = num_actions
        self.num_gammas = num_gammas
        self.num_outputs = num_outputs
        self.out_shape = (num_actions, num_gammas, num_outputs)
        self.ensemble = EnsembleMLP(
            in_features,
            math.prod(self.out_shape),
            num_members=num_critics,
            hidden_size=hidden_size,
            num_layers=num_layers,
            activation=activation,
        )

    def forward(self, context: Tensor) -> Tensor:
        """Map a context ``[*, D]`` to raw values ``[*, C, A, G, O]``."""
        check_context(type(self).__name__, context, self.in_features)
        return self.ensemble(context).unflatten(-1, self.out_shape)


class ActionInputCritic(nn.Module):
    """Values of one given action for each discount factor, for actions that cannot be enumerated.

    Each critic reads the concatenation of the context, a feature of the discount factor,
    ``symlog(1 / (1 - gamma)) = log(1 + 1 / (1 - gamma))``, and the encoded action.

    Args:
        in_features: Size D of the context.
        action_size: Size A of an encoded action.
        gammas: The G discount factors, each in [0, 1).
        num_critics: As for `StateActionCritic`.
        num_outputs: As for `StateActionCritic`.
        hidden_size: As for `StateActionCritic`.
        num_layers: As for `StateActionCritic`.
        activation: As for `StateActionCritic`.
        round_gammas: Whether the feature is that of discount factors rounded to float32, as AMAGO's
            code computes it: close to 1, it differs in the fifth digit.

    Raises:
        ArgumentError: A size is not positive, or a discount factor is out of its range.

    >>> critic = ActionInputCritic(8, action_size=2, gammas=[0.9, 0.99])
    >>> critic(torch.zeros(3, 8), torch.zeros(3, 2, 2)).shape
    torch.Size([3, 2, 2, 1])
    """

    gamma_feature: Tensor

    @check_bounds
    def __init__(
        self,
        in_features: PositiveInt,
        *,
        action_size: PositiveInt,
        gammas: Sequence[float],
        num_critics: PositiveInt = 2,
        num_outputs: PositiveInt = 1,
        hidden_size: PositiveInt = 128,
        num_layers: NumLayers = 2,
        activation: Activation = "leaky_relu",
        round_gammas: bool = False,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.num_critics = num_critics
        self.num_gammas = len(gammas)
        self.num_outputs = num_outputs
        self.gammas = tuple(float(gamma) for gamma in gammas)
        in_range = len(gammas) > 0 and all(0.0 <= gamma < 1.0 for gamma in gammas)
        owner = type(self).__name__
        require(owner, "gammas", list(gammas), in_range, "be in [0, 1), at least one")
        if round_gammas:
            gammas = torch.tensor(self.gammas).tolist()
        feature = [math.log1p(1.0 / (1.0 - gamma)) for gamma in gammas]
        self.register_buffer("gamma_feature", torch.tensor(feature).unsqueeze(-1), persistent=False)
        self.ensemble = EnsembleMLP(
            in_features + 1 + action_size,
            num_outputs,
            num_members=num_critics,
            hidden_size=hidden_size,
            num_layers=num_layers,
            activation=activation,
        )

    def forward(self, context: Tensor, action: Tensor) -> Tensor:
        """Map contexts ``[*, D]`` and encoded actions ``[*, G, A]`` to raw values ``[*, C, G, O]``.

        The actions may have more leading dimensions than the context, for several samples; the
        values have them as well.
        """
        check_context(type(self).__name__, context, self.in_features)
        # The value is clipped and the gradient is not: straight-through actions lie at 1, and a
        # clipped gradient would not reach the actor.
        clipped = action.clamp(-_ACTION_LIMIT, _ACTION_LIMIT)
        action = action + (clipped - action).detach()
        leading = action.shape[:-1]  # [*, G]
        feature = self.gamma_feature.to(action.dtype).expand(*leading, 1)
        inputs = torch.cat((feature, action), -1)  # [*, G, 1 + A]
        # All discounts and samples share the context, most of the first layer's input.
        values = self.ensemble(inputs, shared=context.unsqueeze(-2))  # [*, G, C, O]
        return values.transpose(-2, -3)


@check_bounds
def make_critic(
    in_features: PositiveInt,
    *,
    action_space: ActionSpace,
    gammas: Sequence[float],
    num_critics: NonNegativeInt = 2,
    num_outputs: PositiveInt = 1,
    hidden_size: PositiveInt = 128,
    num_layers: NumLayers = 2,
    activation: Activation = "leaky_relu",
    round_gammas: bool = False,
) -> StateActionCritic | ActionInputCritic | None:
    """Build `StateActionCritic` if actions can be enumerated, and else `ActionInputCritic`.

    Args:
        in_features: Size D of the context.
        action_space: Actions of the environment.
        gammas: The G discount factors.
        num_critics: Number of critics. 0: there is no critic, for an agent that only clones
            behaviour.
        num_outputs: Outputs O per value.
        hidden_size: Width of the hidden layers.
        num_layers: Number of hidden layers.
        activation: Activation of the hidden layers (`yamame.checks.Activation`).
        round_gammas: As for `ActionInputCritic`; of no effect where actions can be enumerated.

    Raises:
        ArgumentError: An argument is out of its range.
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
            activation=activation,
        )
    return ActionInputCritic(
        in_features,
        action_size=action_space.encoded_size,
        gammas=gammas,
        num_critics=num_critics,
        num_outputs=num_outputs,
        hidden_size=hidden_size,
        num_layers=num_layers,
        activation=activation,
        round_gammas=round_gammas,
    )
