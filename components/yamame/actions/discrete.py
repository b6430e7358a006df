"""Action spaces of finitely many actions: one choice, several choices, bits."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from yamame.actions.base import ActionSpace
from yamame.actions.distributions import (
    DiscreteDistribution,
    MultiBinaryDistribution,
    MultiDiscreteDistribution,
)
from yamame.actions.groups import Groups


def _check_floor(space: ActionSpace, probability_floor: float) -> float:
    if not 0.0 <= probability_floor < 1.0:
        name = type(space).__name__
        raise ValueError(f"{name}: probability_floor must be in [0, 1), got {probability_floor}")
    return probability_floor


class DiscreteActions(ActionSpace):
    """One of `num_actions`.

    Args:
        num_actions: A.
        probability_floor: share of a uniform distribution mixed into every policy, in [0, 1).
        one_hot: whether the environment's actions are one-hot `[*, A]` rather than indices `[*]`.
        dtype: dtype of the environment's actions.

    Raises:
        ValueError: if `num_actions` is not positive or `probability_floor` out of range.

    >>> space = DiscreteActions(3)
    >>> space.encode(torch.tensor([2, 0]))
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
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
        if num_actions < 1:
            raise ValueError(f"DiscreteActions: num_actions must be positive, got {num_actions}")
        self.encoded_size = self.num_params = num_actions
        self.probability_floor = _check_floor(self, probability_floor)
        self.one_hot, self.dtype = one_hot, dtype

    def encode(self, action: Tensor) -> Tensor:
        """Indices `[*]` (or one-hots `[*, A]`) to float32 one-hots `[*, A]`."""
        return action.float() if self.one_hot else F.one_hot(action.long(), self.encoded_size).float()

    def decode(self, encoded: Tensor) -> Tensor:
        """One-hots `[*, A]` to the environment's indices or one-hots."""
        return (encoded > 0.5 if self.one_hot else encoded.argmax(-1)).to(self.dtype)

    def _distribution(self, params: Tensor, action_mask: Tensor | None) -> DiscreteDistribution:
        return DiscreteDistribution(params, probability_floor=self.probability_floor, action_mask=action_mask)


class MultiDiscreteActions(ActionSpace):
    """Several independent choices, made at once.

    Args:
        nvec: number of actions of each choice; A is their sum.
        probability_floor: as for `DiscreteActions`, within each choice.
        one_hot: whether the environment's actions are concatenated one-hots `[*, A]` rather than indices
            `[*, len(nvec)]`.
        dtype: dtype of the environment's actions.

    Raises:
        ValueError: if `nvec` is empty or not positive or `probability_floor` out of range.

    >>> MultiDiscreteActions([2, 3]).encode(torch.tensor([1, 0]))
    tensor([0., 1., 1., 0., 0.])
    """

    def __init__(
        self,
        nvec: Sequence[int],
        *,
        probability_floor: float = 0.01,
        one_hot: bool = False,
        dtype: torch.dtype = torch.int64,
    ) -> None:
        if not len(nvec) or min(nvec) < 1:
            raise ValueError(f"MultiDiscreteActions: nvec must hold positive numbers, got {nvec}")
        self.groups = Groups(nvec)
        self.encoded_size = self.num_params = self.groups.total
        self.probability_floor = _check_floor(self, probability_floor)
        self.one_hot, self.dtype = one_hot, dtype

    def encode(self, action: Tensor) -> Tensor:
        """Indices `[*, len(nvec)]` (or one-hots) to float32 concatenated one-hots `[*, A]`."""
        if self.one_hot:
            return action.float()
        index = action.long() + self.groups.offsets.on(action.device)
        encoded = torch.zeros(*action.shape[:-1], self.encoded_size, device=action.device)
        return encoded.scatter_(-1, index, 1.0)

    def decode(self, encoded: Tensor) -> Tensor:
        """Concatenated one-hots `[*, A]` to the environment's indices or one-hots."""
        if self.one_hot:
            return (encoded > 0.5).to(self.dtype)
        return self.groups.pad(encoded, fill=-torch.inf).argmax(-1).to(self.dtype)

    def _distribution(self, params: Tensor, action_mask: Tensor | None) -> MultiDiscreteDistribution:
        return MultiDiscreteDistribution(
            params, groups=self.groups, probability_floor=self.probability_floor, action_mask=action_mask
        )


class MultiBinaryActions(ActionSpace):
    """Independent bits.

    Args:
        num_bits: A.
        probability_floor: share of a fair coin mixed into every bit, in [0, 1).
        dtype: dtype of the environment's actions `[*, A]`.

    Raises:
        ValueError: if `num_bits` is not positive or `probability_floor` out of range.
    """

    def __init__(
        self, num_bits: int, *, probability_floor: float = 0.01, dtype: torch.dtype = torch.int8
    ) -> None:
        if num_bits < 1:
            raise ValueError(f"MultiBinaryActions: num_bits must be positive, got {num_bits}")
        self.encoded_size = self.num_params = num_bits
        self.probability_floor = _check_floor(self, probability_floor)
        self.dtype = dtype

    def encode(self, action: Tensor) -> Tensor:
        """Bits to float32."""
        return action.float()

    def decode(self, encoded: Tensor) -> Tensor:
        """Float32 bits to the environment's dtype."""
        return (encoded > 0.5).to(self.dtype)

    def _distribution(self, params: Tensor, action_mask: Tensor | None) -> MultiBinaryDistribution:
        return MultiBinaryDistribution(
            params, probability_floor=self.probability_floor, action_mask=action_mask
        )
