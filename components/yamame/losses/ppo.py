"""Proximal policy optimisation over sequences: RL^2 with any trajectory encoder.

A batch is a TensorDict ``[B, L]`` of whole trajectories, packed as in
:mod:`yamame.losses.sequence`. `SequencePPOLoss.annotate` adds, once per batch, what the present
policy computes for it:

====================  ==============  ===================================
``action_log_prob``   ``[B, L]``      log-probability of the taken action
``state_value``       ``[B, L, 1]``   in units of multiplied rewards
``advantage``         ``[B, L, 1]``   generalised advantage estimate
``value_target``      ``[B, L, 1]``   ``advantage + state_value``
====================  ==============  ===================================

Law: acting and the parallel pass agree, so these are the log-probabilities with which the actions
were sampled, and nothing has to be stored while acting. The first update after `annotate` has all
ratios equal to 1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    dispatch,
)
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor, nn
from torch.nn.functional import pad
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value.functional import vec_generalized_advantage_estimate

from yamame.actions import ActionSpace
from yamame.checks import (
    Bounds,
    NonNegativeFloat,
    PositiveFloat,
    UnitInterval,
    check_bounds,
    require,
)
from yamame.heads import PopArt, ValueRepresentation
from yamame.losses.sequence import (
    ARRIVAL,
    DEPARTURE,
    SequenceLoss,
    check_module,
    check_size,
    encode,
)

_ANNOTATIONS = ("action_log_prob", "state_value", "advantage", "value_target")


class SequencePPOLoss(SequenceLoss):
    """TorchRL's ``ClipPPOLoss`` (arXiv 1707.06347) over a sequence encoder and two heads.

    On whole meta-episodes this is RL^2 (arXiv 1611.02779). The encoder reads a batch once. The
    clipped objective receives the valid transitions only, so padding has no effect on any mean or
    on the normalisation of advantages.

    Args:
        encoder: Writes ``context [B, L, D]``.
        actor: Maps a context ``[*, D]`` to policy parameters ``[*, 1, P]``.
        critic: Maps a context ``[*, D]`` to raw values ``[*, 1]``.
        returns: Representation of values, `yamame.heads.PopArt`. `annotate` updates its
            statistics, so that value errors have the same weight for small and for large returns.
        action_space: Encodes actions and turns policy parameters into distributions.
        gamma: Discount factor in (0, 1].
        gae_lambda: Decay of the advantage estimate in [0, 1] (arXiv 1506.02438).
        clip_epsilon: Largest change of the ratio of probabilities, in (0, 1).
        entropy_coeff: Weight of the entropy bonus.
        critic_coeff: Weight of the values' squared error.
        value_clip: Largest change of a value per batch, in standard deviations of returns; None for
            no limit.
        normalize_advantage: Normalise the advantages of an update to zero mean and unit variance.
        reward_multiplier: Factor on rewards before learning.

    Raises:
        ArgumentError: A setting is out of its range, a head has several discounts, or a batch
            holds no valid transition or is not annotated.
    """

    @dataclass
    class _AcceptedKeys(SequenceLoss._AcceptedKeys):
        """Keys of `SequenceLoss`, ``truncated`` below ``next``, and the keys of `annotate`."""

        truncated: NestedKey = "truncated"
        action_log_prob: NestedKey = "action_log_prob"
        state_value: NestedKey = "state_value"
        advantage: NestedKey = "advantage"
        value_target: NestedKey = "value_target"

    default_keys = _AcceptedKeys

    @check_bounds
    def __init__(
        self,
        encoder: TensorDictModuleBase,
        actor: nn.Module,
        critic: nn.Module,
        returns: PopArt,
        *,
        action_space: ActionSpace,
        gamma: Annotated[float, Bounds(above=0, most=1)] = 0.99,
        gae_lambda: UnitInterval = 0.95,
        clip_epsilon: Annotated[float, Bounds(above=0, below=1)] = 0.2,
        entropy_coeff: NonNegativeFloat = 0.01,
        critic_coeff: NonNegativeFloat = 0.5,
        value_clip: PositiveFloat | None = None,
        normalize_advantage: bool = True,
        reward_multiplier: PositiveFloat = 1.0,
    ) -> None:
        super().__init__(encoder, action_space=action_space)
        check_module("SequencePPOLoss", "actor", actor, nn.Module)
        check_module("SequencePPOLoss", "critic", critic, nn.Module)
        check_module("SequencePPOLoss", "returns", returns, ValueRepresentation)
        for module in encoder.modules():
            resolution = getattr(module, "memory_resolution", None)
            condition = "be None, because PPO needs the probabilities with which actions were drawn"
            name = "memory_resolution of the encoder"
            require("SequencePPOLoss", name, resolution, resolution is None, condition)
        check_size("SequencePPOLoss", "actor", actor, "num_gammas", 1, "the one gamma")
        check_size("SequencePPOLoss", "critic", critic, "out_features", 1, "the one gamma")
        check_size("SequencePPOLoss", "returns", returns, "num_gammas", 1, "the one gamma")
        self.gamma = gamma
        self.gae_lambda = gae_lambda
        self.reward_multiplier = reward_multiplier
        value = _Value(critic, returns)
        self.clipped = ClipPPOLoss(
            _policy(actor, action_space),
            TensorDictModule(value, in_keys=["context"], out_keys=["state_value"]),
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
        """Representation of values."""
        return self.clipped.critic_network.module.returns

    @property
    def in_keys(self) -> list[NestedKey]:
        """Keys that are read after `annotate`; ``action_mask`` only if the environment has one."""
        own = ("action", "mask", "is_init", "action_mask", *_ANNOTATIONS)
        keys = [getattr(self.tensor_keys, name) for name in own]
        return list(dict.fromkeys([*self.encoder.in_keys, *keys]))

    @property
    def out_keys(self) -> list[NestedKey]:
        """Terms and metrics of ``ClipPPOLoss``."""
        return list(self.clipped.out_keys)

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """Put all modules into evaluation mode within the block, as they are while acting.

        Dropout or moving statistics would make the policy that learns differ from the policy that
        acted, and ratios would not start at 1.
        """
        mode = self.training
        self.eval()
        for module in self.modules():
            # cuDNN differentiates recurrent layers in training mode only.
            if isinstance(module, nn.RNNBase) and module.dropout == 0:
                module.train(mode)
        try:
            yield
        finally:
            self.train(mode)

    @torch.no_grad()
    def annotate(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a copy of a batch ``[B, L]`` with the entries of the present policy.

        A rollout ``[*, T]`` is returned packed.

        The present policy must be the one that acted, and must compute as in the updates that
        follow (under the same autocast): otherwise ratios do not start at 1. Besides the entries
        that the loss reads, ``reward``, ``terminated`` and, if there is one, ``truncated``
        ``[B, L, 1]`` are read under ``"next"``.
        """
        keys = self.tensor_keys
        tensordict = self.packed(tensordict)
        valid = self._valid_transitions(tensordict)
        with self._acting():
            context = self._context_of(encode(self.encoder, tensordict))
            decisions = self._decisions(tensordict, context, valid)
            policy = self.clipped.actor_network.get_dist(decisions)
            log_prob = context.new_zeros(valid.shape, dtype=torch.float32)
            log_prob[valid] = policy.log_prob(decisions["action"])
            value = self.clipped.critic_network.module.to_returns(context)
        # Sums over a whole trajectory need more precision than bfloat16 has.
        with torch.autocast(value.device.type, enabled=False):
            advantage, target = self._advantages(tensordict, value, valid)
        self.returns.update(target, valid)

        annotated = tensordict.copy()
        # The last timestep has no transition.
        annotated[keys.action_log_prob] = pad(log_prob, (0, 1))
        annotated[keys.state_value] = value
        annotated[keys.advantage] = pad(advantage, (0, 0, 0, 1))
        annotated[keys.value_target] = pad(target, (0, 0, 0, 1))
        return annotated

    def _advantages(
        self, tensordict: TensorDictBase, value: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute advantages and targets ``[B, T, 1]``, zero at invalid transitions.

        Args:
            tensordict: Batch ``[B, L]``.
            value: Values ``[B, L, 1]`` in units of multiplied rewards.
            valid: Bool ``[B, T]``.
        """
        reward = self._outcome(tensordict, "reward")
        reward = torch.where(valid, self.reward_multiplier * reward, 0.0)
        terminated = self._outcome(tensordict, "terminated")
        truncated = torch.zeros_like(terminated)
        if unravel_key(("next", self.tensor_keys.truncated)) in tensordict.keys(True):
            truncated = self._outcome(tensordict, "truncated")
        # A trajectory may also end in the batch without being done: where the next transition is
        # invalid, and at the end of the sequence.
        is_last = torch.ones_like(valid)
        is_last[:, :-1] = ~valid[:, 1:]
        done = terminated | truncated | is_last | ~valid
        advantage, target = vec_generalized_advantage_estimate(
            self.gamma,
            self.gae_lambda,
            value[:, :-1],
            value[:, 1:],
            reward.unsqueeze(-1),
            done.unsqueeze(-1),
            (terminated | ~valid).unsqueeze(-1),
        )
        is_valid = valid.unsqueeze(-1)
        return torch.where(is_valid, advantage, 0.0), torch.where(is_valid, target, 0.0)

    @property
    def acting_discount(self) -> float:
        """Discount factor of the policy."""
        return self.gamma

    @torch.no_grad()
    def td_errors(self, tensordict: TensorDictBase) -> Tensor:
        """Compute the one-step errors of the values.

        Args:
            tensordict: Batch [B, L], or rollout [*, T].

        Returns:
            Target minus value, [B, T] float32 in units of multiplied rewards; 0 at invalid
            transitions.
        """
        tensordict = self.packed(tensordict)
        valid = self._joined(tensordict)
        with self._acting():
            context = self._context_of(encode(self.encoder, tensordict))
            value = self.clipped.critic_network.module.to_returns(context).float().squeeze(-1)
        later = torch.where(self._outcome(tensordict, "terminated"), 0.0, value[:, ARRIVAL])
        reward = self.reward_multiplier * self._outcome(tensordict, "reward")
        errors = reward + self.gamma * later - value[:, DEPARTURE]
        return torch.where(valid, errors, 0.0)

    @torch.no_grad()
    def refresh(self, tensordict: TensorDictBase) -> None:
        """Update input statistics and norm estimates of the encoder by one pass over a batch.

        This changes the policy slightly. Call it after the last update on a batch and before the
        next batch is collected.
        """
        mode = self.encoder.training
        encode(self.encoder.train(), tensordict)
        self.encoder.train(mode)

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Compute the terms and metrics of ``ClipPPOLoss`` for an annotated batch ``[B, L]``."""
        tensordict = self.packed(tensordict)
        valid = self._valid_transitions(tensordict)
        names = sorted(map(str, tensordict.keys()))
        is_annotated = tensordict.get(self.tensor_keys.value_target, None) is not None
        condition = f"hold {self.tensor_keys.value_target!r}"
        remedy = "pass the batch that annotate(batch) returns"
        require("SequencePPOLoss", "the batch", names, is_annotated, condition, remedy=remedy)
        with self._acting():
            context = self._context_of(encode(self.encoder, tensordict))
            decisions = self._decisions(tensordict, context, valid)
            for name in _ANNOTATIONS:
                key = getattr(self.tensor_keys, name)
                decisions[name] = tensordict[key][:, DEPARTURE][valid]
            # Value errors are in standard deviations of returns, as the outputs of `_Value` are.
            decisions["state_value"] = decisions["state_value"] / self.returns.std
            decisions["value_target"] = decisions["value_target"] / self.returns.std
            return self.clipped(decisions)

    def _decisions(self, tensordict: TensorDictBase, context: Tensor, valid: Tensor) -> TensorDict:
        """Select the M valid transitions: context, encoded action and allowed actions."""
        decisions = TensorDict({}, [int(valid.sum())])
        decisions["context"] = context[:, DEPARTURE][valid]
        decisions["action"] = self._taken_actions(tensordict, valid)[valid]
        mask = self._action_mask(tensordict, DEPARTURE, needed=valid)
        if mask is not None:
            decisions["action_mask"] = mask[valid]
        return decisions


def _policy(actor: nn.Module, action_space: ActionSpace) -> ProbabilisticTensorDictSequential:
    """Wrap an actor with one discount in the form that TorchRL's losses expect."""

    def without_gammas(params: Tensor) -> Tensor:
        # [*, 1, P] -> [*, P], in float32 also under autocast.
        return params.squeeze(-2).float()

    distribution = ProbabilisticTensorDictModule(
        in_keys=["params", "action_mask"],
        out_keys=["action"],
        distribution_class=action_space.distribution,
        return_log_prob=True,
        log_prob_key="action_log_prob",
    )
    return ProbabilisticTensorDictSequential(
        TensorDictModule(actor, in_keys=["context"], out_keys=["params"]),
        TensorDictModule(without_gammas, in_keys=["params"], out_keys=["params"]),
        distribution,
    )


class _Value(nn.Module):
    """Values ``[*, 1]`` of a critic with one discount, in standard deviations of returns."""

    def __init__(self, critic: nn.Module, returns: PopArt) -> None:
        super().__init__()
        self.critic = critic
        self.returns = returns

    def to_returns(self, context: Tensor) -> Tensor:
        """Compute values ``[*, 1]`` in units of returns."""
        return self.returns.to_returns(self.critic(context).unsqueeze(-1))

    def forward(self, context: Tensor) -> Tensor:
        return self.to_returns(context) / self.returns.std
