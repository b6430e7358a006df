"""Distributions over numbers in [-1, 1]."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from yamame.actions.distributions import ActionDistribution

_INVERSE_LIMIT = 0.99
# Expectation under the standard normal by the trapezoid rule: under the widest normals the integrand bends
# within a seventh of a standard deviation, where even nodes do better than as many Gauss-Hermite ones.
_NODES = tuple(node / 3.0 for node in range(-12, 13))
_NORMALIZER = sum(math.exp(-0.5 * node**2) for node in _NODES)
_QUADRATURE = tuple((node, math.exp(-0.5 * node**2) / _NORMALIZER) for node in _NODES)


class TanhNormalDistribution(ActionDistribution):
    """Normals squashed into (-1, 1) by tanh (arXiv 1801.01290), independent over dimensions.

    The log standard deviation is `-5 + 3.5 (tanh(s) + 1)`, so in [-5, 2]. The density of an action is taken
    at the action clipped to +-0.99: near the ends the inverse of tanh is meaningless in float32 and its
    log-densities explode.

    Args:
        params: `[*, 2A]`: the A locations, then the A raw scales s.
    """

    def __init__(self, params: Tensor) -> None:
        self._loc, raw_scale = params.float().chunk(2, -1)
        self._log_std = -5.0 + 3.5 * (raw_scale.tanh() + 1.0)

    def rsample(self) -> Tensor:
        """Draw reparametrised actions."""
        return (self._loc + self._log_std.exp() * torch.randn_like(self._loc)).tanh()

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

    Both concentrations are `softplus(raw) + 1.0001`, so every density is unimodal. The density of an action
    is taken at the action clipped to +-0.99.

    Args:
        params: `[*, 2A]`: the A raw alphas, then the A raw betas.
    """

    def __init__(self, params: Tensor) -> None:
        alpha, beta = (F.softplus(params.float()) + 1.0001).chunk(2, -1)
        self._beta = torch.distributions.Beta(alpha, beta, validate_args=False)

    def rsample(self) -> Tensor:
        """Draw reparametrised actions (implicit gradients, arXiv 1805.08498)."""
        return 2.0 * self._beta.rsample() - 1.0

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
