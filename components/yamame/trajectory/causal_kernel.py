"""Causal attention over whole sequences, compiled into one function: ``causal_kernel.c``.

What lies ahead, before a start or beyond a window is not computed, and no mask is made. Memory is linear in the length.
"""

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from yamame.native import compile_c


@functools.cache
def causal_kernel(head_size: int) -> ctypes.CDLL:
    """The functions for heads of ``head_size``, compiled when they are first asked for.

    Raises:
        ValueError: If they cannot be compiled.
    """
    kernel = compile_c(__file__, setting="TransformerEncoder: compiled", size=head_size)
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    sizes = integer, integer, integer, ctypes.c_float, ctypes.c_int32
    kernel.forward.argtypes = [*[pointer] * 8, *sizes]
    kernel.backward.argtypes = [*[pointer] * 12, *sizes]
    kernel.forward.restype = kernel.backward.restype = None
    for space in (kernel.forward_space, kernel.backward_space):
        space.argtypes, space.restype = [integer], integer
    return kernel


def causal_attention(q: Tensor, k: Tensor, v: Tensor, oldest: Tensor) -> Tensor:
    """What each query finds at the keys from ``oldest`` to itself, in float32 whatever the precision of the rest.

    Args:
        q: ``[B, H, L, d]``.
        k: ``[B, H, L, d]``.
        v: ``[B, H, L, d]``.
        oldest: ``[B, L]`` integers, from zero to the query's own timestep, never falling along a sequence.

    Returns:
        ``[B, H, L, d]`` float32.

    Raises:
        ValueError: If they are not on a CPU, or in float64.
    """
    if not q.is_cpu or q.dtype is torch.float64:
        raise ValueError(
            f"TransformerEncoder: compiled must be false unless it computes in float32 or less on a CPU, got"
            f" {q.dtype} on {q.device}"
        )
    q, k, v = (value.float() if value.stride(-1) == 1 else value.float().contiguous() for value in (q, k, v))
    found: Tensor = _CausalAttention.apply(q, k, v, oldest.int().contiguous())
    return found.transpose(1, 2)


class _CausalAttention(torch.autograd.Function):
    """``[B, H, L, d]`` three times, ``[B, L]`` -> ``[B, L, H, d]``."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, oldest: Tensor) -> Tensor:
        batch, heads, length, size = q.shape
        kernel, workers = causal_kernel(size), torch.get_num_threads()
        out, normaliser = q.new_empty(batch, length, heads, size), q.new_empty(batch, heads, length)
        space = q.new_empty(workers * kernel.forward_space(length))
        kernel.forward(
            *(q.data_ptr(), k.data_ptr(), v.data_ptr(), _strides(q, k, v), oldest.data_ptr(), out.data_ptr()),
            *(normaliser.data_ptr(), space.data_ptr(), batch, length, heads, size**-0.5, workers),
        )
        ctx.save_for_backward(q, k, v, oldest, out, normaliser)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, oldest, out, normaliser = ctx.saved_tensors
        batch, heads, length, size = q.shape
        kernel, workers, grad = causal_kernel(size), torch.get_num_threads(), grad.contiguous()
        to = [torch.empty_like(out) for _ in range(3)]
        space = q.new_empty(workers * kernel.backward_space(length))
        kernel.backward(
            *(grad.data_ptr(), out.data_ptr(), normaliser.data_ptr()),
            *(q.data_ptr(), k.data_ptr(), v.data_ptr(), _strides(q, k, v), oldest.data_ptr()),
            *(*(value.data_ptr() for value in to), space.data_ptr()),
            *(batch, length, heads, size**-0.5, workers),
        )
        return *(value.transpose(1, 2) for value in to), None


def _strides(*values: Tensor) -> ctypes.Array:
    """Of sequences, timesteps and heads of every ``[B, H, L, d]``."""
    strides = [value.stride(dim) for value in values for dim in (0, 2, 1)]
    return (ctypes.c_int64 * len(strides))(*strides)
