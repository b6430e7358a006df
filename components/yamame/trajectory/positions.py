"""Where a timestep lies in its episode, as numbers a network can use.

`Sinusoids` are added to the features or rotate queries and keys (`rotate`). They are functions of
``step_index``, never of the place in a sequence, so a window cut anywhere out of an episode is read
as acting read it.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from yamame.checks import require
from yamame.execution.capturing import Constant, capturing

_BASE = 10_000.0
_ROWS = 4096


class Sinusoids(nn.Module):
    """Interleaved sines and cosines of ``step_index / 10000^(2 i / size)`` (arXiv 1706.03762).

    int64 ``[*] -> [*, size]`` float32. They come from float32 tables that are computed once in
    float64, so that no device has to compute in float64: one of the indices below 4096, and one of
    multiples of 4096. A larger index is a sum of two, and its sine and cosine follow from theirs.
    On a CPU any index is allowed, also a negative one; elsewhere, and where it is captured, those
    from 0 up to 4096^2 - 1 (16.8 million). Others are refused there.

    Args:
        size: Number of values per index, even.

    Raises:
        ValueError: If ``size`` is odd or not positive.

    >>> Sinusoids(2)(torch.tensor([0, 1]))
    tensor([[0.0000, 1.0000],
            [0.8415, 0.5403]])
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        require("Sinusoids", "size", size, size >= 2 and size % 2 == 0, "be even and positive")
        self.size = size
        self._tables = _tables(size)

    def forward(self, step_index: Tensor) -> Tensor:
        """int64 ``[*] -> [*, size]``."""
        low, high = (table.on(step_index.device) for table in self._tables)
        if not capturing() and step_index.is_cpu:
            is_in_table = bool(((step_index >= 0) & (step_index < _ROWS)).all())
            return low[step_index] if is_in_table else _sinusoids(step_index, self.size)
        sin, cos = low[step_index % _ROWS].unflatten(-1, (-1, 2)).unbind(-1)
        # An embedding refuses a negative row; indexing would take it for one counted from the end.
        by_sin, by_cos = F.embedding(step_index // _ROWS, high).unflatten(-1, (-1, 2)).unbind(-1)
        # Of the sum of two angles; exactly the first table where the second angle is 0.
        sin, cos = (
            torch.addcmul(sin * by_cos, cos, by_sin),
            torch.addcmul(cos * by_cos, sin, by_sin, value=-1),
        )
        return torch.stack((sin, cos), -1).flatten(-2)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_tables": _tables(state["size"])})


def _sinusoids(index: Tensor, size: int) -> Tensor:
    """The formula, in float64: an angle is exact at any index that there may be."""
    frequency = _BASE ** -(
        torch.arange(0, size, 2, device=index.device, dtype=torch.float64) / size
    )
    angle = index.to(torch.float64).unsqueeze(-1) * frequency
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2).to(torch.float32)


@cache
def _tables(size: int) -> tuple[Constant, Constant]:
    """Sines and cosines ``[4096, size]`` of indices and of multiples of 4096.

    All networks of a process share them. They are no buffers, which would be copied and sent along
    with the weights.
    """
    with torch.inference_mode(False):
        index = torch.arange(_ROWS, device="cpu")
        return Constant(_sinusoids(index, size)), Constant(_sinusoids(_ROWS * index, size))


def rotate(x: Tensor, sinusoids: Tensor) -> Tensor:
    """Turns each pair ``(x[i], x[i + d/2])`` by the angle whose sine and cosine are given (arXiv
    2104.09864).

    Args:
        x: ``[*, d]``, queries or keys of one head.
        sinusoids: ``[*, d]`` from `Sinusoids`; leading dimensions broadcast.
    """
    sin, cos = sinusoids.to(x.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
