"""Actor and critics for many discounts: randomised ensemble targets, policy improvement, filtered
cloning.

The arithmetic of one update. How a batch is read, and what its keys are:
:mod:`yamame.losses.sequence`.

Shapes: B sequences, L timesteps, T = L - 1 transitions, G discounts, C critics, O raw outputs of
one value, P policy parameters, A the size of an encoded action, D the size of a context.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey
from torch import Tensor, nn

from yamame.actions import ActionDistribution, ActionSpace
from yamame.checks import require, require_at_least, require_choice
from yamame.heads import ValueRepresentation
from yamame.losses.functional import (
    advantage_filter,
    bootstrapped_targets,
    critic_subset_value,
    masked_mean,
)
from yamame.losses.metrics import clipped_share, gamma_means, gamma_names, value_metrics
from yamame.losses.policy_values import (
    PolicyValues,
    enumerate_policy,
    pick_action,
    sample_policy,
    straight_through,
)
from yamame.losses.sequence import ARRIVAL, DEPARTURE, SequenceActorCriticLoss


class MultiGammaREDQLoss(SequenceActorCriticLoss):
    """One update of an actor-critic with G discounts and C critics over a shared sequence encoder.

    The learning rule of AMAGO (arXiv 2310.09971), with random subsets of an ensemble in the targets
    (REDQ, arXiv 2101.05982) and critic-regularised cloning (CRR, arXiv 2006.15134). The output
    holds, each already multiplied by its coefficient,

    * ``loss_critic``: error of every critic against the n-step target; trains critics and encoder;
    * ``loss_online``, the actor loss: minus the smallest critic's normalised value of the policy,
      the critics and their state input held fixed; trains the actor and, through the actor's input,
      the encoder;
    * ``loss_cloning``, behaviour cloning: minus the log-probability of the taken action where the
      critics find it better than the policy; trains actor and encoder.

    Their sum is the objective of one optimizer; `update_targets` moves the target heads after its
    step. A term with coefficient 0 is neither computed nor written, nor are critics that nothing
    uses. In training mode the value statistics move with the targets, which are computed with those
    from before and normalised by those from after.

    The target of one step is ``y = m r + gamma (1 - terminated) R_c E_pi'[Q'_c(h', a')]``, with the
    reward multiplier m, target heads pi' and Q', and c over ``num_target_critics`` of the C
    critics. R is the minimum where ``online_coeff`` is positive, because a policy that maximises
    critics exploits their errors, and else the mean.

    Beside the terms stand detached metrics of the last discount, the one that acts: the means over
    valid transitions of ``td_error`` (absolute), ``q_value``, ``target_value``, ``entropy`` and
    ``filter_weight`` (with the binary filter: the share of cloned actions), and ``return_std``, by
    which values are normalised. With several discounts ``q_value_gamma_<g>`` and
    ``filter_weight_gamma_<g>`` tell of each. ``clipped_targets``, with `yamame.heads.BinnedReturns`
    only, is the share of targets of all discounts outside its bounds. Values are in units of
    multiplied rewards. A policy's values are exact expectations where actions can be enumerated,
    else means over samples (one in a target).

    Args:
        encoder: writes ``context`` [B, L, D].
        actor: context [*, D] to policy parameters [*, G, P].
        critic: context [*, D] to values of every action [*, C, A, G, O], or, where actions cannot
            be enumerated, (context [*, D], encoded actions [*, G, A]) to [*, C, G, O]. The actions
            may have one more leading dimension than the context: several samples. None where no
            term uses one: behaviour cloning without a filter.
        returns: what the O outputs of a value mean: `yamame.heads.PopArt` or
            `yamame.heads.BinnedReturns`.
        action_space: encodes actions and turns policy parameters into distributions.
        gammas: different discounts in (0, 1), in the order of the heads.
        num_target_critics: critics drawn for each target, see above.
        reward_multiplier: factor on rewards before learning.
        online_coeff: weight of the actor loss; without it, targets are means over critics.
        cloning_coeff: weight of filtered behaviour cloning.
        critic_coeff: weight of the critics' error.
        cloning_filter: what is cloned, see `yamame.losses.advantage_filter`.
        filter_threshold: advantage beyond which an action counts as good, in units of multiplied
            rewards.
        filter_temperature: scale of the exponential filter, in the same units.
        n_step: the most rewards in one target.
        num_action_samples: policy samples per state and discount where actions cannot be
            enumerated, and where ``discrete_gradient`` draws them.
        discrete_gradient: how the actor loss differentiates a policy over enumerable actions.
            ``expectation``: exactly. ``straight_through``: at drawn actions, with the gradient of
            the probabilities (arXiv 1308.3432), which is how several choices and bits, that are
            always drawn, are differentiated anyway.
        target_tau: share of the heads in the target heads after `update_targets`, in (0, 1].

    Raises:
        ValueError: if a setting is out of its range, a head disagrees about the number of
            discounts, or a batch holds no valid transition.

    >>> from tensordict.nn import TensorDictModule
    >>> from torchrl.data import Categorical
    >>> from yamame.heads import ActorHead, PopArt, make_critic
    >>> space, gammas = ActionSpace(Categorical(3)), (0.9, 0.99)
    >>> encoder = TensorDictModule(nn.Linear(4, 8), in_keys=["observation"], out_keys=["context"])
    >>> actor = ActorHead(8, action_space=space, num_gammas=2)
    >>> critic = make_critic(8, action_space=space, gammas=gammas)
    >>> loss = MultiGammaREDQLoss(encoder, actor, critic, PopArt(2), action_space=space, gammas=gammas)
    >>> no = torch.zeros(2, 5, 1, dtype=torch.bool)
    >>> batch = TensorDict({"observation": torch.randn(2, 5, 4), "mask": ~no, "is_init": no}, [2, 5])
    >>> batch["action"] = torch.zeros(2, 5, dtype=torch.long)
    >>> batch["next"] = TensorDict({"reward": torch.ones(2, 5, 1), "terminated": no}, [2, 5])
    >>> sorted(name for name in loss(batch).keys() if name.startswith("loss_"))
    ['loss_cloning', 'loss_critic', 'loss_online']
    >>> loss.update_targets()  # after the optimizer's step
    """

    def __init__(
        self,
        encoder: TensorDictModuleBase,
        actor: nn.Module,
        critic: nn.Module | None,
        returns: ValueRepresentation,
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
        target_tau: float = 0.005,
    ) -> None:
        super().__init__(
            encoder, actor, critic, action_space=action_space, gammas=gammas, target_tau=target_tau
        )
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
        self._check_settings()

    def _check_settings(self) -> None:
        owner = type(self).__name__
        counts = ("num_target_critics", "n_step", "num_action_samples")
        coefficients = ("online_coeff", "cloning_coeff", "critic_coeff")
        require_at_least(owner, 1, **{name: getattr(self, name) for name in counts})
        require_at_least(owner, 0, **{name: getattr(self, name) for name in coefficients})
        learns = self.online_coeff > 0 or self.cloning_coeff > 0 or self.critic_coeff > 0
        condition = "be positive where online_coeff and cloning_coeff are 0"
        require(owner, "critic_coeff", self.critic_coeff, learns, condition)
        for name in ("reward_multiplier", "filter_temperature"):
            require(owner, name, getattr(self, name), getattr(self, name) > 0, "be positive")
        require_choice(
            owner, "cloning_filter", self.cloning_filter, ("binary", "exponential", "none")
        )
        gradient = self.discrete_gradient
        require_choice(owner, "discrete_gradient", gradient, ("expectation", "straight_through"))
        suits = gradient == "expectation" or self.action_space.kind != "box"
        require(
            owner,
            "discrete_gradient",
            gradient,
            suits,
            "be 'expectation' where actions are continuous",
        )
        if self.critic_network is None:
            users = self._uses_critics
            condition = f"not be None (num_critics 0) with {' and '.join(users)}"
            require(owner, "critic", None, not users, condition)
        most = getattr(self.critic_network, "num_critics", self.num_target_critics)
        enough = self.num_target_critics <= most
        require(
            owner,
            "num_target_critics",
            self.num_target_critics,
            enough,
            f"be at most num_critics {most}",
        )

    @property
    def _filters(self) -> bool:
        return self.cloning_coeff > 0 and self.cloning_filter != "none"

    @property
    def _uses_critics(self) -> list[str]:
        """Settings because of which critics are needed."""
        terms = [name for name in ("critic_coeff", "online_coeff") if getattr(self, name) > 0]
        return [*terms, "cloning_filter"] if self._filters else terms

    @property
    def out_keys(self) -> list[NestedKey]:
        """The terms that are switched on and the metrics."""
        keys = ["loss_online"] if self.online_coeff > 0 else []
        keys += ["loss_cloning"] if self.cloning_coeff > 0 else []
        if self.critic_coeff > 0:
            keys += ["loss_critic", "return_std", "td_error", "target_value"]
            keys += gamma_names("q_value", self.discounts)
            keys += [] if self.returns.bounds is None else ["clipped_targets"]
        return [
            *keys,
            *(gamma_names("filter_weight", self.discounts) if self._filters else []),
            "entropy",
        ]

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Computes the terms and metrics of one batch of sequences [B, L]."""
        valid = self._valid_transitions(tensordict)
        contexts = self._contexts(self.encoder, tensordict)
        actor_context, critic_context = (context[:, DEPARTURE] for context in contexts)
        action = self._taken_actions(tensordict, valid)
        mask = self._action_mask(tensordict, DEPARTURE, needed=valid)
        params = self._policy_params(self.actor_network, actor_context)
        policy = self._distribution(params, mask)
        output: dict[str, Tensor] = {}
        weight = params.new_ones(params.shape[:-1])
        if self._uses_critics:
            # TD targets come first: they move the statistics that normalise everything after them.
            targets = (
                self._td_targets(tensordict, *contexts, valid) if self.critic_coeff > 0 else None
            )
            taken, policy_values = self._evaluate(critic_context, action, policy)
            q_value = self.returns.to_returns(taken.detach())
            assert q_value.shape == (*valid.shape, taken.shape[2], len(self.discounts))
            if targets is not None:
                error = masked_mean(self.returns.loss(taken, targets.unsqueeze(2)), valid)
                output["loss_critic"] = self.critic_coeff * error
                output |= value_metrics(q_value, targets, valid, self.discounts)
                output["return_std"] = self.returns.std[-1]
                if self.returns.bounds is not None:
                    output["clipped_targets"] = clipped_share(targets, valid, self.returns.bounds)
            if self.online_coeff > 0:
                output["loss_online"] = self.online_coeff * self._actor_loss(
                    policy_values, policy, valid
                )
            if self._filters:
                weight = self._cloning_weight(taken.detach(), policy_values)
                output |= gamma_means("filter_weight", weight, valid, self.discounts)
        if self.cloning_coeff > 0:
            log_prob = policy.cloning_log_prob(action.unsqueeze(-2))
            assert log_prob.shape == weight.shape == (*valid.shape, len(self.discounts))
            output["loss_cloning"] = self.cloning_coeff * masked_mean(-weight * log_prob, valid)
        acting = self._distribution(params[..., -1:, :].detach(), mask)
        output["entropy"] = masked_mean(acting.entropy(), valid)
        return TensorDict(output)

    @torch.no_grad()
    def _td_targets(
        self,
        tensordict: TensorDictBase,
        actor_context: Tensor,
        critic_context: Tensor,
        valid: Tensor,
    ) -> Tensor:
        """TD targets [B, T, G] of the target heads, given the contexts [B, L, D]; moves the
        statistics.
        """
        actor_context, critic_context = self._arrival_contexts(
            tensordict, actor_context, critic_context
        )
        reward, terminated = (self._outcome(tensordict, name) for name in ("reward", "terminated"))
        params = self._policy_params(self._targets["actor"], actor_context)
        mask = self._action_mask(tensordict, ARRIVAL, needed=valid & ~terminated)
        policy = self._distribution(params, mask)
        critics = partial(self._raw_values, self._targets["critic"])
        if self.action_space.enumerable:
            policy_values = enumerate_policy(critics(critic_context), policy)
        else:
            policy_values = sample_policy(critics, critic_context, policy, num_samples=1)
        next_values = policy_values.expect(self.returns.to_returns(policy_values.raw))
        reduce: Literal["min", "mean"] = "min" if self.online_coeff > 0 else "mean"  # see the class
        next_value = critic_subset_value(next_values, self.num_target_critics, reduce=reduce)
        assert next_value.shape == (*valid.shape, len(self.discounts))
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
        """Raw values [B, T, C, G, O] of the taken action, which train the critics; the policy's
        values.
        """
        critics, enumerable = self.critic_network, self.action_space.enumerable
        assert critics is not None
        for_each_gamma = action.unsqueeze(-2).expand(-1, -1, len(self.discounts), -1)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.critic_coeff > 0):
            inputs = (context,) if enumerable else (context, for_each_gamma)
            raw = self._raw_values(critics, *inputs)
        if enumerable:
            return pick_action(raw, action), enumerate_policy(raw.detach(), policy)
        # The actor loss differentiates values by the sampled actions; the critics get no gradient
        # of it.
        frozen = partial(self._raw_values, critics, frozen=True)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.online_coeff > 0):
            return raw, sample_policy(frozen, context.detach(), policy, self.num_action_samples)

    def _actor_loss(
        self, policy_values: PolicyValues, policy: ActionDistribution, valid: Tensor
    ) -> Tensor:
        """Minus the smallest critic's normalised value of the policy."""
        if self.action_space.enumerable and self.discrete_gradient == "straight_through":
            policy_values = straight_through(policy_values.raw, policy, self.num_action_samples)
        value = policy_values.expect(self.returns.to_normalized(policy_values.raw)).amin(2)
        assert value.shape == (*valid.shape, len(self.discounts))
        return -masked_mean(value, valid)

    @torch.no_grad()
    def _cloning_weight(self, taken: Tensor, policy_values: PolicyValues) -> Tensor:
        """How much the taken actions, of raw values [B, T, C, G, O], are cloned: [B, T, G].

        Values are subtracted in normalised units: float32 rounds the difference of two large
        returns away.
        """
        normalized = self.returns.to_normalized
        advantage = normalized(taken) - policy_values.expect(normalized(policy_values.raw))
        return advantage_filter(
            advantage.mean(2) * self.returns.std,
            kind=self.cloning_filter,
            threshold=self.filter_threshold,
            temperature=self.filter_temperature,
        )
