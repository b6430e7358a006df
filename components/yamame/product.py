"""Products with matrices that stay the same for many steps."""

import torch
from torch import Tensor


class Product:
    """``x -> x weight + bias`` in a dtype.

    On a CPU that multiplies bfloat16 itself, the weight is laid out once as the library reads it, which else does so in
    every call: with few rows that takes as long as the product. The same numbers.

    Args:
        weight: ``[in, out]``.
        bias: ``[out]``, if any.
        dtype: Of the product, and of what it is given.

    >>> Product(torch.ones(2, 3), None, torch.float32)(torch.ones(1, 2))
    tensor([[2., 2., 2.]])
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.dtype, self.device, (self.in_features, _) = dtype, weight.device, weight.shape
        self._bias = None if bias is None else bias.detach().to(dtype)
        self._weight = weight.detach().to(dtype)
        self._laid_out = weight.is_cpu and dtype is torch.bfloat16 and _multiplies_bfloat16()
        if self._laid_out:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(self._weight.t().contiguous())

    def __call__(self, x: Tensor) -> Tensor:
        """``[N, in] -> [N, out]``."""
        if self._laid_out:
            found: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return found
        return x @ self._weight if self._bias is None else torch.addmm(self._bias, x, self._weight)


def _multiplies_bfloat16() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
