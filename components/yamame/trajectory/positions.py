"""Positions of timesteps in their episode, as numbers that a network can use.

`Sinusoids` and `Float32Sinusoids` are added to the features or rotate queries and keys (`rotate`).
They are functions of ``step_index``, never of the place in a sequence, so a window cut anywhere out
of an episode is encoded as it was while acting.
"""

import math
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

    int64 ``[*] -> [*, size]`` float32. On a CPU any index is allowed, also a negative one. On other
    devices, and in captured code, indices from 0 up to 4096^2 - 1 (16.8 million) are allowed; any
    other raises.

    Args:
        size: Number of values per index, even.

    Raises:
        ArgumentError: ``size`` is odd or not positive.

    >>> Sinusoids(2)(torch.tensor([0, 1]))
    tensor([[0.0000, 1.0000],
            [0.8415, 0.5403]])
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        fits = size >= 2 and size % 2 == 0
        require("Sinusoids", "size", size, fits, "be even and positive")
        self.size = size
        self._tables = _tables(size)

    def forward(self, step_index: Tensor) -> Tensor:
        """Return the values of every index: int64 ``[*] -> [*, size]``."""
        low_table, high_table = self._tables
        low = low_table.on(step_index.device)  # [4096, size]
        high = high_table.on(step_index.device)
        if step_index.is_cpu and not capturing():
            # Nearly every index is in the table: the lookup itself finds one that is not.
            try:
                return F.embedding(step_index, low)
            except IndexError:
                return _sinusoids(step_index, self.size)

        # index = remainder + 4096 * quotient: the sines of both are in the tables.
        rest = low[step_index % _ROWS]
        # F.embedding raises for a negative row; indexing would count it from the end.
        far = F.embedding(step_index // _ROWS, high)
        rest_sin, rest_cos = _halves(rest)
        far_sin, far_cos = _halves(far)
        # Sine and cosine of a sum of angles; equal to the first table if the second angle is 0.
        sin = torch.addcmul(rest_sin * far_cos, rest_cos, far_sin)
        cos = torch.addcmul(rest_cos * far_cos, rest_sin, far_sin, value=-1)
        pairs = torch.stack((sin, cos), -1)
        return pairs.flatten(-2)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tables = _tables(state["size"])
        super().__setstate__({**state, "_tables": tables})


class Float32Sinusoids(nn.Module):
    """Interleaved sines and cosines of ``step_index * frequencies``, with the products in float32.

    int64 ``[*] -> [*, size]`` float32, for indices below 2^24. The angles are off by about 1e-7 of
    the index. Networks that were trained on such numbers, as AMAGO's, compute with them exactly
    what they learned.

    Args:
        size: Number of values per index, even.

    Attributes:
        frequencies: ``[size / 2]`` float32, part of the state: its last bit depends on the formula.

    Raises:
        ArgumentError: ``size`` is odd or not positive.

    >>> Float32Sinusoids(2)(torch.tensor([0, 1]))
    tensor([[0.0000, 1.0000],
            [0.8415, 0.5403]])
    """

    frequencies: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        fits = size >= 2 and size % 2 == 0
        require("Float32Sinusoids", "size", size, fits, "be even and positive")
        self.size = size
        even = torch.arange(0, size, 2, dtype=torch.float32)
        frequencies = torch.exp(even * -(math.log(_BASE) / size))
        self.register_buffer("frequencies", frequencies)

    def forward(self, step_index: Tensor) -> Tensor:
        """Return the values of every index: int64 ``[*] -> [*, size]``."""
        angle = step_index.float().unsqueeze(-1) * self.frequencies.float()  # [*, size / 2]
        pairs = torch.stack((angle.sin(), angle.cos()), -1)
        return pairs.flatten(-2)


def _halves(sinusoids: Tensor) -> tuple[Tensor, Tensor]:
    """Split interleaved values into sines and cosines: ``[*, d]`` -> two of ``[*, d / 2]``."""
    pairs = sinusoids.unflatten(-1, (-1, 2))
    return pairs[..., 0], pairs[..., 1]


def _sinusoids(index: Tensor, size: int) -> Tensor:
    """Compute the formula in float64, in which the angle of every int64 index in use is exact."""
    even = torch.arange(0, size, 2, device=index.device, dtype=torch.float64)
    frequency = _BASE ** -(even / size)
    index = index.to(torch.float64)
    angle = index.unsqueeze(-1) * frequency  # [*, size / 2]
    pairs = torch.stack((angle.sin(), angle.cos()), -1)
    return pairs.flatten(-2).to(torch.float32)


@cache
def _tables(size: int) -> tuple[Constant, Constant]:
    """Return the values ``[4096, size]`` of indices 0 to 4095, and of multiples of 4096.

    They are computed once in float64 on the CPU, so that no other device has to compute in float64.
    All networks of a process share them: buffers would be copied and sent along with the weights.
    """
    # Normal tensors even if the first call is under inference mode.
    with torch.inference_mode(False):
        index = torch.arange(_ROWS, device="cpu")
        low = _sinusoids(index, size)
        high = _sinusoids(_ROWS * index, size)
    return Constant(low), Constant(high)


def rotate(x: Tensor, sinusoids: Tensor) -> Tensor:
    """Rotate each pair ``(x[i], x[i + d/2])`` by the angle of its sinusoids (arXiv 2104.09864).

    Args:
        x: ``[*, d]``, queries or keys of one head.
        sinusoids: ``[*, d]`` from `Sinusoids`; leading dimensions broadcast.
    """
    sin, cos = _halves(sinusoids.to(x.dtype))
    first, second = x.chunk(2, -1)
    rotated_first = first * cos - second * sin
    rotated_second = second * cos + first * sin
    return torch.cat((rotated_first, rotated_second), -1)
