"""Actor-critic loss for many discounts: ensemble targets, policy improvement, filtered cloning.

This file holds the arithmetic of one update. `yamame.losses.sequence` describes the keys of a batch
and reads them.

Shapes: B sequences, L timesteps, T = L - 1 transitions, G discounts, C critics, O raw outputs of
one value, P policy parameters, A the size of an encoded action, D the size of a context.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey
from torch import Tensor, nn

from yamame.actions import ActionDistribution, ActionSpace
from yamame.checks import (
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    check_bounds,
    require,
    require_choice,
)
from yamame.heads import ValueRepresentation
from yamame.losses.functional import (
    MaskedMean,
    advantage_filter,
    bootstrapped_targets,
    critic_subset_value,
)
from yamame.losses.metrics import MetricMeans, gamma_names, is_clipped
from yamame.losses.policy_values import (
    PolicyValues,
    enumerate_policy,
    pick_action,
    sample_policy,
    straight_through,
)
from yamame.losses.sequence import (
    ARRIVAL,
    DEPARTURE,
    SequenceActorCriticLoss,
    check_module,
    check_size,
)

CloningFilter = Literal["binary", "exponential", "none"]
DiscreteGradient = Literal["expectation", "straight_through"]


class MultiGammaREDQLoss(SequenceActorCriticLoss):
    """Loss of an actor-critic with G discounts and C critics over a shared sequence encoder.

    This is the learning rule of AMAGO (arXiv 2310.09971), with random subsets of an ensemble in the
    targets (REDQ, arXiv 2101.05982) and critic-regularised cloning (CRR, arXiv 2006.15134). The
    output holds three terms, each multiplied by its coefficient:

    * ``loss_critic``: error of every critic against the n-step target. It trains critics and
      encoder.
    * ``loss_online``: actor loss, the negative normalised value of the policy under the smallest
      critic. It trains the actor and, through the actor's input, the encoder; the critics and
      their input are fixed.
    * ``loss_cloning``: behaviour cloning, the negative log-probability of the taken action where
      the critics prefer it to the policy. It trains actor and encoder.

    One optimizer minimises their sum, and `update_targets` moves the target heads after its step. A
    term with coefficient 0 is neither computed nor written, and critics that no term uses are not
    evaluated.

    The one-step target is ``y = m r + gamma (1 - terminated) R_c E_pi'[Q'_c(h', a')]`` with the
    reward multiplier m, target heads pi' and Q', and a reduction R over the ``num_target_critics``
    critics c that are drawn: the minimum, or the mean with ``online_coeff=0``. Where actions cannot
    be enumerated, one action is sampled and the target is ``E_pi'[R_c Q'_c]``, as in SAC (arXiv
    1812.05905).

    The output also holds detached metrics of the last discount, with which the agent acts: means
    over valid transitions of ``td_error`` (absolute), ``q_value``, ``target_value``, ``entropy``
    and ``filter_weight`` (with the binary filter: the share of cloned actions), and ``return_std``,
    the scale that normalises values. With several discounts, ``q_value_gamma_<g>`` and
    ``filter_weight_gamma_<g>`` are added for each. ``clipped_targets`` (with
    `yamame.heads.BinnedReturns` only) is the share of targets of all discounts outside the bounds.
    Values are in units of multiplied rewards.

    Args:
        encoder: Writes ``context`` [B, L, D].
        actor: Maps a context [*, D] to policy parameters [*, G, P].
        critic: Maps a context [*, D] to values of every action [*, C, A, G, O]. Where actions
            cannot be enumerated, it maps (context [*, D], encoded actions [*, G, A]) to
            [*, C, G, O], and the actions may have one more leading dimension than the context, for
            several samples. None if no term uses a critic: behaviour cloning without a filter.
        returns: Representation of values: `yamame.heads.PopArt`, `yamame.heads.BinnedReturns` or
            another `yamame.heads.ValueRepresentation`.
        action_space: Encodes actions and turns policy parameters into distributions.
        gammas: Distinct discounts in (0, 1), in the order of the heads.
        num_target_critics: Critics drawn for each target, of which the smallest value counts.
        reward_multiplier: Factor on rewards in the loss, never in the agent's input.
        online_coeff: Weight of the actor loss. With 0, targets are means over critics.
        cloning_coeff: Weight of filtered behaviour cloning.
        critic_coeff: Weight of the critics' error.
        cloning_filter: Actions that are cloned. ``binary``: those with an advantage above
            ``filter_threshold``. ``exponential``: all, weighted by the exponential of the
            advantage. ``none``: all, equally. See `yamame.losses.advantage_filter`.
        filter_threshold: Advantage beyond which an action is cloned, in units of multiplied
            rewards.
        filter_temperature: Scale of the exponential filter, in the same units.
        n_step: Largest number of rewards in one target.
        num_action_samples: Policy samples per state and discount where actions cannot be
            enumerated, and where ``discrete_gradient`` samples them.
        discrete_gradient: Gradient of the actor loss with enumerable actions. ``expectation`` is
            exact. ``straight_through`` samples actions and passes the gradient of their
            probabilities (arXiv 1308.3432); several choices and bits, which are always sampled,
            use it as well.
        target_tau: Polyak coefficient in (0, 1]: ``target = (1 - tau) target + tau online``.

    Raises:
        ArgumentError: A setting is out of its range, a head has other discounts, or a batch holds
            no valid transition or no sequences.

    >>> from tensordict.nn import TensorDictModule
    >>> from torchrl.data import Categorical
    >>> from yamame.heads import ActorHead, PopArt, make_critic
    >>> space, gammas = ActionSpace(Categorical(3)), (0.9, 0.99)
    >>> encoder = TensorDictModule(nn.Linear(4, 8), in_keys=["observation"], out_keys=["context"])
    >>> actor = ActorHead(8, action_space=space, num_gammas=2)
    >>> critic = make_critic(8, action_space=space, gammas=gammas)
    >>> options = {"action_space": space, "gammas": gammas}
    >>> loss = MultiGammaREDQLoss(encoder, actor, critic, PopArt(2), **options)
    >>> false = torch.zeros(2, 5, 1, dtype=torch.bool)
    >>> batch = TensorDict({"mask": ~false, "is_init": false}, [2, 5])
    >>> batch["observation"] = torch.randn(2, 5, 4)
    >>> batch["action"] = torch.zeros(2, 5, dtype=torch.long)
    >>> batch["next"] = TensorDict({"reward": torch.ones(2, 5, 1), "terminated": false}, [2, 5])
    >>> sorted(name for name in loss(batch).keys() if name.startswith("loss_"))
    ['loss_cloning', 'loss_critic', 'loss_online']
    >>> loss.update_targets()  # after the optimizer's step
    """

    @check_bounds
    def __init__(
        self,
        encoder: TensorDictModuleBase,
        actor: nn.Module,
        critic: nn.Module | None,
        returns: ValueRepresentation,
        *,
        action_space: ActionSpace,
        gammas: Sequence[float],
        num_target_critics: PositiveInt = 2,
        reward_multiplier: PositiveFloat = 100.0,
        online_coeff: NonNegativeFloat = 1.0,
        cloning_coeff: NonNegativeFloat = 0.1,
        critic_coeff: NonNegativeFloat = 10.0,
        cloning_filter: CloningFilter = "binary",
        filter_threshold: float = 0.0,
        filter_temperature: PositiveFloat = 1.0,
        n_step: PositiveInt = 2,
        num_action_samples: PositiveInt = 1,
        discrete_gradient: DiscreteGradient = "expectation",
        target_tau: float = 0.02,
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
        learns = self.online_coeff > 0 or self.cloning_coeff > 0 or self.critic_coeff > 0
        condition = "be positive where online_coeff and cloning_coeff are 0"
        require(owner, "critic_coeff", self.critic_coeff, learns, condition)

        require_choice(owner, "cloning_filter", self.cloning_filter, get_args(CloningFilter))
        gradient = self.discrete_gradient
        require_choice(owner, "discrete_gradient", gradient, get_args(DiscreteGradient))
        suits = gradient == "expectation" or self.action_space.kind != "box"
        condition = "be 'expectation' where actions are continuous"
        require(owner, "discrete_gradient", gradient, suits, condition)

        num_gammas = len(self.discounts)
        check_module(owner, "returns", self.returns, ValueRepresentation)
        check_size(owner, "returns", self.returns, "num_gammas", num_gammas, "the gammas")
        num_outputs = getattr(self.returns, "num_outputs", 1)
        check_size(owner, "critic", self.critic_network, "num_outputs", num_outputs, "returns")

        if self.critic_network is None:
            users = self._critic_users
            condition = f"not be None (num_critics 0) with {' and '.join(users)}"
            require(owner, "critic", None, not users, condition)
        # A custom critic may lack `num_critics`; `critic_subset_value` checks the number then.
        most = getattr(self.critic_network, "num_critics", self.num_target_critics)
        enough = self.num_target_critics <= most
        condition = f"be at most num_critics {most}"
        require(owner, "num_target_critics", self.num_target_critics, enough, condition)

    @property
    def _filters_cloning(self) -> bool:
        return self.cloning_coeff > 0 and self.cloning_filter != "none"

    @property
    def _critic_users(self) -> list[str]:
        """Settings that need critics."""
        users = []
        if self.critic_coeff > 0:
            users.append("critic_coeff")
        if self.online_coeff > 0:
            users.append("online_coeff")
        if self._filters_cloning:
            users.append("cloning_filter")
        return users

    @property
    def out_keys(self) -> list[NestedKey]:
        """Terms that are switched on, and metrics."""
        keys = []
        if self.online_coeff > 0:
            keys.append("loss_online")
        if self.cloning_coeff > 0:
            keys.append("loss_cloning")
        if self.critic_coeff > 0:
            keys += ["loss_critic", "return_std", "td_error", "target_value"]
            keys += gamma_names("q_value", self.discounts)
            if self.returns.bounds is not None:
                keys.append("clipped_targets")
        if self._filters_cloning:
            keys += gamma_names("filter_weight", self.discounts)
        keys.append("entropy")
        return keys

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Compute the terms and metrics of a batch [B, L], or of a rollout [*, T]."""
        tensordict = self.packed(tensordict)
        valid = self._valid_transitions(tensordict)
        mean = MaskedMean(valid)
        metrics = MetricMeans(mean, self.discounts)
        all_actor_context, all_critic_context = self._contexts(self.encoder, tensordict)
        actor_context = all_actor_context[:, DEPARTURE]
        critic_context = all_critic_context[:, DEPARTURE]
        action = self._taken_actions(tensordict, valid)
        mask = self._action_mask(tensordict, DEPARTURE, needed=valid)
        params = self._policy_params(self.actor_network, actor_context)
        policy = self._distribution(params, mask)

        output: dict[str, Tensor] = {}
        # Without a filter every action is cloned with weight one.
        weight = params.new_ones(params.shape[:-1])
        if self._critic_users:
            targets = None
            if self.critic_coeff > 0:
                # Targets come first: they move the statistics that normalise the rest.
                targets = self._td_targets(
                    tensordict, all_actor_context, all_critic_context, valid, n_step=self.n_step
                )
                if self.training:
                    # Targets are computed with the statistics before this update, and normalised
                    # with those after it (PopArt, arXiv 1602.07714).
                    self.returns.update(targets, valid)
            taken, policy_values = self._taken_and_policy_values(critic_context, action, policy)
            if targets is not None:
                output |= self._critic_loss(taken, targets, mean, metrics)
            if self.online_coeff > 0:
                actor_loss = self._actor_loss(policy_values, policy, mean)
                output["loss_online"] = self.online_coeff * actor_loss
            if self._filters_cloning:
                weight = self._cloning_weight(taken.detach(), policy_values)
                metrics.add_gammas("filter_weight", weight)

        if self.cloning_coeff > 0:
            log_prob = policy.cloning_log_prob(action.unsqueeze(-2))
            assert log_prob.shape == weight.shape == (*valid.shape, len(self.discounts))
            output["loss_cloning"] = self.cloning_coeff * mean(-weight * log_prob)

        # The policy of the last discount acts, so its entropy is reported.
        acting = self._distribution(params[..., -1:, :].detach(), mask)
        metrics.add("entropy", acting.entropy())
        return TensorDict(output | metrics.compute())

    @property
    def acting_discount(self) -> float:
        """Discount factor of the policy that acts."""
        return self.discounts[-1]

    @torch.no_grad()
    def td_errors(self, tensordict: TensorDictBase) -> Tensor:
        """Compute the one-step errors of the mean of all critics, for the acting discount.

        Unlike `forward`, it exchanges nothing with other ranks. It changes nothing in evaluation
        mode (``loss.eval()``).

        Args:
            tensordict: Batch [B, L], or rollout [*, T].

        Returns:
            Target minus value of the taken action, [B, T] float32 in units of multiplied rewards; 0
            at invalid transitions.

        Raises:
            ArgumentError: The loss has no critics, or does not train them.
        """
        trained = self.critic_coeff > 0
        condition = "be positive, because td_errors needs critics that are trained"
        require(type(self).__name__, "critic_coeff", self.critic_coeff, trained, condition)
        tensordict = self.packed(tensordict)
        valid = self._joined(tensordict)
        actor_context, critic_context = self._contexts(self.encoder, tensordict)
        targets = self._td_targets(tensordict, actor_context, critic_context, valid, n_step=1)

        critics = self.critic_network
        assert critics is not None
        context = critic_context[:, DEPARTURE]
        action = self._taken_actions(tensordict, valid)
        if self.action_space.enumerable:
            taken = pick_action(self._raw_values(critics, context), action)
        else:
            action = action.unsqueeze(-2).expand(-1, -1, len(self.discounts), -1)
            taken = self._raw_values(critics, context, action)
        errors = targets - self.returns.to_returns(taken).mean(dim=2)
        return torch.where(valid, errors[..., -1], 0.0)

    @torch.no_grad()
    def _td_targets(
        self,
        tensordict: TensorDictBase,
        actor_context: Tensor,
        critic_context: Tensor,
        valid: Tensor,
        *,
        n_step: int,
    ) -> Tensor:
        """Compute targets [B, T, G] with the target heads.

        Args:
            tensordict: Batch [B, L].
            actor_context: [B, L, D], read by the actor.
            critic_context: [B, L, D], read by the critics.
            valid: Bool [B, T].
            n_step: Largest number of rewards in a target.
        """
        next_actor_context, next_critic_context = self._arrival_contexts(
            tensordict, actor_context, critic_context
        )
        reward = self._outcome(tensordict, "reward")
        terminated = self._outcome(tensordict, "terminated")
        params = self._policy_params(self._targets["actor"], next_actor_context)
        # After the end of an episode no action is needed, and none may be allowed.
        mask = self._action_mask(tensordict, ARRIVAL, needed=valid & ~terminated)
        policy = self._distribution(params, mask)

        critics = partial(self._raw_values, self._targets["critic"])
        if self.action_space.enumerable:
            policy_values = enumerate_policy(critics(next_critic_context), policy)
        else:
            # One sample, as in SAC: the noise averages out over the batch.
            policy_values = sample_policy(critics, next_critic_context, policy, num_samples=1)
        next_values = policy_values.expect(self.returns.to_returns(policy_values.raw))

        # A policy that maximises critics exploits their errors, so the minimum is taken (arXiv
        # 1802.09477). Without such a policy the mean is the better estimate.
        reduce: Literal["min", "mean"] = "min" if self.online_coeff > 0 else "mean"
        next_value = critic_subset_value(next_values, self.num_target_critics, reduce=reduce)
        assert next_value.shape == (*valid.shape, len(self.discounts))
        targets = bootstrapped_targets(
            reward,
            terminated,
            next_value,
            gammas=self.gammas,
            valid=valid,
            n_step=n_step,
            reward_multiplier=self.reward_multiplier,
        )
        return targets

    def _taken_and_policy_values(
        self, context: Tensor, action: Tensor, policy: ActionDistribution
    ) -> tuple[Tensor, PolicyValues]:
        """Evaluate the taken actions and the policy.

        Returns:
            Raw values [B, T, C, G, O] of the taken actions, which train the critics, and the values
            of the policy.
        """
        critics = self.critic_network
        assert critics is not None
        trains_critics = torch.is_grad_enabled() and self.critic_coeff > 0
        if self.action_space.enumerable:
            # One pass gives the values of all actions, those of the policy included.
            with torch.set_grad_enabled(trains_critics):
                raw = self._raw_values(critics, context)
            return pick_action(raw, action), enumerate_policy(raw.detach(), policy)

        action_per_gamma = action.unsqueeze(-2).expand(-1, -1, len(self.discounts), -1)
        with torch.set_grad_enabled(trains_critics):
            raw = self._raw_values(critics, context, action_per_gamma)
        # The actor loss differentiates values with respect to the sampled actions. Its gradient
        # must not reach the critics or, through them, the encoder. A plain enable_grad would
        # override an outer no_grad.
        frozen = partial(self._raw_values, critics, frozen=True)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.online_coeff > 0):
            values = sample_policy(frozen, context.detach(), policy, self.num_action_samples)
        return raw, values

    def _critic_loss(
        self, taken: Tensor, targets: Tensor, mean: MaskedMean, metrics: MetricMeans
    ) -> dict[str, Tensor]:
        """Compute the error of all critics, and add the metrics of their values.

        Args:
            taken: Raw values of the taken actions, [B, T, C, G, O].
            targets: [B, T, G].
            mean: Averages over valid transitions.
            metrics: Gets the metrics of values.
        """
        q_value = self.returns.to_returns(taken.detach())
        assert q_value.shape == (*targets.shape[:2], taken.shape[2], len(self.discounts))
        # All critics share the target.
        error = mean(self.returns.loss(taken, targets.unsqueeze(dim=2)))
        output = {"loss_critic": self.critic_coeff * error}
        metrics.add("td_error", (q_value[..., -1] - targets[..., -1:]).abs())
        metrics.add("target_value", targets[..., -1])
        metrics.add_gammas("q_value", q_value)
        if self.returns.bounds is not None:
            metrics.add("clipped_targets", is_clipped(targets, self.returns.bounds))
        output["return_std"] = self.returns.std[-1]
        return output

    def _actor_loss(
        self, policy_values: PolicyValues, policy: ActionDistribution, mean: MaskedMean
    ) -> Tensor:
        """Compute the negative normalised value of the policy under the smallest critic."""
        if self.action_space.enumerable and self.discrete_gradient == "straight_through":
            policy_values = straight_through(policy_values.raw, policy, self.num_action_samples)
        # Normalised values give all discounts gradients of one scale.
        values = policy_values.expect(self.returns.to_normalized(policy_values.raw))
        value = values.amin(dim=2)  # over critics: [B, T, G]
        assert value.shape == (*mean.mask.shape, len(self.discounts))
        return -mean(value)

    @torch.no_grad()
    def _cloning_weight(self, taken: Tensor, policy_values: PolicyValues) -> Tensor:
        """Compute the weights [B, T, G] with which taken actions are cloned.

        Args:
            taken: Raw values of the taken actions, [B, T, C, G, O].
            policy_values: Values of the policy.
        """
        # Normalised values are subtracted, because the difference of two large returns would be
        # rounded away in float32.
        taken_value = self.returns.to_normalized(taken)
        policy_value = policy_values.expect(self.returns.to_normalized(policy_values.raw))
        advantage = (taken_value - policy_value).mean(dim=2) * self.returns.std
        return advantage_filter(
            advantage,
            kind=self.cloning_filter,
            threshold=self.filter_threshold,
            temperature=self.filter_temperature,
        )
