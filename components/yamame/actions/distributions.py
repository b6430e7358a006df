"""Action distributions over encoded actions.

Every distribution is built from policy parameters `[*, P]` and speaks encoded actions `[*, A]` (float32):
one-hot, concatenated one-hots, bits, or numbers in [-1, 1]. All the maths is done in float32, whatever the
parameters' dtype. Draws come from PyTorch's global generator, so that a run restored with that generator's
state goes on exactly. Arguments are not validated on the way, except for action masks.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F

from yamame.actions.groups import Groups
from yamame.capturing import capturing

_TINY = torch.finfo(torch.float32).tiny
_LOG_TINY = math.log(_TINY)


class ActionDistribution(ABC):
    """A batch of distributions over encoded actions."""

    @abstractmethod
    def rsample(self) -> Tensor:
        """Draw encoded actions `[*, A]` with a gradient to the parameters.

        Continuous actions are reparametrised. Discrete ones are straight-through (arXiv 1308.3432): the
        value is the sample, the gradient is that of the probabilities.
        """

    @abstractmethod
    def mode(self) -> Tensor:
        """The greedy encoded action `[*, A]`."""

    @abstractmethod
    def log_prob(self, encoded: Tensor) -> Tensor:
        """Log-probability (density) `[*]` of `encoded [*, A]`, whose leading dimensions broadcast."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Entropy `[*]` in nats."""

    def sample(self) -> Tensor:
        """Draw encoded actions `[*, A]` without a gradient."""
        with torch.no_grad():
            return self.rsample()


def _require_choice(owner: str, allowed: Tensor) -> None:
    if capturing():
        return
    has_choice = allowed.any(-1)
    if not has_choice.all():
        row = tuple((~has_choice).nonzero()[0].tolist())
        raise ValueError(f"{owner}: action_mask must allow an action in every row, got none in row {row}")


class _Categorical:
    """Categorical choices `[*, A]` from logits, with a floor and disallowed actions; masks are trusted."""

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
        self.probs = probs

    def one_hot(self, index: Tensor) -> Tensor:
        return torch.zeros_like(self.probs).scatter_(-1, index, 1.0)

    def sample(self) -> Tensor:
        probs = self.probs.detach()
        # The first of independent exponential clocks with rates p rings at i with probability p_i; a rate
        # of exactly zero never rings, because exponential_ is strictly positive.
        clock = torch.empty_like(probs).exponential_()
        return self.one_hot((probs / clock).argmax(-1, keepdim=True))

    def mode(self) -> Tensor:
        return self.one_hot(self.probs.detach().argmax(-1, keepdim=True))

    def log_prob(self, encoded: Tensor) -> Tensor:
        if self._floor > 0:
            return (encoded * self.probs).sum(-1).clamp_min(_TINY).log()
        # Without a floor probabilities underflow, and their gradient with them: stay in log space.
        log_probs = self._logits.log_softmax(-1)
        chosen = torch.where(encoded > 0.5, log_probs, 0.0).sum(-1)
        return chosen.nan_to_num(neginf=_LOG_TINY)

    def entropy(self) -> Tensor:
        return -(self.probs * self.probs.clamp_min(_TINY).log()).sum(-1)


class DiscreteDistribution(ActionDistribution):
    """One choice among A actions.

    With floor e the probabilities are `p = (1 - e) softmax(logits) + e / n` over the n allowed actions,
    which, unlike clipping, leaves a gradient everywhere. Actions that are not allowed have probability
    exactly 0; their log-probability is that of the smallest normal float, finite and without a gradient.

    Args:
        logits: `[*, A]`.
        probability_floor: e, in [0, 1).
        action_mask: bool, broadcastable to `[*, A]`, True where an action is allowed.

    Raises:
        ValueError: if a row of `action_mask` allows nothing. Rows of padding must allow something, too.

    >>> DiscreteDistribution(torch.zeros(4), probability_floor=0.1).probs
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    def __init__(
        self, logits: Tensor, *, probability_floor: float = 0.0, action_mask: Tensor | None = None
    ) -> None:
        if action_mask is not None:
            action_mask = action_mask.bool()
            _require_choice("DiscreteDistribution", action_mask)
        self._categorical = _Categorical(logits, probability_floor, action_mask)
        self.probs = self._categorical.probs

    def sample(self) -> Tensor:
        """Draw one-hot actions without a gradient."""
        return self._categorical.sample()

    def rsample(self) -> Tensor:
        """Draw one-hot actions whose gradient is that of `probs`."""
        return self.sample() + (self.probs - self.probs.detach())

    def mode(self) -> Tensor:
        """The most probable action, one-hot."""
        return self._categorical.mode()

    def log_prob(self, encoded: Tensor) -> Tensor:
        """Log-probability of a one-hot action."""
        return self._categorical.log_prob(encoded)

    def entropy(self) -> Tensor:
        """Exact entropy."""
        return self._categorical.entropy()


class MultiDiscreteDistribution(ActionDistribution):
    """Several independent choices; the floor holds within each of them.

    Args:
        logits: `[*, A]` with `A = groups.total`.
        groups: the layout of the choices in A.
        probability_floor: as for `DiscreteDistribution`.
        action_mask: bool, broadcastable to `[*, A]`.

    Raises:
        ValueError: if `action_mask` leaves a choice without an allowed action (row: batch index, choice).
    """

    def __init__(
        self,
        logits: Tensor,
        *,
        groups: Groups,
        probability_floor: float = 0.0,
        action_mask: Tensor | None = None,
    ) -> None:
        self._groups = groups
        allowed = None if groups.even else groups.valid.on(logits.device)
        if action_mask is not None:
            allowed = groups.pad(action_mask.bool(), fill=False)
            _require_choice("MultiDiscreteDistribution", allowed)
        self._categorical = _Categorical(groups.pad(logits, fill=-torch.inf), probability_floor, allowed)
        self.probs = groups.unpad(self._categorical.probs)

    def sample(self) -> Tensor:
        """Draw concatenated one-hots without a gradient."""
        return self._groups.unpad(self._categorical.sample())

    def rsample(self) -> Tensor:
        """Draw concatenated one-hots whose gradient is that of `probs`."""
        return self.sample() + (self.probs - self.probs.detach())

    def mode(self) -> Tensor:
        """The most probable action of each choice, as concatenated one-hots."""
        return self._groups.unpad(self._categorical.mode())

    def log_prob(self, encoded: Tensor) -> Tensor:
        """Sum of the choices' log-probabilities."""
        return self._categorical.log_prob(self._groups.pad(encoded, fill=0.0)).sum(-1)

    def entropy(self) -> Tensor:
        """Sum of the choices' entropies."""
        return self._categorical.entropy().sum(-1)


class MultiBinaryDistribution(ActionDistribution):
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
        self._logits, self.probs = logits, probs

    def sample(self) -> Tensor:
        """Draw bits without a gradient."""
        probs = self.probs.detach()
        return (torch.rand_like(probs) < probs).float()

    def rsample(self) -> Tensor:
        """Draw bits whose gradient is that of `probs`."""
        return self.sample() + (self.probs - self.probs.detach())

    def mode(self) -> Tensor:
        """The bits that are more probable than not."""
        return (self.probs.detach() > 0.5).float()

    def log_prob(self, encoded: Tensor) -> Tensor:
        """Sum of the bits' log-probabilities."""
        on = encoded > 0.5
        if self._floor > 0:
            return torch.where(on, self.probs, 1 - self.probs).clamp_min(_TINY).log().sum(-1)
        chosen = F.logsigmoid(torch.where(on, self._logits, -self._logits))
        return chosen.nan_to_num(neginf=_LOG_TINY).sum(-1)

    def entropy(self) -> Tensor:
        """Exact entropy, summed over bits."""
        both = torch.stack((self.probs, 1 - self.probs))
        return -(both * both.clamp_min(_TINY).log()).sum((0, -1))
