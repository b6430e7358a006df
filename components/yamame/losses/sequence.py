"""What every actor-critic loss over sequences shares: its networks, and how a batch is read.

A batch is a TensorDict [B, L] in which row t holds what was seen at t and the transition that leaves t (see
:mod:`yamame.replay`): the encoder's keys, ``action`` [B, L, *], ``("next", "reward")`` [B, L, 1],
``("next", "terminated")`` bool [B, L, 1], ``mask`` bool [B, L, 1] (real row), ``is_init`` bool [B, L, 1] (a
new trajectory starts) and, if the environment has one, ``action_mask`` bool [B, L, A]. The T = L - 1
transitions join neighbouring rows; what numbers stand in invalid ones changes nothing, but they must be finite. The
batch is left as it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from tensordict import TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor, nn
from torchrl.objectives import LossModule

from yamame.actions import ActionDistribution, ActionSpace
from yamame.capturing import capturing
from yamame.losses.functional import transition_mask


class Contexts(NamedTuple):
    """What the heads read at every timestep, [B, L, D] each; the same tensor where they share an encoder."""

    actor: Tensor
    critic: Tensor

    def rows(self, which: slice) -> "Contexts":
        """Some of the timesteps."""
        actor = self.actor[:, which]
        return Contexts(actor, actor if self.critic is self.actor else self.critic[:, which])


class SequenceActorCriticLoss(LossModule):
    """Base of losses over sequences, with target copies of the heads.

    Where contexts come from is decided by three methods, `_register_encoder`, `_encode` and `_encode_following`:
    here one encoder serves actor and critics, and has no target copy.

    Args:
        encoder: writes ``context`` [B, L, D]. An ordinary submodule, so the loss's mode and device reach it.
        actor: context [*, D] to policy parameters [*, G, P].
        critic: see `MultiGammaREDQLoss`.
        action_space: encodes actions and turns policy parameters into distributions.
        gammas: discounts in (0, 1), in the order of the heads.

    Raises:
        ValueError: if ``gammas`` is empty or out of range, or differs in number from what a head gives.
    """

    @dataclass
    class _AcceptedKeys:
        """Where a batch holds its entries; ``reward`` and ``terminated`` are looked up below ``next``."""

        action: NestedKey = "action"
        reward: NestedKey = "reward"
        terminated: NestedKey = "terminated"
        mask: NestedKey = "mask"
        is_init: NestedKey = "is_init"
        context: NestedKey = "context"
        critic_context: NestedKey = "critic_context"
        action_mask: NestedKey = "action_mask"

    default_keys = _AcceptedKeys
    shares_encoder: ClassVar[bool] = True
    """Whether actor and critics read one context."""

    actor_network: nn.Module
    actor_network_params: TensorDictParams
    target_actor_network_params: TensorDictParams
    critic_network: nn.Module
    critic_network_params: TensorDictParams
    target_critic_network_params: TensorDictParams
    gammas: Tensor

    def __init__(
        self,
        encoder: TensorDictModuleBase,
        actor: nn.Module,
        critic: nn.Module | None,
        *,
        action_space: ActionSpace,
        gammas: Sequence[float],
    ) -> None:
        super().__init__()
        if not len(gammas) or not all(0.0 < gamma < 1.0 for gamma in gammas):
            name = type(self).__name__
            raise ValueError(f"{name}: gammas must lie in (0, 1), at least one, got {list(gammas)}")
        self._register_encoder(encoder)
        self.convert_to_functional(actor, "actor_network", create_target_params=True)
        self.has_critic = critic is not None
        if critic is not None:
            self.convert_to_functional(critic, "critic_network", create_target_params=True)
        self.action_space = action_space
        self.register_buffer("gammas", torch.tensor(gammas, dtype=torch.float32), persistent=False)

    @property
    def in_keys(self) -> list[NestedKey]:
        """What a batch holds; ``action_mask`` only if the environment has one."""
        keys = self.tensor_keys
        following = [unravel_key(("next", key)) for key in (keys.reward, keys.terminated)]
        own = [keys.action, *following, keys.mask, keys.is_init, keys.action_mask]
        return list(dict.fromkeys([*self.encoder.in_keys, *own]))

    def train(self, mode: bool = True) -> "SequenceActorCriticLoss":
        """Sets the mode of the loss, its submodules and the heads, which are not among them."""
        self.actor_network.train(mode)
        if self.has_critic:
            self.critic_network.train(mode)
        return super().train(mode)

    def _register_encoder(self, encoder: TensorDictModuleBase) -> None:
        self.encoder = encoder

    def _encode(self, tensordict: TensorDictBase) -> Contexts:
        """The contexts [B, L, D], in one pass."""
        encoded = self.encoder(tensordict.copy())
        if self.tensor_keys.critic_context in encoded.keys(True):
            raise ValueError(
                f"{type(self).__name__}: encoder must write one context for actor and critics, got "
                f"{self.tensor_keys.critic_context!r} as well (SeparateREDQLoss takes both)"
            )
        context = encoded[self.tensor_keys.context]
        return Contexts(context, context)

    def _encode_following(self, tensordict: TensorDictBase, contexts: Contexts) -> Contexts:
        """What the target heads read: contexts [B, T, D] that transitions arrive in, without a gradient."""
        following = contexts.rows(slice(1, None))
        return Contexts(following.actor.detach(), following.critic.detach())

    def _valid_transitions(self, tensordict: TensorDictBase) -> Tensor:
        mask = self._rows(tensordict, self.tensor_keys.mask)
        valid = transition_mask(mask, self._rows(tensordict, self.tensor_keys.is_init))
        if not torch.compiler.is_compiling() and not capturing() and not valid.any():
            raise ValueError(
                f"{type(self).__name__}: mask must leave a valid transition in the batch, got none in "
                f"shape {tuple(mask.shape)}"
            )
        return valid

    def _rewards(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Reward and termination of every transition, [B, T] each."""
        keys = (self.tensor_keys.reward, self.tensor_keys.terminated)
        reward, terminated = (self._rows(tensordict, unravel_key(("next", key))) for key in keys)
        return reward[:, :-1], terminated[:, :-1]

    def _taken_actions(self, tensordict: TensorDictBase, valid: Tensor) -> Tensor:
        """Encoded actions [B, T, A]; an invalid transition counts as action zero, whatever it holds."""
        action = tensordict[self.tensor_keys.action][:, :-1]
        keep = valid.reshape(*valid.shape, *[1] * (action.ndim - 2))
        return self.action_space.encode(torch.where(keep, action, torch.zeros_like(action)))

    def _action_mask(self, tensordict: TensorDictBase, rows: slice, *, needed: Tensor) -> Tensor | None:
        """Allowed actions [B, T, A]; all are allowed where no action is needed, as after the end."""
        mask = tensordict.get(self.tensor_keys.action_mask, None)
        return None if mask is None else mask[:, rows].bool() | ~needed.unsqueeze(-1)

    @staticmethod
    def _rows(tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        """An entry [B, L, 1] or [B, L] as [B, L]."""
        return tensordict[key].reshape(tensordict.shape[:2])

    def _distribution(self, params: Tensor, mask: Tensor | None) -> ActionDistribution:
        return self.action_space.distribution(params, None if mask is None else mask.unsqueeze(-2))

    # tensordict turns targets into trainable parameters unless preserve_module_state is off.

    def _actor(self, params: TensorDictBase, context: Tensor) -> Tensor:
        """Policy parameters [*, G, P], float32 whatever the networks compute in."""
        with params.to_module(self.actor_network, preserve_module_state=False):
            return self._check_gammas("actor", self.actor_network(context)).float()

    def _critics(self, params: TensorDictBase, *inputs: Tensor) -> Tensor:
        """Raw values [*, C, A, G, O] or [*, C, G, O], float32 as well."""
        with params.to_module(self.critic_network, preserve_module_state=False):
            return self._check_gammas("critic", self.critic_network(*inputs)).float()

    def _check_gammas(self, head: str, output: Tensor) -> Tensor:
        if output.shape[-2] != self.gammas.numel():
            raise ValueError(
                f"{type(self).__name__}: {head} must give {self.gammas.numel()} gammas in its last dimension "
                f"but one, got shape {tuple(output.shape)}"
            )
        return output
