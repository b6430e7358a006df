"""Meaning of a critic's outputs: values standardised by running moments (PopArt), or distributions
over bins.

Raw outputs are `[..., G, O]`, returns `[..., G]` in the units of the targets (multiplied rewards).
The maths is float32, under autocast as well. Leading dimensions of outputs and targets broadcast:
one set of targets serves an ensemble.
"""

from abc import ABC, abstractmethod
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from yamame.checks import require, require_at_least, require_choice
from yamame.normalization import RunningMoments
from yamame.system.messages import print_stderr

LabelKind = Literal["two_hot", "hl_gauss"]
ValueRule = Literal["mean_bin", "mean_return"]
VALUE_RULES: tuple[ValueRule, ...] = get_args(ValueRule)
"""In the order of their numbers in a ``state_dict``."""


class ValueRepresentation(nn.Module, ABC):
    """Meaning of a critic's outputs, and the running moments of the targets, per discount factor.

    The initial moments, a mean of zero and the given second moment, weigh as one update. Callers
    update in training mode only.

    Args:
        num_gammas: G, a mean and a deviation each.
        num_outputs: O, outputs of a critic per value.
        decay: weight of an update in the long run, in (0, 1].
        initial_second_moment: second moment of the targets before any is seen, positive.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self, num_gammas: int, *, num_outputs: int, decay: float, initial_second_moment: float
    ) -> None:
        super().__init__()
        name = type(self).__name__
        require_at_least(name, 1, num_gammas=num_gammas)
        positive = initial_second_moment > 0.0
        require(name, "initial_second_moment", initial_second_moment, positive, "be positive")
        self.num_outputs = num_outputs
        self.moments = RunningMoments(
            num_gammas, decay=decay, initial_variance=initial_second_moment, initial_updates=1
        )

    @property
    def mean(self) -> Tensor:
        """Mean of the targets, `[G]` float32."""
        return self.moments.mean.float()

    @property
    def std(self) -> Tensor:
        """Standard deviation of the targets, `[G]` float32, clipped to [0.01, 10000]."""
        return self.moments.variance.clamp(1e-4, 1e8).sqrt().float()

    bounds: tuple[float, float] | None = None
    """Smallest and largest return that can be represented; None if any can."""

    @abstractmethod
    def to_returns(self, raw: Tensor) -> Tensor:
        """`raw [..., G, O]` to `[..., G]` in return units."""

    @abstractmethod
    def to_normalized(self, raw: Tensor) -> Tensor:
        """`raw [..., G, O]` to `[..., G]` standardised by the statistics: what an actor
        maximises.
        """

    @abstractmethod
    def loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        """Elementwise loss `[..., G]` of `raw [..., G, O]` against `targets [..., G]` in return
        units.
        """

    def update(self, targets: Tensor, mask: Tensor) -> None:
        """Move the statistics with the finite among `targets [..., G]` where `mask [...]`
        (bool).
        """
        self.moments.update(targets, mask)


Returns = ValueRepresentation
"""The former name."""


class PopArt(ValueRepresentation):
    """A standardised scalar; returns are preserved when the statistics move (arXiv 1602.07714).

    With the moving mean m and standard deviation s of the targets and the preserving scale w and
    shift b, `normalised = w raw + b` and `return = s (w raw + b) + m`. Only `update` moves `w` and
    `b`: critics need no change, and target critics share them.

    Args:
        num_gammas, decay, initial_second_moment: as for `ValueRepresentation`.
        enabled: if False, values are plain returns and `update` does nothing, whatever the other
            arguments.

    Raises:
        ValueError: if an argument is out of range.

    >>> popart = PopArt(1)
    >>> raw = torch.tensor([[2.0]])
    >>> before = popart.to_returns(raw)
    >>> popart.update(torch.full((8, 1), 50.0), torch.ones(8, dtype=torch.bool))
    >>> torch.allclose(popart.to_returns(raw), before), popart.to_normalized(raw)
    (True, tensor([-0.1927]))
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        num_gammas: int,
        *,
        decay: float = 5e-4,
        initial_second_moment: float = 100.0,
        enabled: bool = True,
    ) -> None:
        # With moments 0 and 1 that never move, every formula below is the identity.
        second_moment = initial_second_moment if enabled else 1.0
        super().__init__(
            num_gammas, num_outputs=1, decay=decay, initial_second_moment=second_moment
        )
        self.enabled = enabled
        self.register_buffer("scale", torch.ones(num_gammas))
        self.register_buffer("shift", torch.zeros(num_gammas))

    def to_normalized(self, raw: Tensor) -> Tensor:
        """`w raw + b`."""
        return raw.squeeze(-1).float() * self.scale + self.shift

    def to_returns(self, raw: Tensor) -> Tensor:
        """`s (w raw + b) + m`."""
        return self.to_normalized(raw) * self.std + self.mean

    def loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        """Squared error of the normalised value against the target normalised by the present
        statistics.
        """
        normalized = (targets.float() - self.mean) / self.std
        return (self.to_normalized(raw) - normalized).square()

    @torch.no_grad()
    def update(self, targets: Tensor, mask: Tensor) -> None:
        """Move the statistics and, to preserve outputs, `w` and `b`."""
        if not self.enabled:
            return
        mean, std = self.mean.clone(), self.std
        super().update(targets, mask)
        self.scale.mul_(std / self.std)
        self.shift.mul_(std).add_(mean - self.mean).div_(self.std)


class BinnedReturns(ValueRepresentation):
    """Classification over bins of returns by cross-entropy (arXiv 2411.11188, 2403.03950).

    Bins are evenly spaced in the (symlog) return. The value of a distribution over them is its mean
    return, the sum of p_i v_i over bins of return v_i, and labels have the target as their mean
    return. The minimum of the cross-entropy over random targets then has the mean target as its
    value, which a mean taken in symlog space does not: there, a sure 20 is worth more than an even
    chance of 100 or nothing.

    Raw outputs are log-odds relative to a prior that weighs bin i by 1 / (1 + abs(v_i)), so that
    every bin contributes about as much to the value. With equal weights, the outermost bins would
    dominate: small random outputs would be worth hundreds, with bounds of +-1e5. If the bounds are
    not symmetric, the weights of the dominant side are scaled down: outputs of zero are worth 0, or
    the bound nearest to 0, up to half of the narrowest bin.

    Targets outside the bounds count as the bound. The losses report their share as
    ``clipped_targets``.

    Args:
        num_gammas: G, a statistic each for `to_normalized`.
        num_bins: O, at least 2.
        min_return: return of the first bin, after the reward multiplier.
        max_return: return of the last bin.
        labels: "two_hot" splits a target between its two neighbouring bins; "hl_gauss" spreads it
            over all bins by the mass of a normal. A normal in symlog space, or cut off at a bound,
            has another mean return than its centre; each is tilted until its mean return is that of
            its bin, and between two bins labels are interpolated.
        symlog: whether bins are even in `sign(y) log(1 + |y|)` rather than in y.
        sigma: standard deviation of "hl_gauss", in bin widths.
        value: "mean_return", as above; "mean_bin" takes means and neighbours in the space where
            bins are even, without the prior. That was the rule of earlier versions and is that of
            AMAGO-2; it underrates random returns.
        decay, initial_second_moment: as for `ValueRepresentation`.

    The ``state_dict`` records the rule. Loading one with another rule, or of an earlier version,
    which has no record, restores the rule by which the critics were trained and prints a line. It
    records the bins as well (bounds, number, symlog); loading others is refused. States of earlier
    versions have no record of them and are not checked.

    Raises:
        ValueError: if an argument is out of range, or a loaded state is that of other bins.

    >>> returns = BinnedReturns(1, num_bins=3, min_return=-1.0, max_return=1.0, symlog=False)
    >>> returns.encode(torch.tensor([0.25]))
    tensor([[0.0000, 0.7500, 0.2500]])
    """

    bins: Tensor
    bin_returns: Tensor
    bin_labels: Tensor
    log_prior: Tensor
    value_rule: Tensor
    binning: Tensor

    def __init__(
        self,
        num_gammas: int,
        *,
        num_bins: int = 128,
        min_return: float = -1e5,
        max_return: float = 1e5,
        labels: LabelKind = "two_hot",
        symlog: bool = True,
        sigma: float = 0.75,
        value: ValueRule = "mean_return",
        decay: float = 5e-4,
        initial_second_moment: float = 100.0,
    ) -> None:
        super().__init__(
            num_gammas,
            num_outputs=num_bins,
            decay=decay,
            initial_second_moment=initial_second_moment,
        )
        require_at_least("BinnedReturns", 2, num_bins=num_bins)
        below = f"be below max_return={max_return}"
        require("BinnedReturns", "min_return", min_return, min_return < max_return, below)
        require_choice("BinnedReturns", "labels", labels, get_args(LabelKind))
        require("BinnedReturns", "sigma", sigma, sigma > 0.0, "be positive")
        require_choice("BinnedReturns", "value", value, VALUE_RULES)
        self.value: ValueRule = value
        self._labels, self._symlog, self._sigma = labels, symlog, sigma
        self.bounds = (float(min_return), float(max_return))

        bounds = torch.tensor([min_return, max_return], dtype=torch.float64)
        low, high = self._squash(bounds).tolist()
        self._low, self._width = low, (high - low) / (num_bins - 1)
        bins = torch.linspace(low, high, num_bins, dtype=torch.float64)
        bin_returns = self._expand(bins)
        bin_returns[[0, -1]] = bounds
        table = torch.eye(num_bins) if labels == "two_hot" else hl_gauss_labels(bin_returns, sigma)
        self.register_buffer("bins", bins.float(), persistent=False)
        self.register_buffer("bin_returns", bin_returns.float(), persistent=False)
        self.register_buffer("bin_labels", table.float(), persistent=False)
        self.register_buffer(
            "log_prior", prior_weights(bin_returns).log().float(), persistent=False
        )
        self.register_buffer("value_rule", torch.tensor(VALUE_RULES.index(value)))
        binning = torch.tensor([min_return, max_return, num_bins, symlog], dtype=torch.float64)
        self.register_buffer("binning", binning)

    def _squash(self, value: Tensor) -> Tensor:
        return value.sign() * value.abs().log1p() if self._symlog else value

    def _expand(self, value: Tensor) -> Tensor:
        return value.sign() * value.abs().expm1() if self._symlog else value

    def encode(self, targets: Tensor) -> Tensor:
        """Returns `[...]` to label distributions `[..., O]`.

        Their mean return is the target up to the rounding of float32 probabilities: an error of
        about 1e-7 of the returns of the bins that they weigh. With bins much wider than the
        returns, that is large beside a return. For returns between 0.01 and 100, the default bins
        keep 5 digits; 128 bins that are even between -1e5 and 1e5 are wrong by up to 2e-4, those
        between -1e7 and 1e7 by up to 0.02.
        """
        if self.value == "mean_bin":
            return self._encode_by_position(targets)

        targets = targets.float().clamp(self.bin_returns[0], self.bin_returns[-1])
        upper = torch.searchsorted(self.bin_returns, targets.contiguous(), right=True)
        upper = upper.clamp(1, self.num_outputs - 1)
        below, above = self.bin_returns[upper - 1], self.bin_returns[upper]
        # Two differences: one share as 1 minus the other would lose small targets beside wide bins.
        to_lower = ((above - targets) / (above - below)).unsqueeze(-1)
        to_upper = ((targets - below) / (above - below)).unsqueeze(-1)
        return to_lower * self.bin_labels[upper - 1] + to_upper * self.bin_labels[upper]

    def _encode_by_position(self, targets: Tensor) -> Tensor:
        position = ((self._squash(targets.float()) - self._low) / self._width).unsqueeze(-1)
        position = position.clamp(0.0, self.num_outputs - 1.0)
        index = torch.arange(self.num_outputs, device=position.device)
        if self._labels == "two_hot":
            return (1.0 - (position - index).abs()).clamp_min(0.0)
        edges = torch.arange(self.num_outputs + 1, device=position.device) - 0.5
        mass = torch.special.ndtr((edges - position) / self._sigma).diff(dim=-1)
        return mass / mass.sum(-1, keepdim=True)

    def decode(self, probs: Tensor) -> Tensor:
        """Distributions over bins `[..., O]` to returns `[...]`."""
        if self.value == "mean_bin":
            return self._expand((probs * self.bins).sum(-1))
        return (probs * self.bin_returns).sum(-1)

    def logits(self, raw: Tensor) -> Tensor:
        """Raw outputs `[..., O]` to the logits of the distribution over bins that they stand
        for.
        """
        return raw.float() if self.value == "mean_bin" else raw.float() + self.log_prior

    def to_returns(self, raw: Tensor) -> Tensor:
        """The mean return under the distribution that `raw` stands for."""
        return self.decode(self.logits(raw).softmax(-1))

    def to_normalized(self, raw: Tensor) -> Tensor:
        """The return, standardised by the moving moments of the targets."""
        return (self.to_returns(raw) - self.mean) / self.std

    def loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of the distribution that `raw` stands for against the labels of the
        targets.
        """
        return -(self.encode(targets) * self.logits(raw).log_softmax(-1)).sum(-1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        key = f"{prefix}value_rule"
        of_earlier_version = key not in state_dict and f"{prefix}moments.mean" in state_dict
        if of_earlier_version:
            state_dict[key] = torch.tensor(VALUE_RULES.index("mean_bin"))
        self._check_binning(
            state_dict, f"{prefix}binning", is_complete=f"{prefix}moments.mean" in state_dict
        )
        super()._load_from_state_dict(state_dict, prefix, *args)

        # Outputs that were trained for one rule are other values under another.
        trained = VALUE_RULES[int(self.value_rule)]
        if trained != self.value:
            by = ", by an earlier version" if of_earlier_version else ""
            print_stderr(
                f"BinnedReturns: value={trained} instead of {self.value}: the critics were trained so{by}"
            )
        self.value = trained

    def _check_binning(self, state_dict: dict[str, Any], key: str, *, is_complete: bool) -> None:
        """Raises a ValueError where outputs were trained for other bins: they would stand for other
        returns.
        """
        own = self.binning.detach().cpu()
        if key not in state_dict:
            if is_complete:  # of an earlier version, which did not record them
                state_dict[key] = own.clone()
            return
        loaded = state_dict[key].detach().cpu()
        names = ("min_return", "max_return", "num_bins", "symlog")
        # Compared in the dtype of the state, which may be less precise.
        for index, name in enumerate(names):
            mine, saved = own[index].to(loaded.dtype), loaded[index]
            kind = {"num_bins": int, "symlog": bool}.get(name, float)
            condition = f"be {kind(saved)}, as in the loaded state: its critics were trained with these bins"
            require("BinnedReturns", name, kind(own[index]), bool(mine == saved), condition)


def prior_weights(bin_returns: Tensor) -> Tensor:
    """Weights of bins [O], not normalised, whose mean return is near the return of the bounds that
    is nearest to 0.

    Args:
        bin_returns: `[O]` float64, increasing.

    >>> returns = torch.linspace(0, 100, 101, dtype=torch.float64)
    >>> weights = prior_weights(returns)
    >>> round(float(weights @ returns / weights.sum()), 6)
    0.5
    """
    weights = 1.0 / (1.0 + bin_returns.abs())
    nearest = torch.zeros_like(bin_returns[0]).clamp(bin_returns[0], bin_returns[-1])
    offset = bin_returns - nearest
    mean = weights @ offset / weights.sum()
    tolerance = bin_returns.diff().min() / 2
    if mean.abs() > tolerance:
        # Scale the dominant side until the mean is the tolerance: sum(weight * (offset -
        # tolerance)) = 0.
        excess = weights * (mean.sign() * offset - tolerance)
        dominant = offset.sign() == mean.sign()
        weights[dominant] *= -excess[~dominant].sum() / excess[dominant].sum()
    return weights


def hl_gauss_labels(bin_returns: Tensor, sigma: float) -> Tensor:
    """The label of each bin's own return: a discretised normal around it with exactly this mean
    return.

    A factor `exp(t i)` over bins i shifts the normal. The mean return grows with t, so that t is
    found by bisection.

    Args:
        bin_returns: `[O]` float64, increasing.
        sigma: standard deviation, in bins.

    Returns:
        Labels `[O, O]` float64, a row for each bin. The first and the last are that bin alone, as
        nothing else has its mean.
    """
    num_bins = len(bin_returns)
    index = torch.arange(num_bins, dtype=torch.float64)
    offset = index - index.unsqueeze(-1)
    # Both arguments are negative away from the centre, where a difference of numbers near 1 would
    # be rounded away.
    edge = 0.5 - offset.abs()
    log_mass = (torch.special.ndtr(edge / sigma) - torch.special.ndtr((edge - 1.0) / sigma)).log()

    low, high = (
        torch.full((num_bins, 1), -100.0).double(),
        torch.full((num_bins, 1), 100.0).double(),
    )
    for _ in range(80):  # until float64 tells no difference
        tilt = (low + high) / 2
        labels = (log_mass + tilt * offset).softmax(-1)
        above = (labels @ bin_returns > bin_returns).unsqueeze(-1)
        low, high = torch.where(above, low, tilt), torch.where(above, tilt, high)
    ends = torch.eye(num_bins, dtype=torch.float64)[[0, -1]]
    labels[[0, -1]] = ends
    return labels
