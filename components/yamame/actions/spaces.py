"""Action spaces: how actions are encoded, and the family of distributions that a policy draws them
from.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

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
from yamame.checks import require, require_choice

BoxDistribution = Literal["tanh_normal", "beta"]


class ActionSpace(ActionEncoding):
    """What an action is, read off an environment's action spec.

    A policy draws one choice from a `DiscreteDistribution`, several independent ones from a
    `MultiDiscreteDistribution`, bits from a `MultiBinaryDistribution`, and the bounded numbers of a
    box from a `TanhNormalDistribution` or a `BetaDistribution`.

    Args:
        spec: See `ActionEncoding`.
        batch_dims: Number of leading dimensions of the spec that belong to the environment's batch.
        probability_floor: Share of a uniform distribution mixed into every policy, in [0, 1):
            within each of several choices, and for a bit a fair coin; not used by a box.
        box_distribution: Family of a box; not used elsewhere.

    Attributes:
        num_params: P, the number of policy parameters of one distribution.
        enumerable: Whether the one-hots of A are all there is, so that a critic may value each of
            them.

    Raises:
        ValueError: If there is no encoding for the spec, or a setting is out of its range.

    >>> import torch
    >>> from torchrl.data import OneHot
    >>> space = ActionSpace(OneHot(4))
    >>> space.decode(torch.tensor([0.0, 1.0, 0.0, 0.0]))
    tensor([False,  True, False, False])
    >>> space.distribution(torch.zeros(2, 4)).sample().shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        spec: TensorSpec,
        *,
        batch_dims: int = 0,
        probability_floor: float = 0.01,
        box_distribution: BoxDistribution = "tanh_normal",
    ) -> None:
        super().__init__(spec, batch_dims=batch_dims)
        in_range = 0.0 <= probability_floor < 1.0
        require("ActionSpace", "probability_floor", probability_floor, in_range, "be in [0, 1)")
        require_choice(
            "ActionSpace", "box_distribution", box_distribution, get_args(BoxDistribution)
        )
        self.num_params, self.enumerable = self.encoded_size, False
        self._family: Callable[..., ActionDistribution]
        if self.kind == "box":
            self.num_params = 2 * self.encoded_size
            self._family = (
                BetaDistribution if box_distribution == "beta" else TanhNormalDistribution
            )
        elif isinstance(spec, Binary):
            self._family = partial(MultiBinaryDistribution, probability_floor=probability_floor)
        elif isinstance(spec, MultiCategorical | MultiOneHot):
            self._family = partial(
                MultiDiscreteDistribution, nvec=self.nvec, probability_floor=probability_floor
            )
        else:
            self.enumerable = True
            self._family = partial(DiscreteDistribution, probability_floor=probability_floor)

    def distribution(self, params: Tensor, action_mask: Tensor | None = None) -> ActionDistribution:
        """The policy's distribution.

        Args:
            params: `[*, P]`.
            action_mask: bool, broadcastable to `[*, A]` (unsqueeze it where `params` has a
                dimension more).

        Raises:
            ValueError: If `params` has another last size, the mask allows nothing in a row, or
                a box is masked.
        """
        shape = tuple(params.shape)
        condition = f"have {self.num_params} entries in the last dimension"
        require(
            "ActionSpace", "shape of params", shape, shape[-1:] == (self.num_params,), condition
        )
        if self.kind != "box":
            return self._family(params, action_mask=action_mask)
        masked = None if action_mask is None else tuple(action_mask.shape)
        require("ActionSpace", "shape of action_mask", masked, masked is None, "be None for a box")
        return self._family(params)


action_space_from_spec = ActionSpace
"""The same, by the name that it has beside `yamame.timestep.inputs_from_spec`."""
