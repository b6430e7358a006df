"""Action distributions over encoded actions.

Every distribution is built from policy parameters `[*, P]` and speaks encoded actions `[*, A]`
(float32): one-hot, concatenated one-hots, bits, or numbers in [-1, 1]. All the maths is done in
float32, whatever the parameters' dtype. Draws come from PyTorch's global generator, so that a run
restored with that generator's state goes on exactly. Arguments are not validated on the way, except
for action masks.
"""

import math
from collections.abc import Sequence

import torch
from torch import Size, Tensor
from torch.distributions import constraints
from torch.nn import functional as F

from yamame.execution.capturing import capturing

Shape = Size | list[int] | tuple[int, ...]
_TINY = torch.finfo(torch.float32).tiny
_LOG_TINY = math.log(_TINY)
_INVERSE_LIMIT = 0.99
# Expectation under the standard normal by the trapezoid rule: under the widest normals the
# integrand bends within a seventh of a standard deviation, where even nodes do better than as many
# Gauss-Hermite ones.
_NODES = tuple(node / 3.0 for node in range(-12, 13))
_NORMALIZER = sum(math.exp(-0.5 * node**2) for node in _NODES)
_QUADRATURE = tuple((node, math.exp(-0.5 * node**2) / _NORMALIZER) for node in _NODES)


class ActionDistribution(torch.distributions.Distribution):
    """A batch of distributions over encoded actions, as PyTorch and TorchRL have them.

    The batch shape is `[*]`, the event shape `[A]`, and ``mode`` the greedy action, without a
    gradient. Continuous actions are reparametrised. ``rsample`` of discrete ones is
    straight-through (arXiv 1308.3432): the value is the sample, the gradient is that of the
    probabilities. Leading dimensions of what ``log_prob`` is given broadcast; ``entropy`` is in
    nats.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (the base class declares it so)
    has_rsample = True

    def __init__(self, batch_shape: Size, encoded_size: int) -> None:
        super().__init__(batch_shape, Size([encoded_size]), validate_args=False)

    def cloning_log_prob(self, encoded: Tensor) -> Tensor:
        """Log-probability of actions to clone: without a floor, under which a policy cannot be told
        from others.

        The floor is for acting and for expectations. The gradient of its log-probability falls with
        the probability below the floor, so an action that the policy has dropped would hardly be
        cloned back.
        """
        return self.log_prob(encoded)

    @property
    def deterministic_sample(self) -> Tensor:
        """The mode, as TorchRL calls it."""
        return self.mode


class _StraightThrough(ActionDistribution):
    """Base of the distributions over finitely many actions.

    Args:
        probs: `[*, A]`, the probability of every entry of an encoded action to be 1.
    """

    def __init__(self, probs: Tensor) -> None:
        super().__init__(probs.shape[:-1], probs.shape[-1])
        self.probs = probs

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())


class _Categorical(_StraightThrough):
    """One choice among A actions. The mask is trusted to allow at least one."""

    def __init__(self, logits: Tensor, probability_floor: float, allowed: Tensor | None) -> None:
        logits = logits.float()
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        self._logits, self._floor = logits, probability_floor
        probs = logits.softmax(-1)
        if probability_floor > 0:
            probs = probs * (1 - probability_floor)
            if allowed is None:
                probs = probs + probability_floor / logits.shape[-1]
            else:
                probs = probs + allowed * (probability_floor / allowed.sum(-1, keepdim=True))
        super().__init__(probs)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        probs = self.probs.detach().expand(self._extended_shape(sample_shape))
        # The first of independent exponential clocks with rates p rings at i with probability p_i;
        # a rate of exactly zero never rings, because exponential_ is strictly positive.
        clock = torch.empty_like(probs).exponential_()
        return self._one_hot(probs / clock)

    @property
    def mode(self) -> Tensor:
        return self._one_hot(self.probs.detach())

    def _one_hot(self, score: Tensor) -> Tensor:
        return torch.zeros_like(score).scatter_(-1, score.argmax(-1, keepdim=True), 1.0)

    def log_prob(self, encoded: Tensor) -> Tensor:
        if self._floor > 0:
            return (encoded * self.probs).sum(-1).clamp_min(_TINY).log()
        return self.cloning_log_prob(encoded)

    def cloning_log_prob(self, encoded: Tensor) -> Tensor:
        # Without a floor probabilities underflow, and their gradient with them: stay in log space.
        log_probs = self._logits.log_softmax(-1)
        chosen = torch.where(encoded > 0.5, log_probs, 0.0).sum(-1)
        return chosen.nan_to_num(neginf=_LOG_TINY)

    def entropy(self) -> Tensor:
        return -(self.probs * self.probs.clamp_min(_TINY).log()).sum(-1)


def _check_mask(owner: str, has_choice: Tensor) -> None:
    # Elsewhere nothing is read back; a row that allows nothing has probabilities that are no
    # numbers.
    if capturing() or not has_choice.is_cpu:
        return
    if not has_choice.all():
        row = tuple((~has_choice).nonzero()[0].tolist())
        raise ValueError(
            f"{owner}: action_mask must allow an action in every row, got none in row {row}"
        )


class DiscreteDistribution(_Categorical):
    """One choice among A actions.

    With floor e the probabilities are `p = (1 - e) softmax(logits) + e / n` over the n allowed
    actions, which, unlike clipping, leaves a gradient everywhere. Actions that are not allowed have
    probability exactly 0; their log-probability is that of the smallest normal float, finite and
    without a gradient.

    Args:
        logits: `[*, A]`.
        probability_floor: e, in [0, 1).
        action_mask: bool, broadcastable to `[*, A]`, True where an action is allowed.

    Raises:
        ValueError: If a row of `action_mask` allows nothing. Rows of padding must allow something,
            too.

    >>> DiscreteDistribution(torch.zeros(4), probability_floor=0.1).probs
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    def __init__(
        self, logits: Tensor, *, probability_floor: float = 0.0, action_mask: Tensor | None = None
    ) -> None:
        if action_mask is not None:
            action_mask = action_mask.bool()
            _check_mask("DiscreteDistribution", action_mask.any(-1))
        super().__init__(logits, probability_floor, action_mask)


class MultiDiscreteDistribution(_StraightThrough):
    """Several independent choices, one after the other in A; the floor holds within each of them.

    Args:
        logits: `[*, A]`.
        nvec: Number of actions of each choice; A is their sum.
        probability_floor: As for `DiscreteDistribution`.
        action_mask: bool, broadcastable to `[*, A]`.

    Raises:
        ValueError: If `action_mask` leaves a choice without an allowed action (row: batch index,
            choice).
    """

    def __init__(
        self,
        logits: Tensor,
        *,
        nvec: Sequence[int],
        probability_floor: float = 0.0,
        action_mask: Tensor | None = None,
    ) -> None:
        self._nvec = list(nvec)
        masks: Sequence[Tensor | None] = [None] * len(self._nvec)
        if action_mask is not None:
            allowed = masks = action_mask.bool().split(self._nvec, -1)
            _check_mask(
                "MultiDiscreteDistribution", torch.stack([mask.any(-1) for mask in allowed], -1)
            )
        parts = zip(logits.split(self._nvec, -1), masks, strict=True)
        self._choices = [_Categorical(part, probability_floor, mask) for part, mask in parts]
        super().__init__(torch.cat([choice.probs for choice in self._choices], -1))

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draws concatenated one-hots without a gradient."""
        return torch.cat([choice.sample(sample_shape) for choice in self._choices], -1)

    @property
    def mode(self) -> Tensor:
        """The most probable action of each choice, as concatenated one-hots."""
        return torch.cat([choice.mode for choice in self._choices], -1)

    def log_prob(self, encoded: Tensor) -> Tensor:
        """Sum of the choices' log-probabilities."""
        parts = zip(self._choices, encoded.split(self._nvec, -1), strict=True)
        return torch.stack([choice.log_prob(part) for choice, part in parts]).sum(0)

    def cloning_log_prob(self, encoded: Tensor) -> Tensor:
        """Sum of the choices' log-probabilities without the floor."""
        parts = zip(self._choices, encoded.split(self._nvec, -1), strict=True)
        return torch.stack([choice.cloning_log_prob(part) for choice, part in parts]).sum(0)

    def entropy(self) -> Tensor:
        """Sum of the choices' entropies."""
        return torch.stack([choice.entropy() for choice in self._choices]).sum(0)


class MultiBinaryDistribution(_StraightThrough):
    """Independent bits: `P(bit) = (1 - e) sigmoid(logit) + e / 2`.

    Args:
        logits: `[*, A]`, one per bit.
        probability_floor: e, in [0, 1).
        action_mask: bool, broadcastable to `[*, A]`; a bit that is not allowed stays 0.
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
        """Draws bits without a gradient."""
        probs = self.probs.detach().expand(self._extended_shape(sample_shape))
        return (torch.rand_like(probs) < probs).float()

    @property
    def mode(self) -> Tensor:
        """The bits that are more probable than not."""
        return (self.probs.detach() > 0.5).float()

    def log_prob(self, encoded: Tensor) -> Tensor:
        """Sum of the bits' log-probabilities."""
        if self._floor > 0:
            return (
                torch.where(encoded > 0.5, self.probs, 1 - self.probs)
                .clamp_min(_TINY)
                .log()
                .sum(-1)
            )
        return self.cloning_log_prob(encoded)

    def cloning_log_prob(self, encoded: Tensor) -> Tensor:
        """Sum of the bits' log-probabilities without the floor."""
        on = encoded > 0.5
        chosen = F.logsigmoid(torch.where(on, self._logits, -self._logits))
        return chosen.nan_to_num(neginf=_LOG_TINY).sum(-1)

    def entropy(self) -> Tensor:
        """Exact entropy, summed over bits."""
        both = torch.stack((self.probs, 1 - self.probs))
        return -(both * both.clamp_min(_TINY).log()).sum((0, -1))


class TanhNormalDistribution(ActionDistribution):
    """Normals squashed into (-1, 1) by tanh (arXiv 1801.01290), independent over dimensions.

    The log standard deviation is `-5 + 3.5 (tanh(s) + 1)`, so in [-5, 2]. The density of an action
    is taken at the action clipped to +-0.99: near the ends the inverse of tanh is meaningless in
    float32 and its log-densities explode.

    Args:
        params: `[*, 2A]`: the A locations, then the A raw scales s.
    """

    def __init__(self, params: Tensor) -> None:
        self._loc, raw_scale = params.float().chunk(2, -1)
        self._log_std = -5.0 + 3.5 * (raw_scale.tanh() + 1.0)
        super().__init__(params.shape[:-1], self._loc.shape[-1])

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw reparametrised actions."""
        noise = torch.randn_like(self._loc.expand(self._extended_shape(sample_shape)))
        return (self._loc + self._log_std.exp() * noise).tanh()

    @property
    def mode(self) -> Tensor:
        """The squashed location."""
        return self._loc.detach().tanh()

    def log_prob(self, encoded: Tensor) -> Tensor:
        """Log-density in encoded units, summed over dimensions."""
        x = encoded.clamp(-_INVERSE_LIMIT, _INVERSE_LIMIT).atanh()
        standard = (x - self._loc) * (-self._log_std).exp()
        log_normal = -0.5 * standard.square() - self._log_std - 0.5 * math.log(2 * math.pi)
        return (log_normal - _log_tanh_slope(x)).sum(-1)

    def entropy(self) -> Tensor:
        """Entropy by quadrature, for there is no closed form; uses up no random draw."""
        std = self._log_std.exp()
        shrinkage = torch.zeros_like(std)
        for node, weight in _QUADRATURE:
            shrinkage = shrinkage + weight * _log_tanh_slope(self._loc + std * node)
        return (self._log_std + 0.5 * math.log(2 * math.pi * math.e) + shrinkage).sum(-1)


def _log_tanh_slope(x: Tensor) -> Tensor:
    """`log(1 - tanh(x)^2)` without cancellation."""
    return 2.0 * (math.log(2.0) - x - F.softplus(-2.0 * x))


class BetaDistribution(ActionDistribution):
    """Betas stretched from [0, 1] to [-1, 1], independent over dimensions (Chou et al., ICML 2017).

    Both concentrations are `softplus(raw) + 1.0001`, so every density is unimodal. The density of
    an action is taken at the action clipped to +-0.99.

    Args:
        params: `[*, 2A]`: the A raw alphas, then the A raw betas.
    """

    def __init__(self, params: Tensor) -> None:
        alpha, beta = (F.softplus(params.float()) + 1.0001).chunk(2, -1)
        self._beta = torch.distributions.Beta(alpha, beta, validate_args=False)
        super().__init__(alpha.shape[:-1], alpha.shape[-1])

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw reparametrised actions (implicit gradients, arXiv 1805.08498)."""
        return 2.0 * self._beta.rsample(Size(sample_shape)) - 1.0

    @property
    def mode(self) -> Tensor:
        """The peak of the density."""
        alpha, beta = self._beta.concentration1.detach(), self._beta.concentration0.detach()
        return 2.0 * (alpha - 1.0) / (alpha + beta - 2.0) - 1.0

    def log_prob(self, encoded: Tensor) -> Tensor:
        """Log-density in encoded units, summed over dimensions."""
        unit = (encoded.clamp(-_INVERSE_LIMIT, _INVERSE_LIMIT) + 1.0) / 2.0
        return (self._beta.log_prob(unit) - math.log(2.0)).sum(-1)

    def entropy(self) -> Tensor:
        """Exact entropy in encoded units."""
        return (self._beta.entropy() + math.log(2.0)).sum(-1)
