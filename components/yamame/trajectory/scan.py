"""A differentiable linear recurrence over sequences: ``h[t] = decay[t] * h[t-1] + values[t]``.

Each sequence is cut into chunks of about the square root of its length. All chunks are scanned
together from zero, then the final state of each chunk is added to the next one in turn: about
``2 sqrt(L)`` dependent operations instead of L, on O(L) numbers. Only products of decays are taken,
never quotients or logarithms, so that any decay in [0, 1] is safe: a product may vanish, as it
should. A decay of 0 forgets exactly.

Decays may be complex numbers of magnitude at most 1. A state that is kept between calls holds each
of its complex numbers as two real ones, so that it can be stored and exported anywhere.

Source: Blelloch, "Prefix sums and their applications", 1990. The gradient is the same recurrence in
reverse (Martin & Cundy, arXiv 1709.04057).
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def linear_scan(decay: Tensor, values: Tensor) -> Tensor:
    """Return the states of a linear recurrence that begins with zero.

    Args:
        decay: ``[B, L, D]`` in [0, 1], or complex numbers of such a magnitude; the decay of the
            first timestep has no effect.
        values: ``[B, L, D]``, of the same dtype.

    Returns:
        ``[B, L, D]``.

    >>> decay = torch.tensor([0.5, 0.5, 0.0, 1.0]).view(1, 4, 1)
    >>> linear_scan(decay, torch.ones(1, 4, 1)).flatten()
    tensor([1.0000, 1.5000, 1.0000, 2.0000])
    """
    states: Tensor = _LinearScan.apply(decay, values)
    return states


def complex_scan(decay: Tensor, values: Tensor, is_init: Tensor) -> Tensor:
    """Return the states of a recurrence with constant complex decays, which begins at every start.

    Args:
        decay: ``[D, 2]``, real and imaginary parts; of a magnitude in [0, 1].
        values: ``[B, L, D, 2]``, real and imaginary parts.
        is_init: ``[B, L]`` bool, starts.

    Returns:
        ``[B, L, D, 2]``.

    >>> quarter_turn = torch.tensor([[0.0, 1.0]])
    >>> values = torch.tensor([1.0, 0.0]).expand(1, 3, 1, 2)
    >>> complex_scan(quarter_turn, values, torch.tensor([[True, False, False]]))[0, :, 0].tolist()
    [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
    """
    keep = (~is_init).unsqueeze(-1)  # [B, L, 1]
    decays = torch.view_as_complex(decay) * keep
    states = linear_scan(decays, torch.view_as_complex(values.contiguous()))
    return torch.view_as_real(states)


def complex_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply complex numbers that are given as real and imaginary parts, ``[*, 2]`` each.

    Real operations only, which every format of exported functions has.
    """
    a_real, a_imaginary = a.unbind(-1)
    b_real, b_imaginary = b.unbind(-1)
    real = a_real * b_real - a_imaginary * b_imaginary
    imaginary = a_real * b_imaginary + a_imaginary * b_real
    return torch.stack((real, imaginary), -1)


def polar(magnitude: Tensor, angle: Tensor) -> Tensor:
    """Return real and imaginary parts, ``[*, 2]``, of complex numbers; ``angle`` in radians."""
    return torch.stack((magnitude * angle.cos(), magnitude * angle.sin()), -1)


class _LinearScan(torch.autograd.Function):
    """`linear_scan` for autograd."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, values: Tensor) -> Tensor:
        states = _scan(decay, values)
        ctx.save_for_backward(decay, states)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_states: Tensor) -> tuple[Tensor, Tensor]:
        decay, states = ctx.saved_tensors
        # dL/dvalues[t] = grad_states[t] + decay[t + 1] * dL/dvalues[t + 1]. In reverse time, the
        # decay of the timestep after is that of the timestep before: roll by one. Gradients by
        # complex numbers are conjugated; real numbers are their own conjugates.
        decay_after = decay.conj().resolve_conj().flip(1).roll(1, 1)
        reversed_values = _scan(decay_after, grad_states.flip(1))
        grad_values = reversed_values.flip(1)
        grad_decay = torch.zeros_like(decay)
        grad_decay[:, 1:] = grad_values[:, 1:] * states[:, :-1].conj()
        return grad_decay, grad_values


def _scan(decay: Tensor, values: Tensor) -> Tensor:
    """Compute the states ``[B, L, D]``."""
    length = values.shape[1]
    size = math.isqrt(length)  # timesteps of a chunk
    num_chunks = length // size
    whole = num_chunks * size  # timesteps in chunks

    # Contiguous copies: `chunks` and `kept` are views of them, and are changed in place.
    states = values.clone(memory_format=torch.contiguous_format)
    chunks = states[:, :whole].unflatten(1, (num_chunks, size))  # [B, chunks, size, D]
    kept = decay[:, :whole].clone(memory_format=torch.contiguous_format)
    kept = kept.unflatten(1, (num_chunks, size))

    # 1. All chunks from zero. `kept` becomes the share of a chunk's initial state that is left.
    for t in range(1, size):
        before = chunks[:, :, t - 1]
        chunks[:, :, t].addcmul_(kept[:, :, t], before)
        kept[:, :, t].mul_(kept[:, :, t - 1])
    # 2. One chunk after the other, the final state of the chunk before.
    for k in range(1, num_chunks):
        final = chunks[:, k - 1, -1:]  # [B, 1, D]
        chunks[:, k].addcmul_(kept[:, k], final)
    # 3. The timesteps that fill no chunk.
    for t in range(whole, length):
        before = states[:, t - 1]
        states[:, t].addcmul_(decay[:, t], before)
    return states
