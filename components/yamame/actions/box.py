"""The action space of bounded real vectors."""

from typing import Literal

import torch
from torch import Tensor

from yamame.actions.base import ActionSpace
from yamame.actions.box_distributions import BetaDistribution, TanhNormalDistribution
from yamame.actions.constant import Constant
from yamame.actions.distributions import ActionDistribution

BoxDistribution = Literal["tanh_normal", "beta"]


class BoxActions(ActionSpace):
    """A vector of bounded numbers, encoded by the affine map of the bounds onto [-1, 1].

    Actions outside the bounds are encoded as the bound; decoded actions never leave the bounds.

    Args:
        low: lower bounds, 1-D.
        high: upper bounds, 1-D; actions have their dtype.
        distribution: the policy's family.

    Raises:
        ValueError: if the bounds are not 1-D, finite, of one shape and increasing, or the family is unknown.

    >>> space = BoxActions(torch.tensor([0.0]), torch.tensor([10.0]))
    >>> space.encode(torch.tensor([7.5])), space.decode(torch.tensor([-1.0]))
    (tensor([0.5000]), tensor([0.]))
    """

    def __init__(self, low: Tensor, high: Tensor, *, distribution: BoxDistribution = "tanh_normal") -> None:
        if low.ndim != 1 or low.shape != high.shape:
            shapes = (tuple(low.shape), tuple(high.shape))
            raise ValueError(f"BoxActions: low and high must be 1-D and of one shape, got {shapes}")
        if not ((high - low).isfinite().all() and (low < high).all()):
            bounds = (low.tolist(), high.tolist())
            raise ValueError(f"BoxActions: low and high must be finite with low < high, got {bounds}")
        families = {"tanh_normal": TanhNormalDistribution, "beta": BetaDistribution}
        if distribution not in families:
            raise ValueError(f"BoxActions: distribution must be in {list(families)}, got {distribution!r}")
        self.low, self.high = low.detach().clone(), high.detach().clone()
        self._low, self._high = Constant(self.low), Constant(self.high)
        self._middle = Constant((self.low + self.high) / 2.0)
        self._half = Constant((self.high - self.low) / 2.0)
        self._family = families[distribution]
        self.encoded_size = low.shape[0]
        self.num_params = 2 * self.encoded_size

    def encode(self, action: Tensor) -> Tensor:
        """The environment's action `[*, A]` to float32 in [-1, 1]."""
        middle, half = self._middle.on(action.device), self._half.on(action.device)
        return ((action - middle) / half).clamp(-1.0, 1.0).float()

    def decode(self, encoded: Tensor) -> Tensor:
        """Numbers in [-1, 1] to the environment's units."""
        bounds = (self._low, self._high, self._middle, self._half)
        low, high, middle, half = (bound.on(encoded.device) for bound in bounds)
        return torch.addcmul(middle, encoded.to(low.dtype), half).clamp(low, high)

    def _distribution(self, params: Tensor, action_mask: Tensor | None) -> ActionDistribution:
        if action_mask is not None:
            shape = tuple(action_mask.shape)
            raise ValueError(f"BoxActions: action_mask must be None for a box, got a mask of shape {shape}")
        return self._family(params)
