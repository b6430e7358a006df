"""What a batched environment needs to know of its actions: their spec, their bounds and how they are shown.

The previous action is shown to the agent as a float vector: one-hot for discrete actions (one after the other
where several are made at once), bits as they are, numbers rescaled to [-1, 1].
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torchrl.data import Binary, Bounded, Categorical, MultiCategorical
from torchrl.data.tensor_specs import TensorSpec


class Actions(Protocol):
    """The part of an environment that deals with its actions."""

    encoded_size: int

    def spec(self, num_envs: int, device: torch.device) -> TensorSpec:
        """The spec of a batch of actions."""

    def check(self, owner: str, action: Tensor, step_index: Tensor) -> None:
        """Raises ``ValueError`` in the name of ``owner`` where an action is out of bounds.

        The message names the row, and its step from ``step_index`` ``[N, 1]``.
        """

    def encode(self, action: Tensor) -> Tensor:
        """The actions as the agent sees them: ``[N, encoded_size]`` float32."""


def _reject(owner: str, action: Tensor, step_index: Tensor, bad: Tensor, bounds: str) -> None:
    row = int(bad.nonzero()[0, 0])
    place = f"in row {row} at step {int(step_index[row])}"
    raise ValueError(f"{owner}: action must be {bounds}, got {action[row].tolist()} {place}")


class DiscreteActions(nn.Module):
    """One of ``num_actions`` actions: int64 ``[N]``, shown one-hot."""

    one_hot: Tensor

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.encoded_size = num_actions
        self.register_buffer("one_hot", torch.eye(num_actions), persistent=False)

    def spec(self, num_envs: int, device: torch.device) -> TensorSpec:
        """The spec of a batch of actions."""
        return Categorical(self.encoded_size, shape=(num_envs,), dtype=torch.int64, device=device)

    def check(self, owner: str, action: Tensor, step_index: Tensor) -> None:
        """Raises ``ValueError`` in the name of ``owner`` unless every action is in 0..num_actions-1."""
        low, high = torch.aminmax(action)
        if low < 0 or high >= self.encoded_size:
            bad = (action < 0) | (action >= self.encoded_size)
            _reject(owner, action, step_index, bad, f"in 0..{self.encoded_size - 1}")

    def encode(self, action: Tensor) -> Tensor:
        """One-hot: ``[N] -> [N, num_actions]`` float32."""
        return self.one_hot.index_select(0, action)


class MultiDiscreteActions(nn.Module):
    """Several choices made at once, of ``nvec`` actions each: int64 ``[N, len(nvec)]``, shown as one-hots.

    >>> MultiDiscreteActions([2, 3]).encode(torch.tensor([[1, 0]]))
    tensor([[0., 1., 1., 0., 0.]])
    """

    sizes: Tensor
    offsets: Tensor

    def __init__(self, nvec: Sequence[int]) -> None:
        super().__init__()
        self.encoded_size = sum(nvec)
        sizes = torch.tensor(nvec, dtype=torch.int64)
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("offsets", sizes.cumsum(0) - sizes, persistent=False)

    def spec(self, num_envs: int, device: torch.device) -> TensorSpec:
        """The spec of a batch of actions."""
        shape = (num_envs, len(self.sizes))
        return MultiCategorical(self.sizes.tolist(), shape=shape, dtype=torch.int64, device=device)

    def check(self, owner: str, action: Tensor, step_index: Tensor) -> None:
        """Raises ``ValueError`` in the name of ``owner`` unless every choice is one of its actions."""
        good = (action >= 0) & (action < self.sizes)
        if not good.all():
            _reject(owner, action, step_index, ~good, f"at least 0 and below {self.sizes.tolist()}")

    def encode(self, action: Tensor) -> Tensor:
        """Concatenated one-hots: ``[N, len(nvec)] -> [N, sum(nvec)]`` float32."""
        encoded = torch.zeros(action.shape[0], self.encoded_size, device=action.device)
        return encoded.scatter_(-1, action + self.offsets, 1.0)


class MultiBinaryActions(nn.Module):
    """``num_bits`` independent bits: int8 ``[N, num_bits]``, shown as they are."""

    def __init__(self, num_bits: int) -> None:
        super().__init__()
        self.encoded_size = num_bits

    def spec(self, num_envs: int, device: torch.device) -> TensorSpec:
        """The spec of a batch of actions."""
        shape = (num_envs, self.encoded_size)
        return Binary(n=self.encoded_size, shape=shape, dtype=torch.int8, device=device)

    def check(self, owner: str, action: Tensor, step_index: Tensor) -> None:
        """Raises ``ValueError`` in the name of ``owner`` unless every number is 0 or 1."""
        good = (action == 0) | (action == 1)
        if not good.all():
            _reject(owner, action, step_index, ~good, "0 or 1")

    def encode(self, action: Tensor) -> Tensor:
        """Bits: ``[N, num_bits]`` to float32."""
        return action.to(torch.float32)


class BoxActions(nn.Module):
    """A vector of numbers between ``low`` and ``high``: float32 ``[N, A]``, shown rescaled to [-1, 1].

    Args:
        low: ``[A]`` float32.
        high: ``[A]`` float32.
    """

    low: Tensor
    high: Tensor

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__()
        self.encoded_size = low.numel()
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)

    def spec(self, num_envs: int, device: torch.device) -> TensorSpec:
        """The spec of a batch of actions."""
        shape = (num_envs, self.encoded_size)
        low, high = self.low.to(device).expand(shape), self.high.to(device).expand(shape)
        return Bounded(low, high, shape=shape, dtype=torch.float32, device=device)

    def check(self, owner: str, action: Tensor, step_index: Tensor) -> None:
        """Raises ``ValueError`` in the name of ``owner`` unless every number is within its bounds."""
        good = (action >= self.low) & (action <= self.high)
        if not good.all():
            bounds = f"in [{self.low.tolist()}, {self.high.tolist()}]"
            _reject(owner, action, step_index, ~good, bounds)

    def encode(self, action: Tensor) -> Tensor:
        """Rescaled: ``[N, A] -> [N, A]`` float32 in [-1, 1]."""
        return 2.0 * (action - self.low) / (self.high - self.low) - 1.0
