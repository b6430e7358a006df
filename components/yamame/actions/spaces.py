"""Action spaces: how actions are encoded, and the family of distributions that a policy draws them from."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, MultiCategorical, MultiOneHot, OneHot, TensorSpec

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
_FAMILIES = {"tanh_normal": TanhNormalDistribution, "beta": BetaDistribution}


class ActionSpace(ActionEncoding):
    """What an action is.

    Attributes:
        num_params: P, the number of policy parameters of one distribution.
        enumerable: Whether the one-hots of A are all there is, so that a critic may value each of them.
        probability_floor: Share of a uniform distribution mixed into every policy, in [0, 1); 0 for a box.
    """

    enumerable: bool = False

    def __init__(
        self, spec: TensorSpec, family: Callable[..., ActionDistribution], *, probability_floor: float = 0.0
    ) -> None:
        owner, in_range = type(self).__name__, 0.0 <= probability_floor < 1.0
        require(owner, "probability_floor", probability_floor, in_range, "be in [0, 1)")
        super().__init__(spec)
        self.num_params, self.probability_floor = self.encoded_size, probability_floor
        self._family = family

    def distribution(self, params: Tensor, action_mask: Tensor | None = None) -> ActionDistribution:
        """The policy's distribution.

        Args:
            params: `[*, P]`.
            action_mask: bool, broadcastable to `[*, A]` (unsqueeze it where `params` has a dimension more).

        Raises:
            ValueError: If `params` has another last size, the mask allows nothing in a row, or
                a box is masked.
        """
        owner, shape = type(self).__name__, tuple(params.shape)
        condition = f"have {self.num_params} entries in the last dimension"
        require(owner, "shape of params", shape, shape[-1:] == (self.num_params,), condition)
        return self._distribution(params, action_mask)

    def _distribution(self, params: Tensor, action_mask: Tensor | None) -> ActionDistribution:
        return self._family(params, probability_floor=self.probability_floor, action_mask=action_mask)


class DiscreteActions(ActionSpace):
    """One of `num_actions`.

    Args:
        num_actions: A.
        probability_floor: See `ActionSpace`.
        one_hot: Whether the environment's actions are one-hot `[*, A]` rather than indices `[*]`.
        dtype: Dtype of the environment's actions.

    Raises:
        ValueError: If `num_actions` is not positive or `probability_floor` out of range.

    >>> DiscreteActions(3).distribution(torch.zeros(2, 3)).sample().shape
    torch.Size([2, 3])
    """

    enumerable = True

    def __init__(
        self,
        num_actions: int,
        *,
        probability_floor: float = 0.01,
        one_hot: bool = False,
        dtype: torch.dtype = torch.int64,
    ) -> None:
        require("DiscreteActions", "num_actions", num_actions, num_actions >= 1, "be positive")
        spec = (OneHot if one_hot else Categorical)(num_actions, dtype=dtype)
        super().__init__(spec, DiscreteDistribution, probability_floor=probability_floor)


class MultiDiscreteActions(ActionSpace):
    """Several independent choices, made at once.

    Args:
        nvec: Number of actions of each choice; A is their sum.
        probability_floor: See `ActionSpace`; within each choice.
        one_hot: Whether the environment's actions are concatenated one-hots `[*, A]` rather than indices
            `[*, len(nvec)]`.
        dtype: Dtype of the environment's actions.

    Raises:
        ValueError: If `nvec` is empty or not positive or `probability_floor` out of range.
    """

    def __init__(
        self,
        nvec: Sequence[int],
        *,
        probability_floor: float = 0.01,
        one_hot: bool = False,
        dtype: torch.dtype = torch.int64,
    ) -> None:
        holds = min(nvec, default=0) >= 1
        require("MultiDiscreteActions", "nvec", nvec, holds, "hold positive numbers")
        spec = (MultiOneHot if one_hot else MultiCategorical)(list(nvec), dtype=dtype)
        family = partial(MultiDiscreteDistribution, nvec=nvec)
        super().__init__(spec, family, probability_floor=probability_floor)


class MultiBinaryActions(ActionSpace):
    """Independent bits.

    Args:
        num_bits: A.
        probability_floor: See `ActionSpace`; for a bit, the uniform distribution is a fair coin.
        dtype: Dtype of the environment's actions `[*, A]`.

    Raises:
        ValueError: If `num_bits` is not positive or `probability_floor` out of range.
    """

    def __init__(
        self, num_bits: int, *, probability_floor: float = 0.01, dtype: torch.dtype = torch.int8
    ) -> None:
        require("MultiBinaryActions", "num_bits", num_bits, num_bits >= 1, "be positive")
        spec = Binary(num_bits, dtype=dtype)
        super().__init__(spec, MultiBinaryDistribution, probability_floor=probability_floor)


class BoxActions(ActionSpace):
    """A vector of bounded numbers.

    Args:
        low: Lower bounds, 1-D.
        high: Upper bounds, 1-D; actions have their dtype.
        distribution: The policy's family, a `TanhNormalDistribution` or a `BetaDistribution`.

    Raises:
        ValueError: If the bounds are not 1-D, finite, of one shape and increasing, or the family is unknown.

    >>> space = BoxActions(torch.tensor([0.0]), torch.tensor([10.0]))
    >>> space.encode(torch.tensor([7.5])), space.decode(torch.tensor([-1.0]))
    (tensor([0.5000]), tensor([0.]))
    """

    def __init__(self, low: Tensor, high: Tensor, *, distribution: BoxDistribution = "tanh_normal") -> None:
        require_choice("BoxActions", "distribution", distribution, tuple(_FAMILIES))
        shapes = (tuple(low.shape), tuple(high.shape))
        one_shape = low.ndim == 1 and low.shape == high.shape
        require("BoxActions", "low and high", shapes, one_shape, "be 1-D and of one shape")
        super().__init__(Bounded(low, high, dtype=low.dtype), _FAMILIES[distribution])
        self.num_params = 2 * low.numel()

    def _distribution(self, params: Tensor, action_mask: Tensor | None) -> ActionDistribution:
        shape = None if action_mask is None else tuple(action_mask.shape)
        require("BoxActions", "shape of action_mask", shape, shape is None, "be None for a box")
        return self._family(params)


def action_space_from_spec(
    spec: TensorSpec,
    *,
    batch_dims: int = 0,
    probability_floor: float = 0.01,
    box_distribution: BoxDistribution = "tanh_normal",
) -> ActionSpace:
    """The action space of an environment's action spec.

    Args:
        spec: See `ActionEncoding`.
        batch_dims: Number of leading dimensions of the spec that belong to the environment's batch.
        probability_floor: See `ActionSpace`; not used by a `Bounded` spec.
        box_distribution: See `BoxActions`; used by a `Bounded` spec only.

    Raises:
        ValueError: If there is no space for this spec.

    >>> action_space_from_spec(OneHot(4)).decode(torch.tensor([0.0, 1.0, 0.0, 0.0]))
    tensor([False,  True, False, False])
    """
    encoding = ActionEncoding(spec, batch_dims=batch_dims)
    if isinstance(spec, Bounded):
        return BoxActions(encoding.low, encoding.high, distribution=box_distribution)
    floor, dtype, one_hot = probability_floor, encoding.dtype, encoding.kind == "bits"
    if isinstance(spec, Binary):
        return MultiBinaryActions(encoding.encoded_size, probability_floor=floor, dtype=dtype)
    if isinstance(spec, MultiCategorical | MultiOneHot):
        return MultiDiscreteActions(encoding.nvec, probability_floor=floor, one_hot=one_hot, dtype=dtype)
    return DiscreteActions(encoding.encoded_size, probability_floor=floor, one_hot=one_hot, dtype=dtype)
