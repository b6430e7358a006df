"""Products with matrices that stay the same for many steps."""

import ctypes
import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from yamame.native import compile_c

_LANES = 16  # columns of a panel
_FEW_ROWS = 64


class Product:
    """``x -> x weight + bias`` in a dtype.

    On a CPU that multiplies bfloat16 itself, the weight is laid out once as the library reads it, which else does so in
    every call: with few rows that takes as long as the product. The same numbers.

    Args:
        weight: ``[in, out]``.
        bias: ``[out]``, if any.
        dtype: Of the product, and of what it is given.
        compiled: Multiply few rows in bfloat16 by a function in C, ``product.c``, where the processor has the
            instruction for it (AVX512_BF16): the library takes as long to begin. Changes the last bits.

    Raises:
        ValueError: If something is to be compiled and cannot be.

    >>> Product(torch.ones(2, 3), None, torch.float32)(torch.ones(1, 2))
    tensor([[2., 2., 2.]])
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, *, compiled: bool = False
    ) -> None:
        self.dtype, self.device, (self.in_features, _) = dtype, weight.device, weight.shape
        self._bias = None if bias is None else bias.detach().to(dtype)
        self._weight = weight.detach().to(dtype)
        half = weight.is_cpu and dtype is torch.bfloat16
        self._few = _FewRows.of(self._weight, self._bias) if half and compiled else None
        self._laid_out = half and _multiplies_bfloat16()
        if self._laid_out:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(self._weight.t().contiguous())

    def __call__(self, x: Tensor) -> Tensor:
        """``[N, in] -> [N, out]``."""
        if self._few is not None and len(x) <= _FEW_ROWS:
            return self._few(x)
        if self._laid_out:
            found: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return found
        return x @ self._weight if self._bias is None else torch.addmm(self._bias, x, self._weight)


class _FewRows:
    """The function in C on one weight ``[in, out]`` and bias ``[out]`` in bfloat16; ``in`` is even."""

    def __init__(self, multiply: Callable[..., None], weight: Tensor, bias: Tensor | None) -> None:
        self._multiply, (inner, self._outer) = multiply, weight.shape
        filled = F.pad(weight, (0, -self._outer % _LANES)).view(inner // 2, 2, -1, _LANES)
        self._panels = filled.permute(2, 0, 3, 1).contiguous()
        self._bias = torch.zeros(filled.shape[2] * _LANES)
        if bias is not None:
            self._bias[: self._outer] = bias

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> "_FewRows | None":
        """None where the processor lacks the instruction, or rows of ``weight`` do not come in pairs."""
        multiply = _compiled()
        return None if multiply is None or len(weight) % 2 else cls(multiply, weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        x = x if x.stride(1) == 1 else x.contiguous()
        rows, inner = x.shape
        found = x.new_empty(rows, self._outer)
        self._multiply(
            *(x.data_ptr(), x.stride(0), self._panels.data_ptr(), self._bias.data_ptr(), found.data_ptr()),
            *(rows, inner, self._outer, torch.get_num_threads()),
        )
        return found


@functools.cache
def _compiled() -> Callable[..., None] | None:
    functions = compile_c(__file__, setting="compile_policy")
    if not ctypes.c_int32.in_dll(functions, "available").value:
        return None
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    functions.multiply.argtypes = [
        *(pointer, integer, pointer, pointer, pointer),
        *(integer, integer, integer, ctypes.c_int32),
    ]
    functions.multiply.restype = None
    multiply: Callable[..., None] = functions.multiply
    return multiply


def _multiplies_bfloat16() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
