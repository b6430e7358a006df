"""What a batched environment needs to know of its actions: their spec, their bounds and how they are shown.

The previous action is shown to the agent as a float vector: one-hot for discrete actions, rescaled to [-1, 1]
for continuous ones.
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from torchrl.data import Bounded, Categorical
from torchrl.data.tensor_specs import TensorSpec


class Actions(Protocol):
    """The part of an environment that deals with its actions."""

    encoded_size: int

    def spec(self, num_envs: int, device: torch.device) -> TensorSpec:
        """The spec of a batch of actions."""

    def check(self, owner: str, action: Tensor) -> None:
        """Raises ``ValueError`` in the name of ``owner`` where an action is out of bounds."""

    def encode(self, action: Tensor) -> Tensor:
        """The actions as the agent sees them: ``[N, encoded_size]`` float32."""


def _reject(owner: str, action: Tensor, bad: Tensor, bounds: str) -> None:
    row = int(bad.nonzero()[0, 0])
    raise ValueError(f"{owner}: action must be {bounds}, got {action[row].tolist()} in row {row}")


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

    def check(self, owner: str, action: Tensor) -> None:
        """Raises ``ValueError`` in the name of ``owner`` unless every action is in 0..num_actions-1."""
        low, high = torch.aminmax(action)
        if low < 0 or high >= self.encoded_size:
            bad = (action < 0) | (action >= self.encoded_size)
            _reject(owner, action, bad, f"in 0..{self.encoded_size - 1}")

    def encode(self, action: Tensor) -> Tensor:
        """One-hot: ``[N] -> [N, num_actions]`` float32."""
        return self.one_hot.index_select(0, action)


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

    def check(self, owner: str, action: Tensor) -> None:
        """Raises ``ValueError`` in the name of ``owner`` unless every number is within its bounds."""
        good = (action >= self.low) & (action <= self.high)
        if not good.all():
            _reject(owner, action, ~good, f"in [{self.low.tolist()}, {self.high.tolist()}]")

    def encode(self, action: Tensor) -> Tensor:
        """Rescaled: ``[N, A] -> [N, A]`` float32 in [-1, 1]."""
        return 2.0 * (action - self.low) / (self.high - self.low) - 1.0
