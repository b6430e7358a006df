"""What losses over sequences share: their keys, how a batch is read, and heads with target copies.

A batch is a TensorDict [B, L] in which timestep t holds what was seen at t and the transition that
leaves t (see :mod:`yamame.replay`): the encoder's keys, ``action`` [B, L, *],
``("next", "reward")`` [B, L, 1], ``("next", "terminated")`` bool [B, L, 1], ``mask`` bool [B, L, 1]
(a real timestep), ``is_init`` bool [B, L, 1] (a new trajectory starts) and, if the environment has
one, ``action_mask`` bool [B, L, A]. The T = L - 1 transitions join neighbouring timesteps; what
numbers stand in invalid ones changes nothing, but they must be finite. The batch is left as it was.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torchrl.modules import set_recurrent_mode
from torchrl.objectives import LossModule

from yamame.actions import ActionDistribution, ActionSpace
from yamame.checks import require
from yamame.distributed import all_reduce
from yamame.execution.capturing import capturing
from yamame.losses.functional import transition_mask
from yamame.normalization import LARGEST
from yamame.trajectory.sigma import power_iteration, sigma_layers

DEPARTURE, ARRIVAL = slice(None, -1), slice(1, None)
"""Of L timesteps: those that the transitions leave, and those that they arrive in."""


class SequenceLoss(LossModule):
    """One of TorchRL's losses, whose networks are plain modules, over the context of a sequence
    encoder.

    Args:
        encoder: writes ``context`` [B, L, D].
        action_space: encodes actions and turns policy parameters into distributions.
    """

    @dataclass
    class _AcceptedKeys:
        """Where a batch holds its entries; ``reward`` and ``terminated`` are looked up below
        ``next``.
        """

        action: NestedKey = "action"
        reward: NestedKey = "reward"
        terminated: NestedKey = "terminated"
        mask: NestedKey = "mask"
        is_init: NestedKey = "is_init"
        context: NestedKey = "context"
        action_mask: NestedKey = "action_mask"

    default_keys = _AcceptedKeys
    functional = False  # as TorchRL calls it: parameters stay in the modules that use them

    def __init__(self, encoder: TensorDictModuleBase, *, action_space: ActionSpace) -> None:
        super().__init__()
        self.encoder = encoder
        self.action_space = action_space

    @property
    def in_keys(self) -> list[NestedKey]:
        """What a batch holds; ``action_mask`` only if the environment has one."""
        keys = self.tensor_keys
        outcomes = [unravel_key(("next", key)) for key in (keys.reward, keys.terminated)]
        own = [keys.action, *outcomes, keys.mask, keys.is_init, keys.action_mask]
        return list(dict.fromkeys([*self.encoder.in_keys, *own]))

    def _valid_transitions(self, tensordict: TensorDictBase) -> Tensor:
        """Transitions [B, T] that join two real timesteps of one trajectory.

        Those whose finite reward is beyond `yamame.normalization.LARGEST` are left out, unless
        there are no others.
        """
        mask, is_init = (
            _flat(tensordict, key) for key in (self.tensor_keys.mask, self.tensor_keys.is_init)
        )
        valid = transition_mask(mask, is_init)
        # Elsewhere nothing is read back: without a valid transition the loss is 0 / 0, which the
        # guard refuses.
        if valid.is_cpu and not capturing():
            condition = f"leave a valid transition in the batch of {tuple(mask.shape)}"
            (some,) = all_reduce(valid.any().long())
            require(type(self).__name__, "mask", "none", bool(some), condition)
        if unravel_key(("next", self.tensor_keys.reward)) not in tensordict.keys(True):
            return valid
        reward = self._outcome(tensordict, "reward")
        usable = valid & ~(reward.isfinite() & (reward.abs() > LARGEST))
        return torch.where(usable.any(), usable, valid)

    def _outcome(self, tensordict: TensorDictBase, name: str) -> Tensor:
        """What every transition led to [B, T], as ``reward`` or ``terminated``."""
        return _flat(tensordict, unravel_key(("next", getattr(self.tensor_keys, name))))[
            :, DEPARTURE
        ]

    def _taken_actions(self, tensordict: TensorDictBase, valid: Tensor) -> Tensor:
        """Encoded actions [B, T, A]; an invalid transition counts as action zero, whatever it
        holds.
        """
        action = tensordict[self.tensor_keys.action][:, DEPARTURE]
        keep = valid.reshape(*valid.shape, *[1] * (action.ndim - 2))
        return self.action_space.encode(torch.where(keep, action, torch.zeros_like(action)))

    def _action_mask(
        self, tensordict: TensorDictBase, which: slice, *, needed: Tensor
    ) -> Tensor | None:
        """Allowed actions [B, T, A]; all are allowed where no action is needed, as after the
        end.
        """
        mask = tensordict.get(self.tensor_keys.action_mask, None)
        return None if mask is None else mask[:, which].bool() | ~needed.unsqueeze(-1)


def encode(encoder: TensorDictModuleBase, tensordict: TensorDictBase) -> TensorDictBase:
    """A copy of a batch [B, L] with what an encoder writes, in one pass over whole sequences."""
    with set_recurrent_mode(True):
        return encoder(tensordict.copy())


def _flat(tensordict: TensorDictBase, key: NestedKey) -> Tensor:
    """An entry [B, L, 1] or [B, L] as [B, L]."""
    return tensordict[key].reshape(tensordict.shape[:2])


class SequenceActorCriticLoss(SequenceLoss):
    """A loss with a policy and values for each of G discounts, and target copies of the heads that
    give them.

    The copies get no gradient and are always in evaluation mode. One encoder serves actor and
    critics and has no target copy; see `SeparateREDQLoss` for the other way. All arguments are
    those of `MultiGammaREDQLoss`.
    """

    @dataclass
    class _AcceptedKeys(SequenceLoss._AcceptedKeys):
        """As in `SequenceLoss`, and where an encoder would write a context for the critics
        alone.
        """

        critic_context: NestedKey = "critic_context"

    default_keys = _AcceptedKeys
    shares_encoder: ClassVar[bool] = True
    """Whether actor and critics read one context."""

    gammas: Tensor

    def __init__(
        self,
        encoder: TensorDictModuleBase,
        actor: nn.Module,
        critic: nn.Module | None,
        *,
        action_space: ActionSpace,
        gammas: Sequence[float],
        target_tau: float,
    ) -> None:
        super().__init__(encoder, action_space=action_space)
        owner, in_range = type(self).__name__, all(0.0 < gamma < 1.0 for gamma in gammas)
        require(
            owner,
            "gammas",
            list(gammas),
            len(gammas) > 0 and in_range,
            "lie in (0, 1), at least one",
        )
        require(
            owner, "gammas", list(gammas), len(set(gammas)) == len(gammas), "differ from each other"
        )
        require(owner, "target_tau", target_tau, 0.0 < target_tau <= 1.0, "be in (0, 1]")
        self.discounts = tuple(float(gamma) for gamma in gammas)  # read without asking a device
        self.register_buffer(
            "gammas", torch.tensor(self.discounts, dtype=torch.float32), persistent=False
        )
        self.actor_network, self.critic_network = actor, critic
        # TorchRL's losses leave names that begin with "_target" out of `parameters`, so optimizers
        # never see them.
        self._targets = copy.deepcopy(self._followed()).requires_grad_(False).eval()
        self.target_tau = target_tau

    def train(self, mode: bool = True) -> Self:
        """Sets the mode of everything but the targets: dropout would make them noisy."""
        super().train(mode)
        self._targets.eval()
        return self

    def update_targets(self) -> None:
        """Moves every target copy towards what it follows; to be called after the optimizer's
        step.
        """
        lerp = get_ema_multi_avg_fn(1.0 - self.target_tau)  # all parameters in one operation
        lerp(list(self._targets.parameters()), list(self._followed().parameters()), None)
        power_iteration(sigma_layers(self._targets))

    def _followed(self) -> nn.ModuleDict:
        """The networks that have target copies."""
        heads = {"actor": self.actor_network, "critic": self.critic_network}
        return nn.ModuleDict({name: head for name, head in heads.items() if head is not None})

    def _contexts(
        self, encoder: TensorDictModuleBase, tensordict: TensorDictBase
    ) -> tuple[Tensor, Tensor]:
        """What the actor and what the critics read at every timestep, [B, L, D] each, in one pass
        of an encoder.
        """
        encoded, keys = encode(encoder, tensordict), self.tensor_keys
        written = keys.critic_context in encoded.keys(True)
        condition = f"{'not ' if written else ''}write {keys.critic_context!r} for the critics beside {keys.context!r}"
        names = sorted(map(str, encoded.keys(True)))
        require(type(self).__name__, "encoder", names, written != self.shares_encoder, condition)
        return encoded[keys.context], encoded[keys.critic_context if written else keys.context]

    def _arrival_contexts(
        self, tensordict: TensorDictBase, actor_context: Tensor, critic_context: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What the target heads read: the contexts [B, T, D] that transitions arrive in, without a
        gradient.
        """
        return actor_context[:, ARRIVAL].detach(), critic_context[:, ARRIVAL].detach()

    def _policy_params(self, actor: nn.Module, context: Tensor) -> Tensor:
        """Policy parameters [*, G, P], float32 whatever the networks compute in."""
        return self._check_gammas("actor", actor(context)).float()

    def _distribution(self, params: Tensor, mask: Tensor | None) -> ActionDistribution:
        return self.action_space.distribution(params, None if mask is None else mask.unsqueeze(-2))

    def _raw_values(self, critic: nn.Module, *inputs: Tensor, frozen: bool = False) -> Tensor:
        """Raw values [*, C, A, G, O] or [*, C, G, O], float32 as well; frozen critics get no
        gradient, inputs do.
        """
        if frozen:
            parameters = {name: parameter.detach() for name, parameter in critic.named_parameters()}
            raw = functional_call(critic, parameters, inputs)
        else:
            raw = critic(*inputs)
        return self._check_gammas("critic", raw).float()

    def _check_gammas(self, head: str, output: Tensor) -> Tensor:
        shape, num_gammas = tuple(output.shape), len(self.discounts)
        condition = f"give {num_gammas} gammas in its last dimension but one"
        require(type(self).__name__, head, shape, shape[-2] == num_gammas, condition)
        return output
