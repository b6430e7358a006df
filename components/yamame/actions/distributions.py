"""Action distributions over encoded actions.

Every distribution is built from policy parameters ``[*, P]`` and has encoded actions ``[*, A]``
(float32) as its samples: one-hot, concatenated one-hots, bits, or numbers in [-1, 1]. Computations
are in float32 for parameters of any dtype. Samples come from PyTorch's global generator, so a run
that restores the state of that generator continues exactly. Arguments are not validated, except for
action masks.
"""

import math
from collections.abc import Sequence

import torch
from torch import Size, Tensor
from torch.distributions import constraints
from torch.nn import functional as F

from yamame.checks import ArgumentError
from yamame.execution.capturing import capturing

Shape = Size | list[int] | tuple[int, ...]
Clip = tuple[float, float]
"""Smallest and largest probability."""
_TINY = torch.finfo(torch.float32).tiny
_LOG_TINY = math.log(_TINY)
# Near the ends of [-1, 1] the inverse of tanh is meaningless in float32, and log-densities explode.
_INVERSE_LIMIT = 0.99
# Nodes of the trapezoid rule for expectations under the standard normal. Under the widest normals
# the integrand bends within a seventh of a standard deviation, where even nodes are more accurate
# than as many Gauss-Hermite nodes.
_NODES = tuple(node / 3.0 for node in range(-12, 13))
_NORMALIZER = sum(math.exp(-0.5 * node**2) for node in _NODES)
_QUADRATURE = tuple((node, math.exp(-0.5 * node**2) / _NORMALIZER) for node in _NODES)


class ActionDistribution(torch.distributions.Distribution):
    """Batch of distributions over encoded actions, in the interface of PyTorch and TorchRL.

    The batch shape is ``[*]``, the event shape ``[A]``, and ``mode`` the greedy action, without a
    gradient. Continuous actions are reparametrised. ``rsample`` of discrete actions is
    straight-through (arXiv 1308.3432): its value is the sample, its gradient that of the
    probabilities. Leading dimensions of the argument of ``log_prob`` broadcast. ``entropy`` is in
    nats.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (as in the base class)
    has_rsample = True

    def __init__(self, batch_shape: Size, encoded_size: int) -> None:
        super().__init__(batch_shape, Size([encoded_size]), validate_args=False)

    def cloning_log_prob(self, encoded: Tensor) -> Tensor:
        """Return the log-probability without the probability floor, for behaviour cloning.

        The floor serves acting and expectations. Below it, the gradient of the log-probability
        falls with the probability, and an action that the policy has dropped would hardly be cloned
        again.
        """
        return self.log_prob(encoded)

    @property
    def deterministic_sample(self) -> Tensor:
        """Mode, under the name that TorchRL uses."""
        return self.mode


class _StraightThrough(ActionDistribution):
    """Base class of distributions over finitely many actions.

    Args:
        probs: Probability ``[*, A]`` of every entry of an encoded action to be 1.
    """

    def __init__(self, probs: Tensor) -> None:
        super().__init__(probs.shape[:-1], probs.shape[-1])
        self.probs = probs

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        # The added term is zero and carries the gradient.
        return self.sample(sample_shape) + (self.probs - self.probs.detach())


class _Categorical(_StraightThrough):
    """One choice among A actions; the caller checks that the mask allows at least one."""

    def __init__(
        self,
        logits: Tensor,
        probability_floor: float,
        allowed: Tensor | None,
        clip: Clip | None = None,
    ) -> None:
        logits = logits.float()
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        self._logits = logits
        # The logits alone are then not the log-probabilities.
        self._is_bounded = probability_floor > 0 or clip is not None
        probs = logits.softmax(-1)
        if clip is not None:
            probs = probs.clamp(*clip)
            if allowed is not None:
                probs = probs * allowed
            # As in AMAGO, the sum has no gradient.
            probs = probs / probs.sum(-1, keepdim=True).detach()
        if probability_floor > 0:
            probs = probs * (1 - probability_floor)
            if allowed is None:
                probs = probs + probability_floor / logits.shape[-1]
            else:
                num_allowed = allowed.sum(-1, keepdim=True)
                probs = probs + allowed * (probability_floor / num_allowed)
        super().__init__(probs)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        probs = self.probs.detach()
        if sample_shape:
            probs = probs.expand(self._extended_shape(sample_shape))
        # Of independent exponential clocks with rates p, clock i rings first with probability p_i.
        # A rate of zero never rings, because exponential_ is strictly positive.
        clock = torch.empty_like(probs).exponential_()
        return self._one_hot(probs / clock)

    @property
    def mode(self) -> Tensor:
        return self._one_hot(self.probs.detach())

    def _one_hot(self, score: Tensor) -> Tensor:
        index = score.argmax(-1, keepdim=True)
        return torch.zeros_like(score).scatter_(-1, index, 1.0)

    def log_prob(self, encoded: Tensor) -> Tensor:
        if self._is_bounded:
            chosen = (encoded * self.probs).sum(-1)
            return chosen.clamp_min(_TINY).log()
        return self.cloning_log_prob(encoded)

    def cloning_log_prob(self, encoded: Tensor) -> Tensor:
        # Without a floor, probabilities and their gradients underflow outside of log space.
        log_probs = self._logits.log_softmax(-1)
        chosen = torch.where(encoded > 0.5, log_probs, 0.0).sum(-1)
        return chosen.nan_to_num(neginf=_LOG_TINY)

    def entropy(self) -> Tensor:
        # Probabilities of exactly 0 contribute nothing.
        log_probs = self.probs.clamp_min(_TINY).log()
        return -(self.probs * log_probs).sum(-1)


def _check_mask(owner: str, has_choice: Tensor) -> None:
    # On other devices, reading the mask would wait for the device. A row that allows nothing has
    # probabilities that are NaN there.
    if capturing() or not has_choice.is_cpu:
        return
    if not has_choice.all():
        row = tuple((~has_choice).nonzero()[0].tolist())
        raise ArgumentError(owner, f"row {row} of action_mask", "none", "allow an action")


class DiscreteDistribution(_Categorical):
    """One choice among A actions.

    With floor e the probabilities are ``p = (1 - e) softmax(logits) + e / n`` over the n allowed
    actions, which, unlike clipping, leaves a gradient everywhere. Actions that are not allowed have
    probability exactly 0. Their log-probability is that of the smallest normal float32: finite, and
    without a gradient.

    Args:
        logits: ``[*, A]``.
        probability_floor: e, in [0, 1).
        action_mask: Bool, broadcastable to ``[*, A]``, true where an action is allowed.
        probability_clip: Smallest and largest probability of an allowed action, before the
            probabilities are divided by their sum, as AMAGO's code bounds them; where it clips,
            there is no gradient. Not together with a floor. None: there is no clipping.

    Raises:
        ArgumentError: A row of ``action_mask`` allows nothing. Rows of padding must allow an action
            as well.

    >>> DiscreteDistribution(torch.zeros(4), probability_floor=0.1).probs
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    def __init__(
        self,
        logits: Tensor,
        *,
        probability_floor: float = 0.0,
        action_mask: Tensor | None = None,
        probability_clip: Clip | None = None,
    ) -> None:
        if action_mask is not None:
            action_mask = action_mask.bool()
            _check_mask("DiscreteDistribution", action_mask.any(-1))
        super().__init__(logits, probability_floor, action_mask, probability_clip)


class MultiDiscreteDistribution(_StraightThrough):
    """Several independent choices, concatenated in A; the floor applies to each of them.

    Args:
        logits: ``[*, A]``.
        nvec: Number of actions of each choice; A is their sum.
        probability_floor: As for `DiscreteDistribution`.
        action_mask: Bool, broadcastable to ``[*, A]``.
        probability_clip: As for `DiscreteDistribution`.

    Raises:
        ArgumentError: ``action_mask`` leaves a choice without an allowed action. The reported row
            is the batch index and the choice.
    """

    def __init__(
        self,
        logits: Tensor,
        *,
        nvec: Sequence[int],
        probability_floor: float = 0.0,
        action_mask: Tensor | None = None,
        probability_clip: Clip | None = None,
    ) -> None:
        self._nvec = list(nvec)
        masks: Sequence[Tensor | None] = [None] * len(self._nvec)
        if action_mask is not None:
            allowed = action_mask.bool().split(self._nvec, -1)
            has_choice = torch.stack([mask.any(-1) for mask in allowed], -1)
            _check_mask("MultiDiscreteDistribution", has_choice)
            masks = allowed
        self._choices = []
        for part, mask in zip(logits.split(self._nvec, -1), masks, strict=True):
            choice = _Categorical(part, probability_floor, mask, probability_clip)
            self._choices.append(choice)
        super().__init__(torch.cat([choice.probs for choice in self._choices], -1))

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Sample concatenated one-hots without a gradient."""
        return torch.cat([choice.sample(sample_shape) for choice in self._choices], -1)

    @property
    def mode(self) -> Tensor:
        """Most probable action of each choice, as concatenated one-hots."""
        return torch.cat([choice.mode for choice in self._choices], -1)

    def log_prob(self, encoded: Tensor) -> Tensor:
        """Return the sum of the log-probabilities of all choices."""
        parts = zip(self._choices, encoded.split(self._nvec, -1), strict=True)
        return torch.stack([choice.log_prob(part) for choice, part in parts]).sum(0)

    def cloning_log_prob(self, encoded: Tensor) -> Tensor:
        """Return the sum of the log-probabilities without the floor."""
        parts = zip(self._choices, encoded.split(self._nvec, -1), strict=True)
        return torch.stack([choice.cloning_log_prob(part) for choice, part in parts]).sum(0)

    def entropy(self) -> Tensor:
        """Return the sum of the entropies of all choices."""
        return torch.stack([choice.entropy() for choice in self._choices]).sum(0)


class MultiBinaryDistribution(_StraightThrough):
    """Independent bits with ``P(bit) = (1 - e) sigmoid(logit) + e / 2``.

    Args:
        logits: ``[*, A]``, one per bit.
        probability_floor: e, in [0, 1).
        action_mask: Bool, broadcastable to ``[*, A]``; a bit that is not allowed stays 0.
    """

    def __init__(
        self, logits: Tensor, *, probability_floor: float = 0.0, action_mask: Tensor | None = None
    ) -> None:
        logits = logits.float()
        self._floor = probability_floor
        probs = logits.sigmoid() * (1 - probability_floor) + probability_floor / 2
        if action_mask is not None:
            logits = logits.masked_fill(~action_mask.bool(), -torch.inf)
            probs = probs * action_mask
        super().__init__(probs)
        self._logits = logits

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Sample bits without a gradient."""
        probs = self.probs.detach().expand(self._extended_shape(sample_shape))
        return (torch.rand_like(probs) < probs).float()

    @property
    def mode(self) -> Tensor:
        """Bits with a probability above one half."""
        return (self.probs.detach() > 0.5).float()

    def log_prob(self, encoded: Tensor) -> Tensor:
        """Return the sum of the log-probabilities of all bits."""
        if self._floor > 0:
            chosen = torch.where(encoded > 0.5, self.probs, 1 - self.probs)
            return chosen.clamp_min(_TINY).log().sum(-1)
        return self.cloning_log_prob(encoded)

    def cloning_log_prob(self, encoded: Tensor) -> Tensor:
        """Return the sum of the log-probabilities without the floor."""
        is_set = encoded > 0.5
        # The probability of an unset bit is sigmoid(-logit).
        log_probs = F.logsigmoid(torch.where(is_set, self._logits, -self._logits))
        return log_probs.nan_to_num(neginf=_LOG_TINY).sum(-1)

    def entropy(self) -> Tensor:
        """Return the exact entropy, summed over bits."""
        both = torch.stack((self.probs, 1 - self.probs))
        return -(both * both.clamp_min(_TINY).log()).sum((0, -1))


class TanhNormalDistribution(ActionDistribution):
    """Normals squashed into (-1, 1) by tanh (arXiv 1801.01290), independent over dimensions.

    The log standard deviation is ``-5 + 3.5 (tanh(s) + 1)``, in [-5, 2]. The density of an action
    is that of the action clipped to +-0.99.

    Args:
        params: ``[*, 2A]``: A locations and A raw scales s.
    """

    def __init__(self, params: Tensor) -> None:
        self._loc, raw_scale = params.float().chunk(2, -1)
        self._log_std = -5.0 + 3.5 * (raw_scale.tanh() + 1.0)
        super().__init__(params.shape[:-1], self._loc.shape[-1])

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Sample reparametrised actions."""
        noise = torch.randn_like(self._loc.expand(self._extended_shape(sample_shape)))
        return (self._loc + self._log_std.exp() * noise).tanh()

    @property
    def mode(self) -> Tensor:
        """Squashed location."""
        return self._loc.detach().tanh()

    def log_prob(self, encoded: Tensor) -> Tensor:
        """Return the log-density in encoded units, summed over dimensions."""
        x = encoded.clamp(-_INVERSE_LIMIT, _INVERSE_LIMIT).atanh()
        standard = (x - self._loc) * (-self._log_std).exp()
        log_normal = -0.5 * standard.square() - self._log_std - 0.5 * math.log(2 * math.pi)
        return (log_normal - _log_tanh_slope(x)).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy by quadrature, because there is no closed form.

        It uses no random numbers, so computing it does not change a seeded run.
        """
        std = self._log_std.exp()
        # The entropy of the normal, plus the mean of the log-slope of tanh.
        shrinkage = torch.zeros_like(std)
        for node, weight in _QUADRATURE:
            shrinkage = shrinkage + weight * _log_tanh_slope(self._loc + std * node)
        normal_entropy = self._log_std + 0.5 * math.log(2 * math.pi * math.e)
        return (normal_entropy + shrinkage).sum(-1)


def _log_tanh_slope(x: Tensor) -> Tensor:
    """Return ``log(1 - tanh(x)^2)`` without cancellation."""
    return 2.0 * (math.log(2.0) - x - F.softplus(-2.0 * x))


class BetaDistribution(ActionDistribution):
    """Betas stretched from [0, 1] to [-1, 1], independent over dimensions (Chou et al., ICML 2017).

    The density of an action is that of the action clipped to +-0.99.

    Args:
        params: ``[*, 2A]``: A raw alphas and A raw betas.
    """

    def __init__(self, params: Tensor) -> None:
        # Concentrations above 1 make every density unimodal.
        alpha, beta = (F.softplus(params.float()) + 1.0001).chunk(2, -1)
        self._beta = torch.distributions.Beta(alpha, beta, validate_args=False)
        super().__init__(alpha.shape[:-1], alpha.shape[-1])

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Sample reparametrised actions (implicit gradients, arXiv 1805.08498)."""
        return 2.0 * self._beta.rsample(Size(sample_shape)) - 1.0

    @property
    def mode(self) -> Tensor:
        """Peak of the density."""
        alpha = self._beta.concentration1.detach()
        beta = self._beta.concentration0.detach()
        return 2.0 * (alpha - 1.0) / (alpha + beta - 2.0) - 1.0

    def log_prob(self, encoded: Tensor) -> Tensor:
        """Return the log-density in encoded units, summed over dimensions."""
        unit = (encoded.clamp(-_INVERSE_LIMIT, _INVERSE_LIMIT) + 1.0) / 2.0
        # The interval is twice as long, so the density is half as high.
        return (self._beta.log_prob(unit) - math.log(2.0)).sum(-1)

    def entropy(self) -> Tensor:
        """Return the exact entropy in encoded units."""
        return (self._beta.entropy() + math.log(2.0)).sum(-1)
