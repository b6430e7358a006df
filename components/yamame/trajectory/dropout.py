"""Dropout whose masks are drawn by a function in C: ``dropout.c``.

On processors that are not Intel's, PyTorch draws the numbers of a mask one after the other, which takes longer than
to multiply by it many times over. The function draws the same numbers from the same generator and leaves it at the
same place, so whether it is there changes time alone.
"""

import ctypes
import functools
import math

import torch
from torch import Tensor, nn

from yamame.native import compile_c_if_possible

_INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
_FEWEST = 4096  # numbers of a mask from which on it is worth to fetch the generator's state
_RESOLUTION = 2.0**53


class Dropout(nn.Dropout):
    """What `torch.nn.Dropout` computes, to the last bit, in less time on a CPU.

    The function in C works where there is a C compiler, inputs are contiguous, large and in float32 or bfloat16, and
    PyTorch draws from its own generator; otherwise PyTorch's own does.

    >>> ones = torch.ones(100, 100)
    >>> torch.equal(Dropout(0.1).eval()(ones), ones)
    True
    """

    def forward(self, input: Tensor) -> Tensor:
        """``[*]`` -> ``[*]``."""
        if not self.training or self.inplace or not 0 < self.p < 1 or not _suits(input):
            return super().forward(input)
        kernel = bernoulli_kernel()
        return super().forward(input) if kernel is None else input * _mask(kernel, input, 1 - self.p)


@functools.cache
def bernoulli_kernel() -> ctypes.CDLL | None:
    """The function, compiled when it is first asked for; None if it cannot be, or draws otherwise than PyTorch."""
    kernel = compile_c_if_possible(__file__)
    if kernel is None:
        return None
    kernel.bernoulli.argtypes = [
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int32)
    ]
    kernel.bernoulli.restype = None
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        own = _mask(kernel, torch.empty(1000), 0.75)
        own_state = torch.default_generator.get_state()
        torch.default_generator.manual_seed(0)
        theirs = torch.empty(1000).bernoulli_(0.75).div_(0.75)
        same = torch.equal(own, theirs) and torch.equal(own_state, torch.default_generator.get_state())
    return kernel if same else None


def _suits(x: Tensor) -> bool:
    """Whether these are numbers in memory, and enough of them."""
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if traced or type(x) not in (Tensor, nn.Parameter) or not x.is_cpu:
        return False
    return x.dtype in _INTEGERS and x.numel() >= _FEWEST and x.is_contiguous()


def _mask(kernel: ctypes.CDLL, like: Tensor, share: float) -> Tensor:
    """``share`` of the numbers are its inverse, the others zero."""
    mask = torch.empty_like(like, requires_grad=False)
    inverse = torch.ones(1, dtype=like.dtype).div_(share).view(_INTEGERS[like.dtype])
    state = torch.default_generator.get_state()
    kernel.bernoulli(
        *(state.data_ptr(), mask.data_ptr(), mask.numel(), math.ceil(share * _RESOLUTION)),
        *(inverse.item(), mask.element_size()),
    )
    torch.default_generator.set_state(state)
    return mask
