"""A linear recurrence over whole sequences: ``h[t] = decay[t] * h[t-1] + values[t]``, with its
gradient.

Each sequence is cut into chunks of about the square root of its length. All chunks go forward
together from zero, then what the chunk before ended with is added to each in turn: ``2 sqrt(L)``
dependent operations instead of L, on O(L) numbers. Only products of decays are taken, never
quotients or logarithms, so that any decay in [0, 1] is safe: a product may vanish, as it should. A
decay of 0 forgets exactly.

Source: Blelloch, "Prefix sums and their applications", 1990. The gradient is the same recurrence in
reverse (Martin & Cundy, arXiv 1709.04057).
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def linear_scan(decay: Tensor, values: Tensor) -> Tensor:
    """The states of a linear recurrence that begins with zero.

    Args:
        decay: ``[B, L, D]`` in [0, 1]; that of the first timestep is multiplied with nothing.
        values: ``[B, L, D]``, of the same dtype.

    Returns:
        ``[B, L, D]``.

    >>> decay = torch.tensor([0.5, 0.5, 0.0, 1.0]).view(1, 4, 1)
    >>> linear_scan(decay, torch.ones(1, 4, 1)).flatten()
    tensor([1.0000, 1.5000, 1.0000, 2.0000])
    """
    states: Tensor = _LinearScan.apply(decay, values)
    return states


class _LinearScan(torch.autograd.Function):
    """`linear_scan` for autograd."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, values: Tensor) -> Tensor:
        states = _scan(decay, values)
        ctx.save_for_backward(decay, states)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        decay, states = ctx.saved_tensors
        # In reverse, with the decay of the timestep after.
        of_values = _scan(decay.flip(1).roll(1, 1), gradient.flip(1)).flip(1)
        of_decay = torch.zeros_like(decay)
        of_decay[:, 1:] = of_values[:, 1:] * states[:, :-1]
        return of_decay, of_values


def _scan(decay: Tensor, values: Tensor) -> Tensor:
    length = values.shape[1]
    size = math.isqrt(length)
    whole = length // size * size
    states = values.clone(memory_format=torch.contiguous_format)
    chunks = states[:, :whole].unflatten(1, (-1, size))
    # How much of what its chunk began with is left at each timestep.
    kept = decay[:, :whole].clone(memory_format=torch.contiguous_format).unflatten(1, (-1, size))
    for t in range(1, size):
        chunks[:, :, t].addcmul_(kept[:, :, t], chunks[:, :, t - 1])
        kept[:, :, t].mul_(kept[:, :, t - 1])
    for k in range(1, whole // size):
        chunks[:, k].addcmul_(kept[:, k], chunks[:, k - 1, -1:])
    for t in range(whole, length):
        states[:, t].addcmul_(decay[:, t], states[:, t - 1])
    return states
