"""Proximal policy optimisation over sequences: RL^2 with any trajectory encoder.

A batch is a TensorDict ``[B, L]`` in the packing of :mod:`yamame.losses.sequence`, of whole
trajectories: the encoder starts where they start. `SequencePPOLoss.annotate` adds what the policy
that collected them thought, once per batch:

====================  ==============  ========================================================================
``action_log_prob``   ``[B, L]``      of the taken action
``state_value``       ``[B, L, 1]``   in units of multiplied rewards
``advantage``         ``[B, L, 1]``   generalised advantage estimate
``value_target``      ``[B, L, 1]``   ``advantage + state_value``
====================  ==============  ========================================================================

Law: as acting and the parallel pass agree, these log-probabilities are those the actions were drawn
with, so nothing has to be stored while acting; the first update after `annotate` has every ratio at
1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
from torch.nn.functional import pad
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value.functional import vec_generalized_advantage_estimate

from yamame.actions import ActionSpace
from yamame.checks import require, require_at_least
from yamame.heads import PopArt
from yamame.losses.sequence import DEPARTURE, SequenceLoss, encode

_ANNOTATIONS = ("action_log_prob", "state_value", "advantage", "value_target")


class SequencePPOLoss(SequenceLoss):
    """TorchRL's ``ClipPPOLoss`` (arXiv 1707.06347) over a sequence encoder shared by actor and
    values.

    On whole meta-episodes this is RL^2 (arXiv 1611.02779). The encoder reads a batch once; the
    clipped objective sees the valid transitions alone, so padding counts nowhere, not in the
    normalisation of advantages either.

    Whatever the mode of the loss, its networks compute in evaluation mode, as they did when they
    acted: dropout or moving statistics would make the policy that learns another one than the
    policy that acted. Statistics of inputs move in `refresh`, between one batch and the next.

    Args:
        encoder: Writes ``context [B, L, D]``.
        actor: Context ``[*, D]`` to policy parameters ``[*, 1, P]``.
        critic: Context ``[*, D]`` to raw values ``[*, 1]``.
        returns: What a raw value means: `yamame.heads.PopArt`, whose statistics move in `annotate`,
            so that errors of values weigh alike beside the clipped objective however large returns
            are.
        action_space: Encodes actions and turns policy parameters into distributions.
        gamma: Discount factor in (0, 1].
        gae_lambda: Decay of the advantage estimate in [0, 1] (arXiv 1506.02438).
        clip_epsilon: How far the ratio of probabilities may go, in (0, 1).
        entropy_coeff: Weight of the entropy bonus.
        critic_coeff: Weight of the values' squared error.
        value_clip: How far a value may go from what it was, in standard deviations of returns; None
            for any distance.
        normalize_advantage: Whether advantages of an update have zero mean and unit variance.
        reward_multiplier: Factor on rewards before learning.

    Raises:
        ValueError: If a setting is out of its range, or a batch holds no valid transition.
    """

    @dataclass
    class _AcceptedKeys(SequenceLoss._AcceptedKeys):
        """As in `SequenceLoss`, ``truncated`` below ``next`` as well, and what `annotate`
        writes.
        """

        truncated: NestedKey = "truncated"
        action_log_prob: NestedKey = "action_log_prob"
        state_value: NestedKey = "state_value"
        advantage: NestedKey = "advantage"
        value_target: NestedKey = "value_target"

    default_keys = _AcceptedKeys

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
        super().__init__(encoder, action_space=action_space)
        owner = type(self).__name__
        require(owner, "gamma", gamma, 0.0 < gamma <= 1.0, "be in (0, 1]")
        require(owner, "gae_lambda", gae_lambda, 0.0 <= gae_lambda <= 1.0, "be in [0, 1]")
        require(owner, "clip_epsilon", clip_epsilon, 0.0 < clip_epsilon < 1.0, "be in (0, 1)")
        require_at_least(owner, 0, entropy_coeff=entropy_coeff, critic_coeff=critic_coeff)
        require(
            owner,
            "value_clip",
            value_clip,
            value_clip is None or value_clip > 0,
            "be positive or None",
        )
        require(owner, "reward_multiplier", reward_multiplier, reward_multiplier > 0, "be positive")
        self.gamma, self.gae_lambda = gamma, gae_lambda
        self.reward_multiplier = reward_multiplier
        self.clipped = ClipPPOLoss(
            _policy(actor, action_space),
            TensorDictModule(
                _Value(critic, returns), in_keys=["context"], out_keys=["state_value"]
            ),
            clip_epsilon=clip_epsilon,
            entropy_bonus=entropy_coeff > 0,
            entropy_coeff=entropy_coeff,
            critic_coeff=critic_coeff,
            loss_critic_type="l2",
            clip_value=value_clip,
            normalize_advantage=normalize_advantage,
            functional=False,
        )

    @property
    def returns(self) -> PopArt:
        """What a raw value means."""
        return self.clipped.critic_network.module.returns

    @property
    def in_keys(self) -> list[NestedKey]:
        """What a batch holds after `annotate`; ``action_mask`` only if the environment has one."""
        own = ("action", "mask", "is_init", "action_mask", *_ANNOTATIONS)
        keys = [getattr(self.tensor_keys, name) for name in own]
        return list(dict.fromkeys([*self.encoder.in_keys, *keys]))

    @property
    def out_keys(self) -> list[NestedKey]:
        """The terms and metrics of ``ClipPPOLoss``."""
        return list(self.clipped.out_keys)

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """Evaluation mode within the block, but for recurrent layers, which cuDNN differentiates in
        no other.
        """
        mode = self.training
        self.eval()
        for module in self.modules():
            if isinstance(module, nn.RNNBase) and module.dropout == 0:
                module.train(mode)
        try:
            yield
        finally:
            self.train(mode)

    @torch.no_grad()
    def annotate(self, tensordict: TensorDictBase) -> TensorDictBase:
        """A copy of a batch ``[B, L]`` with what the present policy thinks of it, for the updates
        to come.

        The present policy must be the one that acted, and compute as it will in the updates (under
        the same autocast), or ratios do not begin at 1. Reads, besides what the loss reads,
        ``reward``, ``terminated`` and ``truncated`` ``[B, L, 1]`` under ``"next"``.
        """
        keys, valid = self.tensor_keys, self._valid_transitions(tensordict)
        with self._acting():
            context = encode(self.encoder, tensordict)[keys.context]
            decisions = self._decisions(tensordict, context, valid)
            log_prob = context.new_zeros(valid.shape, dtype=torch.float32)
            policy = self.clipped.actor_network.get_dist(decisions)
            log_prob[valid] = policy.log_prob(decisions["action"])
            value = self.clipped.critic_network.module.to_returns(context)
        with torch.autocast(value.device.type, enabled=False):
            advantage, target = self._advantages(tensordict, value, valid)
        self.returns.update(target, valid)
        out = tensordict.copy()
        out[keys.action_log_prob] = pad(log_prob, (0, 1))
        out[keys.state_value] = value
        out[keys.advantage] = pad(advantage, (0, 0, 0, 1))
        out[keys.value_target] = pad(target, (0, 0, 0, 1))
        return out

    def _advantages(
        self, tensordict: TensorDictBase, value: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Advantages and targets ``[B, T, 1]`` from the values ``[B, L, 1]``; zero at invalid
        transitions.
        """
        names = ("reward", "terminated", "truncated")
        reward, terminated, truncated = (self._outcome(tensordict, name) for name in names)
        # A trajectory ends where it says so, and where the next transition is not its own.
        last = torch.ones_like(valid)
        last[:, :-1] = ~valid[:, 1:]
        reward = torch.where(valid, self.reward_multiplier * reward, 0.0)
        advantage, target = vec_generalized_advantage_estimate(
            self.gamma,
            self.gae_lambda,
            value[:, :-1],
            value[:, 1:],
            reward.unsqueeze(-1),
            (terminated | truncated | last | ~valid).unsqueeze(-1),
            (terminated | ~valid).unsqueeze(-1),
        )
        real = valid.unsqueeze(-1)
        return torch.where(real, advantage, 0.0), torch.where(real, target, 0.0)

    @torch.no_grad()
    def refresh(self, tensordict: TensorDictBase) -> None:
        """Moves what an encoder learns by looking (statistics of inputs, estimates of norms) by one
        pass over a batch.

        Changes the policy a little: call it after the last update on a batch and before the next is
        collected.
        """
        mode = self.encoder.training
        encode(self.encoder.train(), tensordict)
        self.encoder.train(mode)

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """The terms and metrics of ``ClipPPOLoss`` over the valid transitions of an annotated batch
        ``[B, L]``.
        """
        valid = self._valid_transitions(tensordict)
        with self._acting():
            context = encode(self.encoder, tensordict)[self.tensor_keys.context]
            decisions = self._decisions(tensordict, context, valid)
            for name in _ANNOTATIONS:
                decisions[name] = tensordict[getattr(self.tensor_keys, name)][:, DEPARTURE][valid]
            for name in ("state_value", "value_target"):
                # Errors of values are in standard deviations of returns.
                decisions[name] = decisions[name] / self.returns.std
            return self.clipped(decisions)

    def _decisions(self, tensordict: TensorDictBase, context: Tensor, valid: Tensor) -> TensorDict:
        """The context and the encoded action of every valid transition, and which actions were
        allowed: ``[M]``.
        """
        entries = {
            "context": context[:, DEPARTURE],
            "action": self._taken_actions(tensordict, valid),
        }
        mask = self._action_mask(tensordict, DEPARTURE, needed=valid)
        if mask is not None:
            entries["action_mask"] = mask
        return TensorDict(
            {name: entry[valid] for name, entry in entries.items()}, [int(valid.sum())]
        )


def _policy(actor: nn.Module, action_space: ActionSpace) -> ProbabilisticTensorDictSequential:
    """The actor's only policy, as TorchRL's losses want one: ``context``, ``action_mask`` to a
    distribution.
    """
    return ProbabilisticTensorDictSequential(
        TensorDictModule(actor, in_keys=["context"], out_keys=["params"]),  # [*, 1, P]
        TensorDictModule(
            lambda params: params.squeeze(-2).float(), in_keys=["params"], out_keys=["params"]
        ),
        ProbabilisticTensorDictModule(
            in_keys=["params", "action_mask"],
            out_keys=["action"],
            distribution_class=action_space.distribution,
            return_log_prob=True,
            log_prob_key="action_log_prob",
        ),
    )


class _Value(nn.Module):
    """Values ``[*, 1]`` of a critic with one discount factor, in standard deviations of returns."""

    def __init__(self, critic: nn.Module, returns: PopArt) -> None:
        super().__init__()
        self.critic, self.returns = critic, returns

    def to_returns(self, context: Tensor) -> Tensor:
        """The same in units of returns."""
        return self.returns.to_returns(self.critic(context).unsqueeze(-1))

    def forward(self, context: Tensor) -> Tensor:
        return self.to_returns(context) / self.returns.std
