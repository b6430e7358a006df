"""How a critic's raw outputs stand for returns.

Raw outputs are `[..., G, O]`, returns `[..., G]` in the units of the targets (multiplied rewards). The maths
and the statistics are float32, under autocast as well. Leading dimensions of outputs and targets broadcast:
one set of targets serves an ensemble.
"""

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

LabelKind = Literal["two_hot", "hl_gauss"]


class Returns(nn.Module, ABC):
    """A value representation.

    Attributes:
        num_outputs: O, outputs of a critic per value.
    """

    num_outputs: int

    @abstractmethod
    def to_returns(self, raw: Tensor) -> Tensor:
        """`raw [..., G, O]` to `[..., G]` in return units."""

    @abstractmethod
    def to_normalized(self, raw: Tensor) -> Tensor:
        """`raw [..., G, O]` to `[..., G]` standardised by the statistics: what an actor maximises."""

    @abstractmethod
    def loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        """Elementwise loss `[..., G]` of `raw [..., G, O]` against `targets [..., G]` in return units."""

    @abstractmethod
    def update(self, targets: Tensor, mask: Tensor) -> None:
        """Move the statistics with `targets [..., G]` where `mask [...]` (bool); callers gate on training."""


class RunningMoments(nn.Module):
    """Mean and second moment of returns, one of each per discount factor, as moving averages.

    The rate of step t is `decay / (1 - (1 - decay)^t)` with t starting at 2, so that the initial moments
    weigh as one observed step. A step without a valid target changes nothing; one that is not finite is not valid.

    Args:
        num_gammas: G.
        decay: weight of a step in the long run, in (0, 1).
        initial_second_moment: positive.

    Raises:
        ValueError: if an argument is out of range.
    """

    mean: Tensor
    second_moment: Tensor
    count: Tensor

    def __init__(self, num_gammas: int, *, decay: float, initial_second_moment: float) -> None:
        super().__init__()
        if num_gammas < 1:
            raise ValueError(f"RunningMoments: num_gammas must be positive, got {num_gammas}")
        if not 0.0 < decay < 1.0:
            raise ValueError(f"RunningMoments: decay must be in (0, 1), got {decay}")
        if initial_second_moment <= 0.0:
            raise ValueError(
                f"RunningMoments: initial_second_moment must be positive, got {initial_second_moment}"
            )
        self.decay = decay
        self.register_buffer("mean", torch.zeros(num_gammas))
        self.register_buffer("second_moment", torch.full((num_gammas,), float(initial_second_moment)))
        self.register_buffer("count", torch.ones((), dtype=torch.int64))

    @property
    def std(self) -> Tensor:
        """Standard deviation `[G]`; the variance is clipped to [1e-4, 1e8]."""
        return (self.second_moment - self.mean.square()).clamp(1e-4, 1e8).sqrt()

    @torch.no_grad()
    def update(self, targets: Tensor, mask: Tensor) -> None:
        """Move the moments with `targets [..., G]` where `mask [...]`."""
        valid = mask.bool().unsqueeze(-1) & targets.isfinite().all(-1, keepdim=True)
        targets = torch.where(valid, targets.float(), 0.0).flatten(0, -2)
        total = valid.sum()
        moments = torch.stack((targets.sum(0), targets.square().sum(0))) / total.clamp_min(1)
        some = total > 0
        self.count += some
        rate = -self.decay / torch.expm1(self.count * math.log1p(-self.decay)) * some
        self.mean.lerp_(moments[0], rate)
        self.second_moment.lerp_(moments[1], rate)


class PopArt(Returns):
    """A standardised scalar; returns are preserved when the statistics move (arXiv 1602.07714).

    With the moving mean m and standard deviation s of the targets and the preserving scale w and shift b,
    `normalised = w raw + b` and `return = s (w raw + b) + m`. Only `update` moves `w` and
    `b`: critics need no change, and target critics share them.

    Args:
        num_gammas: G, a statistic each.
        decay: weight of an update in the long run, in (0, 1).
        initial_second_moment: second moment of the returns before any is seen, positive.
        enabled: if False, values are plain returns and `update` does nothing, whatever the other arguments.

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
        super().__init__()
        self.num_outputs, self.enabled = 1, enabled
        # With moments 0 and 1 that never move, every formula below is the identity.
        second_moment = initial_second_moment if enabled else 1.0
        self.moments = RunningMoments(num_gammas, decay=decay, initial_second_moment=second_moment)
        self.register_buffer("scale", torch.ones(num_gammas))
        self.register_buffer("shift", torch.zeros(num_gammas))

    def to_normalized(self, raw: Tensor) -> Tensor:
        """`w raw + b`."""
        return raw.squeeze(-1).float() * self.scale + self.shift

    def to_returns(self, raw: Tensor) -> Tensor:
        """`s (w raw + b) + m`."""
        return self.to_normalized(raw) * self.moments.std + self.moments.mean

    def loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        """Squared error of the normalised value against the target normalised by the present statistics."""
        normalized = (targets.float() - self.moments.mean) / self.moments.std
        return (self.to_normalized(raw) - normalized).square()

    @torch.no_grad()
    def update(self, targets: Tensor, mask: Tensor) -> None:
        """Move the statistics and, to preserve outputs, `w` and `b`."""
        if not self.enabled:
            return
        mean, std = self.moments.mean.clone(), self.moments.std
        self.moments.update(targets, mask)
        new_std = self.moments.std
        self.scale.mul_(std / new_std)
        self.shift.mul_(std).add_(mean - self.moments.mean).div_(new_std)


class BinnedReturns(Returns):
    """Classification over bins of the (symlog) return by cross-entropy (arXiv 2411.11188, 2403.03950).

    Bins are evenly spaced between the transformed bounds; a value is the inverse transform of the mean bin.
    Targets outside the bounds count as the bound.

    Args:
        num_gammas: G, a statistic each for `to_normalized`.
        num_bins: O, at least 2.
        min_return: return of the first bin, after the reward multiplier.
        max_return: return of the last bin.
        labels: "two_hot" spreads a target over its two neighbours in proportion to nearness; "hl_gauss" over
            all bins by the mass of a normal.
        symlog: whether bins are even in `sign(y) log(1 + |y|)` rather than in y.
        sigma: standard deviation of "hl_gauss", in bin widths.
        decay: see `PopArt`.
        initial_second_moment: see `PopArt`.

    Raises:
        ValueError: if an argument is out of range.

    >>> returns = BinnedReturns(1, num_bins=3, min_return=-1.0, max_return=1.0, symlog=False)
    >>> returns.encode(torch.tensor([0.25]))
    tensor([[0.0000, 0.7500, 0.2500]])
    """

    bins: Tensor

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
        decay: float = 5e-4,
        initial_second_moment: float = 100.0,
    ) -> None:
        super().__init__()
        if num_bins < 2:
            raise ValueError(f"BinnedReturns: num_bins must be at least 2, got {num_bins}")
        if not min_return < max_return:
            raise ValueError(
                f"BinnedReturns: min_return must be below max_return, got {min_return} and {max_return}"
            )
        if labels not in ("two_hot", "hl_gauss"):
            raise ValueError(f"BinnedReturns: labels must be 'two_hot' or 'hl_gauss', got {labels!r}")
        if sigma <= 0.0:
            raise ValueError(f"BinnedReturns: sigma must be positive, got {sigma}")
        self.num_outputs = num_bins
        self._labels, self._symlog, self._sigma = labels, symlog, sigma
        self.moments = RunningMoments(num_gammas, decay=decay, initial_second_moment=initial_second_moment)
        low, high = self._squash(torch.tensor([min_return, max_return], dtype=torch.float64)).tolist()
        self._low, self._width = low, (high - low) / (num_bins - 1)
        bins = torch.linspace(low, high, num_bins, dtype=torch.float64).float()
        self.register_buffer("bins", bins, persistent=False)

    def _squash(self, value: Tensor) -> Tensor:
        return value.sign() * value.abs().log1p() if self._symlog else value

    def encode(self, targets: Tensor) -> Tensor:
        """Returns `[...]` to label distributions `[..., O]`."""
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
        mean = (probs * self.bins).sum(-1)
        return mean.sign() * mean.abs().expm1() if self._symlog else mean

    def to_returns(self, raw: Tensor) -> Tensor:
        """The return at the mean bin under the softmax of `raw`."""
        return self.decode(raw.float().softmax(-1))

    def to_normalized(self, raw: Tensor) -> Tensor:
        """The return, standardised by the moving moments of the targets."""
        return (self.to_returns(raw) - self.moments.mean) / self.moments.std

    def loss(self, raw: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of the softmax of `raw` against the labels of the targets."""
        return -(self.encode(targets) * raw.float().log_softmax(-1)).sum(-1)

    def update(self, targets: Tensor, mask: Tensor) -> None:
        """Move the moments; the bins are fixed."""
        self.moments.update(targets, mask)
