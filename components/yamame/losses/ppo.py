"""Proximal policy optimisation over sequences: RL^2 with any trajectory encoder.

A batch is a TensorDict ``[B, L]`` in the packing of :mod:`yamame.losses.sequence`, of whole trajectories: the encoder
starts where they start. `SequencePPOLoss.annotate` adds what the policy that collected them thought, once per batch:

====================  ==============  ========================================================================
``action_log_prob``   ``[B, L]``      of the taken action
``state_value``       ``[B, L, 1]``   in units of multiplied rewards
``advantage``         ``[B, L, 1]``   generalised advantage estimate
``value_target``      ``[B, L, 1]``   ``advantage + state_value``
====================  ==============  ========================================================================

Law: as acting and the parallel pass agree, these log-probabilities are those the actions were drawn with, so
nothing has to be stored while acting; the first update after `annotate` has every ratio at 1.
"""

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    dispatch,
)
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.modules import set_recurrent_mode
from torchrl.objectives import ClipPPOLoss, LossModule
from torchrl.objectives.value.functional import vec_generalized_advantage_estimate

from yamame.actions import ActionSpace
from yamame.actions.torch_distribution import TorchDistribution
from yamame.heads import PopArt
from yamame.losses.functional import transition_mask

_ANNOTATIONS = ("action_log_prob", "state_value", "advantage", "value_target")


class SequencePPOLoss(LossModule):
    """TorchRL's ``ClipPPOLoss`` (arXiv 1707.06347) over a sequence encoder shared by actor and values.

    On whole meta-episodes this is RL^2 (arXiv 1611.02779). The encoder reads a batch once; the clipped objective sees
    the valid transitions alone, so padding counts nowhere, not in the normalisation of advantages either.

    The networks are in evaluation mode while they learn (recurrent layers excepted, which cuDNN asks for): dropout or
    moving statistics would make the policy that learns another one than the policy that acted. Statistics of
    inputs move in `refresh`, between one batch and the next.

    Args:
        encoder: Writes ``context [B, L, D]``.
        actor: Context ``[*, D]`` to policy parameters ``[*, 1, P]``.
        critic: Context ``[*, D]`` to raw values ``[*, 1]``.
        returns: What a raw value means: `yamame.heads.PopArt`, whose statistics move in `annotate`, so that errors
            of values weigh alike beside the clipped objective however large returns are.
        action_space: Encodes actions and turns policy parameters into distributions.
        gamma: Discount factor in (0, 1].
        gae_lambda: Decay of the advantage estimate in [0, 1] (arXiv 1506.02438).
        clip_epsilon: How far the ratio of probabilities may go, in (0, 1).
        entropy_coeff: Weight of the entropy bonus.
        critic_coeff: Weight of the values' squared error.
        value_clip: How far a value may go from what it was, in standard deviations of returns; None for any distance.
        normalize_advantage: Whether advantages of an update have zero mean and unit variance.
        reward_multiplier: Factor on rewards before learning.

    Raises:
        ValueError: If a setting is out of its range, or a batch holds no valid transition.
    """

    def __init__(
        self,
        encoder: TensorDictModuleBase,
        actor: nn.Module,
        critic: nn.Module,
        returns: PopArt,
        *,
        action_space: ActionSpace,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_epsilon: float = 0.2,
        entropy_coeff: float = 0.01,
        critic_coeff: float = 0.5,
        value_clip: float | None = None,
        normalize_advantage: bool = True,
        reward_multiplier: float = 1.0,
    ) -> None:
        super().__init__()
        self._require("gamma", gamma, 0.0 < gamma <= 1.0, "be in (0, 1]")
        self._require("gae_lambda", gae_lambda, 0.0 <= gae_lambda <= 1.0, "be in [0, 1]")
        self._require("clip_epsilon", clip_epsilon, 0.0 < clip_epsilon < 1.0, "be in (0, 1)")
        for name, value in (("entropy_coeff", entropy_coeff), ("critic_coeff", critic_coeff)):
            self._require(name, value, value >= 0, "not be negative")
        self._require("value_clip", value_clip, value_clip is None or value_clip > 0, "be positive or None")
        self._require("reward_multiplier", reward_multiplier, reward_multiplier > 0, "be positive")
        self.encoder = encoder
        self.action_space = action_space
        self.gamma, self.gae_lambda = gamma, gae_lambda
        self.reward_multiplier = reward_multiplier
        self.clipped = _NormalizedClipPPOLoss(
            _policy(actor, action_space),
            TensorDictModule(_RawValue(critic), in_keys=["context"], out_keys=["state_value"]),
            clip_epsilon=clip_epsilon,
            entropy_bonus=entropy_coeff > 0,
            entropy_coeff=entropy_coeff,
            critic_coeff=critic_coeff,
            loss_critic_type="l2",
            clip_value=value_clip,
            normalize_advantage=normalize_advantage,
        )
        self.clipped.set_returns(returns)
        self.train()

    @classmethod
    def _require(cls, name: str, value: object, holds: bool, condition: str) -> None:
        if not holds:
            raise ValueError(f"{cls.__name__}: {name} must {condition}, got {value}")

    @property
    def in_keys(self) -> list[NestedKey]:
        """What a batch holds after `annotate`."""
        own: list[NestedKey] = ["action", "mask", "is_init", *_ANNOTATIONS]
        return list(dict.fromkeys([*self.encoder.in_keys, *own]))

    @property
    def out_keys(self) -> list[NestedKey]:
        """The terms and metrics of ``ClipPPOLoss``."""
        return list(self.clipped.out_keys)

    def train(self, mode: bool = True) -> "SequencePPOLoss":
        """Puts everything into evaluation mode, recurrent layers into ``mode``: see the class."""
        super().train(False)
        for head in (self.clipped.actor_network, self.clipped.critic_network):
            head.train(False)
        for module in self.encoder.modules():
            if isinstance(module, nn.RNNBase) and module.dropout == 0:
                module.train(mode)
        self.training = mode
        return self

    @torch.no_grad()
    def annotate(self, tensordict: TensorDictBase) -> TensorDictBase:
        """A copy of a batch ``[B, L]`` with what the present policy thinks of it, for the updates to come.

        The present policy must be the one that acted, and compute as it will in the updates (under the same autocast),
        or ratios do not begin at 1. Reads, besides what the loss reads, ``reward``, ``terminated``
        and ``truncated`` ``[B, L, 1]`` under ``"next"``.
        """
        valid = self._valid(tensordict)
        context = self._encode(tensordict)
        decisions = self._decisions(tensordict, context, valid)
        log_prob = context.new_zeros(valid.shape, dtype=torch.float32)
        heads = self.clipped
        with heads.actor_network_params.to_module(heads.actor_network, preserve_module_state=False):
            log_prob[valid] = heads.actor_network.get_dist(decisions).log_prob(decisions["action"])
        with heads.critic_network_params.to_module(heads.critic_network, preserve_module_state=False):
            value = heads.to_returns(heads.critic_network.module(context))
        with torch.autocast(value.device.type, enabled=False):
            advantage, target = self._advantages(tensordict, value, valid)
        heads.returns.update(target, valid)
        out = tensordict.copy()
        out["action_log_prob"] = nn.functional.pad(log_prob, (0, 1))
        out["state_value"] = value
        out["advantage"] = nn.functional.pad(advantage, (0, 0, 0, 1))
        out["value_target"] = nn.functional.pad(target, (0, 0, 0, 1))
        return out

    def _advantages(self, tensordict: TensorDictBase, value: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages and targets ``[B, T, 1]`` from the values ``[B, L, 1]``; zero at invalid transitions."""
        reward, terminated, truncated = (
            tensordict["next", name].reshape(tensordict.shape)[:, :-1]
            for name in ("reward", "terminated", "truncated")
        )
        # A trajectory ends where it says so, and where the next transition is not its own.
        last = torch.ones_like(valid)
        last[:, :-1] = ~valid[:, 1:]
        entries = (
            value[:, :-1],
            value[:, 1:],
            self.reward_multiplier * reward.unsqueeze(-1),
            (terminated | truncated | last | ~valid).unsqueeze(-1),
            (terminated | ~valid).unsqueeze(-1),
        )
        advantage, target = vec_generalized_advantage_estimate(self.gamma, self.gae_lambda, *entries)
        real = valid.unsqueeze(-1)
        return torch.where(real, advantage, 0.0), torch.where(real, target, 0.0)

    @torch.no_grad()
    def refresh(self, tensordict: TensorDictBase) -> None:
        """Moves what an encoder learns by looking (statistics of inputs, estimates of norms) by one pass over a batch.

        Changes the policy a little: call it after the last update on a batch and before the next is collected.
        """
        self.encoder.train()
        self._encode(tensordict)
        self.train(self.training)

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """The terms and metrics of ``ClipPPOLoss`` over the valid transitions of an annotated batch ``[B, L]``."""
        valid = self._valid(tensordict)
        decisions = self._decisions(tensordict, self._encode(tensordict), valid)
        for key in _ANNOTATIONS:
            decisions[key] = tensordict[key][:, :-1][valid]
        return self.clipped(decisions)

    def _encode(self, tensordict: TensorDictBase) -> Tensor:
        """The context ``[B, L, D]``, in one pass."""
        with set_recurrent_mode(True):
            return self.encoder(tensordict.copy())["context"]

    def _valid(self, tensordict: TensorDictBase) -> Tensor:
        """Transitions ``[B, T]`` that join two real timesteps of one trajectory."""
        mask, is_init = (tensordict[key].reshape(tensordict.shape) for key in ("mask", "is_init"))
        valid = transition_mask(mask, is_init)
        if not valid.any():
            raise ValueError(
                f"SequencePPOLoss: mask must leave a valid transition, got none in shape {tuple(mask.shape)}"
            )
        return valid

    def _decisions(self, tensordict: TensorDictBase, context: Tensor, valid: Tensor) -> TensorDict:
        """The context and the encoded action of every valid transition, and which actions were allowed: ``[M]``."""
        action = self.action_space.encode(tensordict["action"][:, :-1][valid])
        decisions = TensorDict({"context": context[:, :-1][valid], "action": action}, [len(action)])
        mask = tensordict.get("action_mask", None)
        return decisions if mask is None else decisions.set("action_mask", mask[:, :-1][valid])


def _policy(actor: nn.Module, action_space: ActionSpace) -> ProbabilisticTensorDictSequential:
    """The actor's only policy, as TorchRL's losses want one: ``context``, ``action_mask`` to a distribution."""
    return ProbabilisticTensorDictSequential(
        TensorDictModule(_OnePolicy(actor), in_keys=["context"], out_keys=["params"]),
        ProbabilisticTensorDictModule(
            in_keys=["params", "action_mask"],
            out_keys=["action"],
            distribution_class=TorchDistribution,
            distribution_kwargs={"action_space": action_space},
            return_log_prob=True,
            log_prob_key="action_log_prob",
        ),
    )


class _NormalizedClipPPOLoss(ClipPPOLoss):
    """``ClipPPOLoss`` whose errors of values, and the distance they may go, are in standard deviations of returns."""

    returns: PopArt

    def set_returns(self, returns: PopArt) -> None:
        """Gives it the statistics to divide by."""
        self.returns = returns

    def to_returns(self, raw: Tensor) -> Tensor:
        """Raw values ``[*, 1]`` in units of returns ``[*, 1]``."""
        return self.returns.to_returns(raw.unsqueeze(-1))

    def _critic_loss_inputs(
        self, target_return: Tensor, state_value: Tensor, old_state_value: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        std = self.returns.moments.std if self.returns.enabled else 1.0
        old = None if old_state_value is None else old_state_value / std
        return target_return / std, self.to_returns(state_value) / std, old


class _RawValue(nn.Module):
    """Raw values ``[*, 1]`` of a critic with one discount factor, float32 whatever it computes in."""

    def __init__(self, critic: nn.Module) -> None:
        super().__init__()
        self.critic = critic

    def forward(self, context: Tensor) -> Tensor:
        raw: Tensor = self.critic(context)
        return raw.float()


class _OnePolicy(nn.Module):
    """Policy parameters ``[*, P]`` of an actor with one discount factor."""

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, context: Tensor) -> Tensor:
        return self.actor(context).squeeze(-2).float()
