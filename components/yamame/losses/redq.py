"""Actor and critics for many discounts: randomised ensemble targets, policy improvement, filtered cloning.

The arithmetic of one update. How a batch is read, and what its keys are: :mod:`yamame.losses.sequence`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey
from torch import Tensor, nn

from yamame.actions import ActionDistribution, ActionSpace, BoxActions
from yamame.heads import Returns
from yamame.losses.functional import (
    advantage_filter,
    bootstrapped_targets,
    critic_subset_value,
    masked_mean,
)
from yamame.losses.policy_values import (
    PolicyValues,
    enumerate_policy,
    pick_action,
    sample_policy,
    straight_through,
)
from yamame.losses.sequence import Contexts, SequenceActorCriticLoss


class MultiGammaREDQLoss(SequenceActorCriticLoss):
    """One update of an actor-critic with G discounts and C critics over a shared sequence encoder.

    The learning rule of AMAGO (arXiv 2310.09971), with random subsets of an ensemble in the targets (REDQ,
    arXiv 2101.05982) and critic-regularised cloning (CRR, arXiv 2006.15134). The output holds, each already
    multiplied by its coefficient,

    * ``loss_critic``: error of every critic against the n-step target; trains critics and encoder;
    * ``loss_online``: minus the smallest critic's normalised value of the policy, the critics and their state
      input held fixed; trains the actor and, through the actor's input, the encoder;
    * ``loss_cloning``: minus the log-probability of the taken action where the critics find it better than
      the policy; trains actor and encoder.

    Their sum is the objective of one optimizer; ``torchrl.objectives.SoftUpdate(loss, tau=...)`` moves the
    target heads after its step. A term with coefficient 0 is neither computed nor written, nor are critics
    that nothing uses. In training mode the value statistics move with the targets, which are computed with
    those from before and normalised by those from after.

    Beside the terms stand detached metrics of the last discount, the one that acts: the means over valid
    transitions of ``td_error`` (absolute), ``q_value``, ``target_value``, ``entropy`` and ``filter_weight``
    (with the binary filter: the share of cloned actions), and ``return_std``, by which values are normalised,
    where ``returns`` has moments. With several discounts ``q_value_gamma_<g>`` and ``filter_weight_gamma_<g>`` tell
    of each. Values are in units of multiplied rewards.

    A policy's values are exact expectations where actions can be enumerated and means over samples elsewhere
    (one sample in the target).

    Args:
        encoder: writes ``context`` [B, L, D]. An ordinary submodule, so the loss's mode and device reach it.
        actor: context [*, D] to policy parameters [*, G, P].
        critic: context [*, D] to values of every action [*, C, A, G, O], or, where actions cannot be
            enumerated, (context [*, D], encoded actions [*, G, A]) to [*, C, G, O]. The actions may have one
            more leading dimension than the context: several samples. None where no term uses one: behaviour cloning
            without a filter.
        returns: what the O outputs of a value mean: :class:`yamame.heads.PopArt` or
            :class:`yamame.heads.BinnedReturns`.
        action_space: encodes actions and turns policy parameters into distributions.
        gammas: discounts in (0, 1), in the order of the heads.
        num_target_critics: critics drawn for each target; their minimum counts with the online term, their
            mean without it.
        reward_multiplier: factor on rewards before learning.
        online_coeff: weight of maximising the critics.
        cloning_coeff: weight of filtered behaviour cloning.
        critic_coeff: weight of the critics' error.
        cloning_filter: what is cloned, see :func:`yamame.losses.advantage_filter`.
        filter_threshold: advantage beyond which an action counts as good, in units of multiplied rewards.
        filter_temperature: scale of the exponential filter, in the same units.
        n_step: the most rewards in one target.
        num_action_samples: policy samples per state and discount where actions cannot be enumerated, and where
            ``discrete_gradient`` draws them.
        discrete_gradient: how the online term differentiates a policy over enumerable actions. ``expectation``:
            exactly. ``straight_through``: at drawn actions, with the gradient of the probabilities (arXiv
            1308.3432), which is how several choices and bits, that are always drawn, are differentiated anyway.

    Raises:
        ValueError: if a setting is out of its range, a head disagrees about the number of discounts, or a
            batch holds no valid transition.

    Examples:
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl.objectives import SoftUpdate
        >>> from yamame.actions import DiscreteActions
        >>> from yamame.heads import ActorHead, PopArt, make_critic
        >>> space, gammas = DiscreteActions(3), (0.9, 0.99)
        >>> loss = MultiGammaREDQLoss(
        ...     TensorDictModule(nn.Linear(4, 8), in_keys=["observation"], out_keys=["context"]),
        ...     ActorHead(8, action_space=space, num_gammas=2),
        ...     make_critic(8, action_space=space, gammas=gammas),
        ...     PopArt(2),
        ...     action_space=space,
        ...     gammas=gammas,
        ... )
        >>> updater = SoftUpdate(loss, tau=0.003)
        >>> no = torch.zeros(2, 5, 1, dtype=torch.bool)
        >>> batch = TensorDict({"observation": torch.randn(2, 5, 4), "mask": ~no, "is_init": no}, [2, 5])
        >>> batch["action"] = torch.zeros(2, 5, dtype=torch.long)
        >>> batch["next"] = TensorDict({"reward": torch.ones(2, 5, 1), "terminated": no}, [2, 5])
        >>> terms = loss(batch)
        >>> sorted(name for name in terms.keys() if name.startswith("loss_"))
        ['loss_cloning', 'loss_critic', 'loss_online']
    """

    def __init__(
        self,
        encoder: TensorDictModuleBase,
        actor: nn.Module,
        critic: nn.Module | None,
        returns: Returns,
        *,
        action_space: ActionSpace,
        gammas: Sequence[float],
        num_target_critics: int = 2,
        reward_multiplier: float = 100.0,
        online_coeff: float = 1.0,
        cloning_coeff: float = 0.1,
        critic_coeff: float = 10.0,
        cloning_filter: Literal["binary", "exponential", "none"] = "binary",
        filter_threshold: float = 0.0,
        filter_temperature: float = 1.0,
        n_step: int = 1,
        num_action_samples: int = 1,
        discrete_gradient: Literal["expectation", "straight_through"] = "expectation",
    ) -> None:
        super().__init__(encoder, actor, critic, action_space=action_space, gammas=gammas)
        self.returns = returns
        self.num_target_critics = num_target_critics
        self.reward_multiplier = reward_multiplier
        self.online_coeff = online_coeff
        self.cloning_coeff = cloning_coeff
        self.critic_coeff = critic_coeff
        self.cloning_filter = cloning_filter
        self.filter_threshold = filter_threshold
        self.filter_temperature = filter_temperature
        self.n_step = n_step
        self.num_action_samples = num_action_samples
        self.discrete_gradient = discrete_gradient
        self._discounts = tuple(float(gamma) for gamma in gammas)
        self._check_settings()

    def _check_settings(self) -> None:
        def require(ok: bool, name: str, condition: str) -> None:
            if not ok:
                owner = type(self).__name__
                raise ValueError(f"{owner}: {name} must {condition}, got {getattr(self, name)!r}")

        for name in ("num_target_critics", "n_step", "num_action_samples"):
            require(getattr(self, name) >= 1, name, "be at least 1")
        for name in ("reward_multiplier", "filter_temperature"):
            require(getattr(self, name) > 0, name, "be positive")
        for name in ("online_coeff", "cloning_coeff", "critic_coeff"):
            require(getattr(self, name) >= 0, name, "not be negative")
        some = self.online_coeff + self.cloning_coeff + self.critic_coeff > 0
        require(some, "critic_coeff", "be positive where online_coeff and cloning_coeff are 0")
        kinds = ("binary", "exponential", "none")
        require(self.cloning_filter in kinds, "cloning_filter", f"be one of {kinds}")
        gradients = ("expectation", "straight_through")
        require(self.discrete_gradient in gradients, "discrete_gradient", f"be one of {gradients}")
        ignored = self.discrete_gradient != "expectation" and isinstance(self.action_space, BoxActions)
        require(not ignored, "discrete_gradient", "be 'expectation' where actions are continuous")
        if not self.has_critic and self._critic_terms:
            terms = " and ".join(self._critic_terms)
            raise ValueError(f"{type(self).__name__}: critic must not be None with {terms}, got None")

    @property
    def _critic_terms(self) -> list[str]:
        """Settings because of which critics are needed."""
        terms = [name for name in ("critic_coeff", "online_coeff") if getattr(self, name) > 0]
        return [*terms, *(["cloning_filter"] if self._filters else [])]

    @property
    def _filters(self) -> bool:
        return self.cloning_coeff > 0 and self.cloning_filter != "none"

    @property
    def out_keys(self) -> list[NestedKey]:
        """The terms that are switched on and the metrics."""
        critic = ["loss_critic", "td_error", "q_value", "target_value"] if self.critic_coeff > 0 else []
        critic += ["return_std"] if critic and hasattr(self.returns, "moments") else []
        critic += [f"q_value_{label}" for label in self._gamma_labels] if critic else []
        online = ["loss_online"] if self.online_coeff > 0 else []
        cloning = ["loss_cloning"] if self.cloning_coeff > 0 else []
        filters = ["filter_weight", *(f"filter_weight_{label}" for label in self._gamma_labels)]
        return [*critic, *online, *cloning, *(filters if self._filters else []), "entropy"]

    @property
    def _gamma_labels(self) -> list[str]:
        """Endings of the metrics that every discount has, if there are several."""
        return [f"gamma_{gamma:g}" for gamma in self._discounts] if len(self._discounts) > 1 else []

    def _each_gamma(self, name: str, values: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """A metric of every discount: the means of values [B, T, ..., G]."""
        means = (masked_mean(values[..., index], valid) for index in range(values.shape[-1]))
        return {f"{name}_{label}": mean for label, mean in zip(self._gamma_labels, means, strict=False)}

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Computes the terms and metrics of one batch of sequences [B, L]."""
        valid = self._valid_transitions(tensordict)
        contexts = self._encode(tensordict)
        context = contexts.rows(slice(None, -1))
        action = self._taken_actions(tensordict, valid)
        params = self._actor(self.actor_network_params, context.actor)
        mask = self._action_mask(tensordict, slice(None, -1), needed=valid)
        policy = self._distribution(params, mask)
        output: dict[str, Tensor] = {}
        weight = params.new_ones(params.shape[:-1])
        if self._critic_terms:
            # Targets come first: they move the statistics that normalise everything after them.
            targets = self._targets(tensordict, contexts, valid) if self.critic_coeff > 0 else None
            taken, policy_values = self._evaluate(context.critic, action, policy)
            taken_return = self.returns.to_returns(taken.detach())
            if targets is not None:
                error = masked_mean(self.returns.loss(taken, targets.unsqueeze(2)), valid)
                output["loss_critic"] = self.critic_coeff * error
                output |= self._critic_metrics(taken_return, targets, valid)
            if self.online_coeff > 0:
                output["loss_online"] = self._online_term(policy_values, policy, valid)
            if self._filters:
                weight = self._cloning_weight(taken_return, policy_values)
                output["filter_weight"] = masked_mean(weight[..., -1], valid)
                output |= self._each_gamma("filter_weight", weight, valid)
        if self.cloning_coeff > 0:
            error = -weight * policy.log_prob(action.unsqueeze(-2))
            output["loss_cloning"] = self.cloning_coeff * masked_mean(error, valid)
        acting = self._distribution(params[..., -1:, :].detach(), mask)
        output["entropy"] = masked_mean(acting.entropy(), valid)
        return TensorDict(output)

    @torch.no_grad()
    def _targets(self, tensordict: TensorDictBase, contexts: Contexts, valid: Tensor) -> Tensor:
        """Targets [B, T, G], given the contexts [B, L, D] that are trained; moves the statistics."""
        following = self._encode_following(tensordict, contexts)
        reward, terminated = self._rewards(tensordict)
        params = self._actor(self.target_actor_network_params, following.actor)
        mask = self._action_mask(tensordict, slice(1, None), needed=valid & ~terminated)
        policy = self._distribution(params, mask)
        critic = partial(self._critics, self.target_critic_network_params)
        if self.action_space.enumerable:
            policy_values = enumerate_policy(critic(following.critic), policy)
        else:
            policy_values = sample_policy(critic, following.critic, policy, num_samples=1)
        next_value = critic_subset_value(
            policy_values.expect(self.returns.to_returns(policy_values.raw)),
            self.num_target_critics,
            reduce="min" if self.online_coeff > 0 else "mean",
        )
        targets = bootstrapped_targets(
            reward,
            terminated,
            next_value,
            gammas=self.gammas,
            valid=valid,
            n_step=self.n_step,
            reward_multiplier=self.reward_multiplier,
        )
        if self.training:
            self.returns.update(targets, valid)
        return targets

    def _evaluate(
        self, context: Tensor, action: Tensor, policy: ActionDistribution
    ) -> tuple[Tensor, PolicyValues]:
        """Raw values [B, T, C, G, O] of the taken action, which train the critics; the policy's values."""
        trained, frozen = self.critic_network_params, self.critic_network_params.data
        params, state = (trained, context) if self.critic_coeff > 0 else (frozen, context.detach())
        if self.action_space.enumerable:
            raw = self._critics(params, state)
            return pick_action(raw, action), enumerate_policy(raw.detach(), policy)
        everywhere = action.unsqueeze(-2).expand(-1, -1, self.gammas.numel(), -1)
        taken = self._critics(params, state, everywhere)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.online_coeff > 0):
            critic = partial(self._critics, frozen)
            return taken, sample_policy(critic, context.detach(), policy, self.num_action_samples)

    def _critic_metrics(self, taken_return: Tensor, targets: Tensor, valid: Tensor) -> dict[str, Tensor]:
        q_value, target = taken_return[..., -1], targets[..., -1]
        metrics = {
            "td_error": masked_mean((q_value - target.unsqueeze(2)).abs(), valid),
            "q_value": masked_mean(q_value, valid),
            "target_value": masked_mean(target, valid),
            **self._each_gamma("q_value", taken_return, valid),
        }
        moments = getattr(self.returns, "moments", None)
        return metrics if moments is None else metrics | {"return_std": moments.std[-1]}

    def _online_term(self, policy_values: PolicyValues, policy: ActionDistribution, valid: Tensor) -> Tensor:
        if self.action_space.enumerable and self.discrete_gradient == "straight_through":
            policy_values = straight_through(policy_values.raw, policy, self.num_action_samples)
        value = policy_values.expect(self.returns.to_normalized(policy_values.raw)).amin(2)
        return -self.online_coeff * masked_mean(value, valid)

    @torch.no_grad()
    def _cloning_weight(self, taken_return: Tensor, policy_values: PolicyValues) -> Tensor:
        expected = policy_values.expect(self.returns.to_returns(policy_values.raw))
        return advantage_filter(
            (taken_return - expected).mean(2),
            kind=self.cloning_filter,
            threshold=self.filter_threshold,
            temperature=self.filter_temperature,
        )
