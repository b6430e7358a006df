"""Action spaces: the encoding of actions and the family of a policy's distributions."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Literal, get_args

from torch import Tensor
from torchrl.data import Binary, MultiCategorical, MultiOneHot, TensorSpec

from yamame.actions.distributions import (
    ActionDistribution,
    BetaDistribution,
    DiscreteDistribution,
    MultiBinaryDistribution,
    MultiDiscreteDistribution,
    TanhNormalDistribution,
)
from yamame.actions.encoding import ActionEncoding
from yamame.checks import Bounds, check_bounds, require, require_choice

BoxDistribution = Literal["tanh_normal", "beta"]


class ActionSpace(ActionEncoding):
    """Actions of an environment, derived from its action spec.

    A policy is a `DiscreteDistribution` over one choice, a `MultiDiscreteDistribution` over several
    independent choices, a `MultiBinaryDistribution` over bits, and a `TanhNormalDistribution` or a
    `BetaDistribution` over the bounded numbers of a box.

    Args:
        spec: See `ActionEncoding`.
        batch_dims: Number of leading dimensions of the spec that belong to the batch.
        probability_floor: Share of a uniform distribution that is mixed into every policy, in
            [0, 1): within each of several choices, and a fair coin for a bit. Not used by a box.
        box_distribution: Family of a box; not used elsewhere.
        probability_clip: Smallest and largest probability of an action, as AMAGO's code bounds them
            (`DiscreteDistribution`), in place of a floor; only for choices. None: no clipping.

    Attributes:
        num_params: Number P of policy parameters of one distribution.
        enumerable: True if the one-hots of A are all actions, so that a critic may evaluate each.

    Raises:
        ArgumentError: The spec has no encoding, or a setting is out of its range.

    >>> import torch
    >>> from torchrl.data import OneHot
    >>> space = ActionSpace(OneHot(4))
    >>> space.decode(torch.tensor([0.0, 1.0, 0.0, 0.0]))
    tensor([False,  True, False, False])
    >>> space.distribution(torch.zeros(2, 4)).sample().shape
    torch.Size([2, 4])
    """

    @check_bounds
    def __init__(
        self,
        spec: TensorSpec,
        *,
        batch_dims: int = 0,
        probability_floor: Annotated[float, Bounds(least=0, below=1)] = 0.01,
        box_distribution: BoxDistribution = "tanh_normal",
        probability_clip: Sequence[float] | None = None,
    ) -> None:
        super().__init__(spec, batch_dims=batch_dims)
        clip = _checked_clip(probability_clip, probability_floor)
        families = get_args(BoxDistribution)
        require_choice("ActionSpace", "box_distribution", box_distribution, families)
        self.num_params = self.encoded_size
        self.enumerable = False
        self._family: Callable[..., ActionDistribution]
        if self.kind == "box":
            # Each number has two parameters.
            self.num_params = 2 * self.encoded_size
            is_beta = box_distribution == "beta"
            self._family = BetaDistribution if is_beta else TanhNormalDistribution
        elif isinstance(spec, Binary):
            self._family = partial(MultiBinaryDistribution, probability_floor=probability_floor)
        elif isinstance(spec, MultiCategorical | MultiOneHot):
            self._family = partial(
                MultiDiscreteDistribution,
                nvec=self.nvec,
                probability_floor=probability_floor,
                probability_clip=clip,
            )
        else:
            self.enumerable = True
            self._family = partial(
                DiscreteDistribution, probability_floor=probability_floor, probability_clip=clip
            )

    def distribution(self, params: Tensor, action_mask: Tensor | None = None) -> ActionDistribution:
        """Build the distribution of a policy.

        Args:
            params: ``[*, P]``.
            action_mask: Bool, broadcastable to ``[*, A]``. Unsqueeze it where ``params`` has one
                more dimension.

        Raises:
            ArgumentError: ``params`` has another last size, the mask allows nothing in a row, or a
                box has a mask.
        """
        shape = tuple(params.shape)
        condition = f"have {self.num_params} entries in the last dimension"
        fits = shape[-1:] == (self.num_params,)
        require("ActionSpace", "shape of params", shape, fits, condition)
        if self.kind != "box":
            return self._family(params, action_mask=action_mask)
        mask_shape = None if action_mask is None else tuple(action_mask.shape)
        is_unmasked = mask_shape is None
        require("ActionSpace", "shape of action_mask", mask_shape, is_unmasked, "be None for a box")
        return self._family(params)


def _checked_clip(clip: Sequence[float] | None, floor: float) -> tuple[float, float] | None:
    """Return the bounds of probabilities; raise unless they are two numbers in order."""
    if clip is None:
        return None
    bounds = tuple(float(bound) for bound in clip)
    is_range = len(bounds) == 2 and 0.0 <= bounds[0] < bounds[1] <= 1.0
    condition = "be two numbers in [0, 1], the smaller first"
    require("ActionSpace", "probability_clip", list(clip), is_range, condition)
    condition = "be None with a probability_floor above 0"
    require("ActionSpace", "probability_clip", list(clip), floor == 0, condition)
    return bounds[0], bounds[1]


action_space_from_spec = ActionSpace
"""Alias of `ActionSpace`, named as `yamame.timestep.inputs_from_spec` is."""
