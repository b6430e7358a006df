"""Representations of values: standardised scalars (PopArt), or distributions over bins.

Raw outputs of critics are ``[..., G, O]``, returns ``[..., G]`` in the units of the targets
(multiplied rewards). Computations are in float32, also under autocast. Leading dimensions of
outputs and targets broadcast, so that one set of targets serves an ensemble.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal, get_args

import torch
from torch import Tensor, nn

from yamame.checks import (
    Bounds,
    PositiveFloat,
    PositiveInt,
    check_bounds,
    require,
    require_choice,
)
from yamame.normalization import RunningMoments
from yamame.system.messages import print_stderr

LabelKind = Literal["two_hot", "hl_gauss"]
ValueRule = Literal["mean_bin", "mean_return"]
VALUE_RULES: tuple[ValueRule, ...] = get_args(ValueRule)
"""Rules, in the order of their numbers in a ``state_dict``."""
Decay = Annotated[float, Bounds(above=0, most=1)]


class ValueRepresentation(nn.Module, ABC):
    """Representation of values by a critic's outputs, with running moments of the targets.

    Callers update the moments in training mode only.

    Args:
        num_gammas: Number G of discount factors, with a mean and a deviation each.
        num_outputs: Outputs O of a critic per value.
        decay: Weight of an update in the long run, in (0, 1].
        initial_second_moment: Second moment of the targets before any update; their initial mean
            is 0. The initial moments have the weight of one update.

    Raises:
        ArgumentError: An argument is out of its range.
    """

    @check_bounds
    def __init__(
        self,
        num_gammas: PositiveInt,
        *,
        num_outputs: PositiveInt,
        decay: Decay,
        initial_second_moment: PositiveFloat,
    ) -> None:
        super().__init__()
        self.num_gammas = num_gammas
        self.num_outputs = num_outputs
        self.moments = RunningMoments(
            num_gammas, decay=decay, initial_variance=initial_second_moment, initial_updates=1
        )

    @property
    def mean(self) -> Tensor:
        """Mean of the targets, ``[G]`` float32."""
        return self.moments.mean.float()

    @property
    def std(self) -> Tensor:
        """Standard deviation of the targets, ``[G]`` float32, clipped to [0.01, 10000]."""
        return self.moments.variance.clamp(1e-4, 1e8).sqrt().float()

    bounds: tuple[float, float] | None = None
    """Smallest and largest return that can be represented; None if there is no limit."""

    @abstractmethod
    def to_returns(self, raw: Tensor) -> Tensor:
        """Map ``raw [..., G, O]`` to returns ``[..., G]``."""

    @abstractmethod
    def to_normalized(self, raw: Tensor) -> Tensor:
        """Map ``raw [..., G, O]`` to standardised values ``[..., G]``, which an actor maximises."""

    @abstractmethod
    def loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        """Compute the elementwise loss ``[..., G]``.

        Args:
            raw: Outputs of critics, ``[..., G, O]``.
            targets: Returns, ``[..., G]``.
        """

    def update(self, targets: Tensor, mask: Tensor) -> None:
        """Update the moments with the finite ``targets [..., G]`` where ``mask [...]`` is true."""
        self.moments.update(targets, mask)


Returns = ValueRepresentation
"""Former name of `ValueRepresentation`."""


class PopArt(ValueRepresentation):
    """Standardised scalar whose returns are preserved when the statistics move (arXiv 1602.07714).

    With the running mean m and standard deviation s of the targets and the preserving scale w and
    shift b, ``normalised = w raw + b`` and ``return = s (w raw + b) + m``. Only `update` changes w
    and b, so critics need no correction and target critics share them.

    Args:
        num_gammas: As for `ValueRepresentation`.
        decay: As for `ValueRepresentation`.
        initial_second_moment: As for `ValueRepresentation`.
        enabled: If False, values are plain returns, and `update` and the other arguments have no
            effect.

    Raises:
        ArgumentError: An argument is out of its range.

    >>> popart = PopArt(1)
    >>> raw = torch.tensor([[2.0]])
    >>> before = popart.to_returns(raw)
    >>> popart.update(torch.full((8, 1), 50.0), torch.ones(8, dtype=torch.bool))
    >>> torch.allclose(popart.to_returns(raw), before), popart.to_normalized(raw)
    (True, tensor([-0.1927]))
    """

    scale: Tensor
    shift: Tensor

    @check_bounds
    def __init__(
        self,
        num_gammas: PositiveInt,
        *,
        decay: Decay = 5e-4,
        initial_second_moment: PositiveFloat = 100.0,
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
        """Return ``w raw + b``."""
        return raw.squeeze(-1).float() * self.scale + self.shift

    def to_returns(self, raw: Tensor) -> Tensor:
        """Return ``s (w raw + b) + m``."""
        return self.to_normalized(raw) * self.std + self.mean

    def loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        """Compute the squared error of normalised values against normalised targets."""
        normalized = (targets.float() - self.mean) / self.std
        return (self.to_normalized(raw) - normalized).square()

    @torch.no_grad()
    def update(self, targets: Tensor, mask: Tensor) -> None:
        """Update the moments, and ``w`` and ``b`` so that returns stay the same."""
        if not self.enabled:
            return
        mean = self.mean.clone()
        std = self.std
        super().update(targets, mask)
        self.scale.mul_(std / self.std)
        self.shift.mul_(std).add_(mean - self.mean).div_(self.std)


class BinnedReturns(ValueRepresentation):
    """Classification over bins of returns by cross-entropy (arXiv 2411.11188, 2403.03950).

    Bins are evenly spaced in the (symlog) return. The value of a distribution is its mean return,
    the sum of p_i v_i over bins of return v_i, and the label of a target has the target as its mean
    return. The minimum of the cross-entropy over random targets then has the mean target as its
    value. A mean taken in symlog space does not: there, a certain 20 is worth more than an even
    chance of 100 or nothing.

    Targets outside the bounds are clipped. The losses report their share as ``clipped_targets``.

    The ``state_dict`` records the rule of values. Loading one with another rule, or one of an
    earlier version without a record, restores the rule with which the critics were trained and
    prints a line. It also records the bins (bounds, number, symlog); loading others raises. States
    of earlier versions have no record of them and are not checked.

    Args:
        num_gammas: Number G of discount factors, with statistics for `to_normalized` each.
        num_bins: Number O of bins, at least 2.
        min_return: Return of the first bin, in units of multiplied rewards.
        max_return: Return of the last bin.
        labels: ``"two_hot"`` splits a target between its two neighbouring bins. ``"hl_gauss"``
            spreads it over all bins by the mass of a normal distribution, see `hl_gauss_labels`;
            between two bins, labels are interpolated.
        symlog: Space bins evenly in ``sign(y) log(1 + |y|)`` instead of y.
        sigma: Standard deviation of ``"hl_gauss"``, in bin widths.
        value: ``"mean_return"`` is described above. ``"mean_bin"`` takes means and neighbours in
            the space where bins are even, without the prior of `prior_weights`. It is the rule of
            earlier versions and of AMAGO-2, and underrates random returns.
        decay: As for `ValueRepresentation`.
        initial_second_moment: As for `ValueRepresentation`.

    Raises:
        ArgumentError: An argument is out of its range, or a loaded state has other bins.

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

    @check_bounds
    def __init__(
        self,
        num_gammas: PositiveInt,
        *,
        num_bins: Annotated[int, Bounds(least=2)] = 128,
        min_return: float = -1e5,
        max_return: float = 1e5,
        labels: LabelKind = "two_hot",
        symlog: bool = True,
        sigma: PositiveFloat = 0.75,
        value: ValueRule = "mean_return",
        decay: Decay = 5e-4,
        initial_second_moment: PositiveFloat = 100.0,
    ) -> None:
        super().__init__(
            num_gammas,
            num_outputs=num_bins,
            decay=decay,
            initial_second_moment=initial_second_moment,
        )
        owner = type(self).__name__
        below = f"be below max_return={max_return}"
        require(owner, "min_return", min_return, min_return < max_return, below)
        require_choice(owner, "labels", labels, get_args(LabelKind))
        require_choice(owner, "value", value, VALUE_RULES)
        self.value: ValueRule = value
        self._labels = labels
        self._symlog = symlog
        self._sigma = sigma
        self.bounds = (float(min_return), float(max_return))

        bounds = torch.tensor([min_return, max_return], dtype=torch.float64)
        low, high = self._squash(bounds).tolist()
        self._low = low
        self._width = (high - low) / (num_bins - 1)
        bins = torch.linspace(low, high, num_bins, dtype=torch.float64)
        bin_returns = self._expand(bins)
        # Rounding must not move the bounds.
        bin_returns[[0, -1]] = bounds
        if labels == "two_hot":
            bin_labels = torch.eye(num_bins)
        else:
            bin_labels = hl_gauss_labels(bin_returns, sigma)
        # Outputs are log-odds relative to this prior.
        log_prior = prior_weights(bin_returns).log()
        # Tables follow from the arguments, so they are not part of the state.
        self.register_buffer("bins", bins.float(), persistent=False)
        self.register_buffer("bin_returns", bin_returns.float(), persistent=False)
        self.register_buffer("bin_labels", bin_labels.float(), persistent=False)
        self.register_buffer("log_prior", log_prior.float(), persistent=False)

        self.register_buffer("value_rule", torch.tensor(VALUE_RULES.index(value)))
        binning = torch.tensor([min_return, max_return, num_bins, symlog], dtype=torch.float64)
        self.register_buffer("binning", binning)

    def _squash(self, value: Tensor) -> Tensor:
        """Map returns to the space in which bins are even."""
        if not self._symlog:
            return value
        return value.sign() * value.abs().log1p()

    def _expand(self, value: Tensor) -> Tensor:
        """Invert `_squash`."""
        if not self._symlog:
            return value
        return value.sign() * value.abs().expm1()

    def encode(self, targets: Tensor) -> Tensor:
        """Map returns ``[...]`` to label distributions ``[..., O]``.

        The mean return of a label is its target, up to an error of about 1e-7 of the returns of its
        bins, the rounding of float32 probabilities. With bins much wider than a return, that is
        large beside the return. For returns between 0.01 and 100, the default bins keep 5 digits;
        128 even bins between -1e5 and 1e5 have errors up to 2e-4, those between -1e7 and 1e7 up to
        0.02.
        """
        if self.value == "mean_bin":
            return self._encode_by_position(targets)

        targets = targets.float().clamp(self.bin_returns[0], self.bin_returns[-1])
        upper = torch.searchsorted(self.bin_returns, targets.contiguous(), right=True)
        upper = upper.clamp(1, self.num_outputs - 1)
        lower = upper - 1
        lower_return = self.bin_returns[lower]
        upper_return = self.bin_returns[upper]
        width = upper_return - lower_return
        # Both shares are differences: 1 minus the other share would lose small targets in wide
        # bins.
        lower_share = ((upper_return - targets) / width).unsqueeze(-1)
        upper_share = ((targets - lower_return) / width).unsqueeze(-1)
        return lower_share * self.bin_labels[lower] + upper_share * self.bin_labels[upper]

    def _encode_by_position(self, targets: Tensor) -> Tensor:
        """Encode returns by their position in the space where bins are even."""
        position = ((self._squash(targets.float()) - self._low) / self._width).unsqueeze(-1)
        position = position.clamp(0.0, self.num_outputs - 1.0)
        index = torch.arange(self.num_outputs, device=position.device)
        if self._labels == "two_hot":
            return (1.0 - (position - index).abs()).clamp_min(0.0)
        edges = torch.arange(self.num_outputs + 1, device=position.device) - 0.5
        mass = torch.special.ndtr((edges - position) / self._sigma).diff(dim=-1)
        # A normal distribution is cut off at the bounds.
        return mass / mass.sum(-1, keepdim=True)

    def decode(self, probs: Tensor) -> Tensor:
        """Map distributions over bins ``[..., O]`` to returns ``[...]``."""
        if self.value == "mean_bin":
            return self._expand((probs * self.bins).sum(-1))
        return (probs * self.bin_returns).sum(-1)

    def logits(self, raw: Tensor) -> Tensor:
        """Map raw outputs ``[..., O]`` to the logits of their distribution over bins."""
        if self.value == "mean_bin":
            return raw.float()
        return raw.float() + self.log_prior

    def to_returns(self, raw: Tensor) -> Tensor:
        """Compute the mean return of the distribution of ``raw [..., G, O]``."""
        return self.decode(self.logits(raw).softmax(-1))

    def to_normalized(self, raw: Tensor) -> Tensor:
        """Compute the mean return, standardised by the moments of the targets."""
        return (self.to_returns(raw) - self.mean) / self.std

    def loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        """Compute the cross-entropy against the labels of the targets."""
        log_probs = self.logits(raw).log_softmax(-1)
        return -(self.encode(targets) * log_probs).sum(-1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        is_complete = f"{prefix}moments.mean" in state_dict
        rule_key = f"{prefix}value_rule"
        lacks_rule = is_complete and rule_key not in state_dict
        if lacks_rule:
            # Versions that did not record their rule had this one.
            state_dict[rule_key] = torch.tensor(VALUE_RULES.index("mean_bin"))
        self._check_binning(state_dict, f"{prefix}binning", is_complete=is_complete)
        super()._load_from_state_dict(state_dict, prefix, *args)

        # Outputs that were trained for one rule are other values under another.
        trained_rule = VALUE_RULES[int(self.value_rule)]
        if trained_rule != self.value:
            version = " by an earlier version" if lacks_rule else ""
            print_stderr(
                f"BinnedReturns: uses value={trained_rule} instead of {self.value}, "
                f"with which the critics were trained{version}"
            )
        self.value = trained_rule

    def _check_binning(self, state_dict: dict[str, Any], key: str, *, is_complete: bool) -> None:
        """Raise if a state has other bins, in which the same outputs are other returns."""
        own = self.binning.detach().cpu()
        if key not in state_dict:
            if is_complete:
                # Earlier versions did not record their bins.
                state_dict[key] = own.clone()
            return

        saved = state_dict[key].detach().cpu()
        kinds = {"min_return": float, "max_return": float, "num_bins": int, "symlog": bool}
        for index, (name, kind) in enumerate(kinds.items()):
            # The dtype of the state may be less precise.
            is_equal = bool(own[index].to(saved.dtype) == saved[index])
            condition = (
                f"be {kind(saved[index])}, as in the loaded state: its critics were trained "
                "with these bins"
            )
            require(type(self).__name__, name, kind(own[index]), is_equal, condition)


def prior_weights(bin_returns: Tensor) -> Tensor:
    """Compute the prior weights of bins, with which random outputs have values near 0.

    Bin i is weighed by 1 / (1 + abs(v_i)), so that every bin contributes about as much to the
    value. With equal weights the outermost bins would dominate: with bounds of +-1e5, small random
    outputs would be worth hundreds. If the bounds are not symmetric, the weights of the dominant
    side are scaled down, so that outputs of zero are worth 0, or the bound nearest to 0, up to half
    of the narrowest bin.

    Args:
        bin_returns: Returns v of the bins, ``[O]`` float64, increasing.

    Returns:
        Weights ``[O]``, not normalised.

    >>> returns = torch.linspace(0, 100, 101, dtype=torch.float64)
    >>> weights = prior_weights(returns)
    >>> round(float(weights @ returns / weights.sum()), 6)
    0.5
    """
    weights = 1.0 / (1.0 + bin_returns.abs())
    nearest_to_zero = torch.zeros_like(bin_returns[0]).clamp(bin_returns[0], bin_returns[-1])
    offset = bin_returns - nearest_to_zero
    mean = weights @ offset / weights.sum()
    tolerance = bin_returns.diff().min() / 2
    if mean.abs() > tolerance:
        # The dominant side is scaled until the mean equals the tolerance, which is where
        # sum(weight * (offset - tolerance)) = 0.
        excess = weights * (mean.sign() * offset - tolerance)
        is_dominant = offset.sign() == mean.sign()
        weights[is_dominant] *= -excess[~is_dominant].sum() / excess[is_dominant].sum()
    return weights


def hl_gauss_labels(bin_returns: Tensor, sigma: float) -> Tensor:
    """Compute the label of each bin: a discretised normal distribution around its return.

    A normal distribution in symlog space, or one that is cut off at a bound, has another mean
    return than its centre. A factor ``exp(t i)`` over bins i shifts it, and t is chosen so that the
    mean return is that of the bin.

    Args:
        bin_returns: Returns of the bins, ``[O]`` float64, increasing.
        sigma: Standard deviation, in bins.

    Returns:
        Labels ``[O, O]`` float64, one row per bin. The first and the last label have all their mass
        in one bin, because no other distribution has its mean.
    """
    num_bins = len(bin_returns)
    index = torch.arange(num_bins, dtype=torch.float64)
    offset = index - index.unsqueeze(-1)
    # Both arguments are negative away from the centre, where a difference of probabilities near 1
    # would be rounded away.
    edge = 0.5 - offset.abs()
    mass = torch.special.ndtr(edge / sigma) - torch.special.ndtr((edge - 1.0) / sigma)
    log_mass = mass.log()

    # The mean return increases with t, so bisection finds it. 80 steps exhaust float64.
    low = torch.full((num_bins, 1), -100.0, dtype=torch.float64)
    high = torch.full((num_bins, 1), 100.0, dtype=torch.float64)
    for _ in range(80):
        tilt = (low + high) / 2
        labels = (log_mass + tilt * offset).softmax(-1)
        is_above = (labels @ bin_returns > bin_returns).unsqueeze(-1)
        low = torch.where(is_above, low, tilt)
        high = torch.where(is_above, tilt, high)
    labels[[0, -1]] = torch.eye(num_bins, dtype=torch.float64)[[0, -1]]
    return labels
