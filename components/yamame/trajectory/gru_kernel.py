"""Gated recurrent units over whole sequences, compiled into one function: ``gru_kernel.c``.

A library makes ten operations of every timestep, each of which takes longer to begin than to compute where units and
sequences are few. One function does the same work at the speed of large products.
"""

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from yamame.native import compile_c, require_acting_dtype


@functools.cache
def gru_kernel(size: int, setting: str = "GRUEncoder: compiled") -> ctypes.CDLL:
    """The functions for layers of ``size`` units, compiled when they are first asked for.

    Args:
        size: H.
        setting: What asks for them, for the message of an error.

    Raises:
        ValueError: If they cannot be compiled.
    """
    kernel = compile_c(__file__, setting=setting, size=size)
    counts = ctypes.c_int64, ctypes.c_int64, ctypes.c_int32
    kernel.forward.argtypes = [*[ctypes.c_void_p] * 5, *counts]
    kernel.backward.argtypes = [*[ctypes.c_void_p] * 6, *counts]
    kernel.cell.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int32]
    kernel.forward.restype = kernel.backward.restype = kernel.cell.restype = None
    return kernel


def gru_layer(
    x: Tensor, input_weight: Tensor, state_weight: Tensor, input_bias: Tensor, state_bias: Tensor
) -> Tensor:
    """What one layer of `torch.nn.GRU` computes from a state of zeros; what follows the input's product in float32.

    Args:
        x: ``[B, L, E]``.
        input_weight: ``[3H, E]``, and the rest as in `torch.nn.GRU`.
        state_weight: ``[3H, H]``.
        input_bias: ``[3H]``.
        state_bias: ``[3H]``.

    Returns:
        ``[B, L, H]`` float32.

    Raises:
        ValueError: If parameters are not in float32 on a CPU.
    """
    if state_weight.dtype is not torch.float32 or not state_weight.is_cpu:
        where = f"{state_weight.dtype} on {state_weight.device}"
        raise ValueError(
            f"GRUEncoder: compiled must be false unless parameters are in float32 on a CPU, got {where}"
        )
    of_input = F.linear(x, input_weight, input_bias).float()
    found: Tensor = _Recurrence.apply(of_input, state_weight, state_bias)
    return found


class GRUCell:
    """What follows the products of one timestep; a library makes ten operations of it.

    Args:
        size: Number of units H.
        dtype: Of the products: float32 or bfloat16.

    Raises:
        ValueError: If it cannot be compiled, or ``dtype`` is another.
    """

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        require_acting_dtype(dtype)
        self._cell = gru_kernel(size, "compile_policy").cell
        self._half = dtype is torch.bfloat16

    def __call__(self, of_input: Tensor, of_state: Tensor, state: Tensor) -> Tensor:
        """``[n, 3H]``, ``[n, 3H]``, ``[n, H]`` float32 -> the next ``state``, in its place.

        All are contiguous; the order of gates is that of `torch.nn.GRU`.
        """
        pointers = of_input.data_ptr(), of_state.data_ptr(), state.data_ptr()
        self._cell(*pointers, len(state), self._half)
        return state


class _Recurrence(torch.autograd.Function):
    """``[B, L, 3H]``, ``[3H, H]``, ``[3H]`` -> ``[B, L, H]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        batch, length, size = *x.shape[:2], weight.shape[1]
        x, turned, bias = x.contiguous(), weight.t().contiguous(), bias.contiguous()
        h = x.new_empty(batch, length, size)
        saved = x.new_empty(batch, length, 4, size) if any(ctx.needs_input_grad) else None
        gru_kernel(size).forward(
            *(x.data_ptr(), turned.data_ptr(), bias.data_ptr(), h.data_ptr()),
            *(None if saved is None else saved.data_ptr(), batch, length, torch.get_num_threads()),
        )
        ctx.save_for_backward(h, saved, weight)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, saved, weight = ctx.saved_tensors
        grad, weight = grad.contiguous(), weight.contiguous()
        batch, length, size = h.shape
        to_x, to_n = h.new_empty(batch, length, 3 * size), torch.empty_like(h)
        gru_kernel(size).backward(
            *(grad.data_ptr(), h.data_ptr(), saved.data_ptr(), weight.data_ptr(), to_x.data_ptr()),
            *(to_n.data_ptr(), batch, length, torch.get_num_threads()),
        )
        # The first timestep's state is zero: it adds to the biases' gradients alone.
        before = F.pad(h[:, :-1], (0, 0, 1, 0)).flatten(0, 1)
        parts = to_x.flatten(0, 1)[:, : 2 * size], to_n.flatten(0, 1)
        to_weight = torch.cat([part.t() @ before for part in parts])
        return to_x, to_weight, torch.cat([part.sum(0) for part in parts])
