"""Where a timestep lies in its rollout, as numbers a network can use.

`Sinusoids` are added to the features or rotate queries and keys (`rotate`); `torch.nn.Embedding` is the
learnt alternative. All are functions of ``step_index``, never of the place in a sequence, so a window cut
anywhere out of a rollout is read as acting read it.
"""

import torch
from torch import Tensor, nn

from yamame.capturing import capturing

_BASE = 10_000.0
_LARGEST_TABLE = 16_384
_SMALLEST_TABLE = 256


class Sinusoids(nn.Module):
    """Interleaved sines and cosines of ``step_index / 10000^(2 i / size)`` (arXiv 1706.03762).

    int64 ``[*] -> [*, size]`` float32. Any index is allowed: small ones are read from a table that grows,
    larger ones computed. Angles are float64, so that they are still exact at a million steps.

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
        if size < 2 or size % 2:
            raise ValueError(f"Sinusoids: size must be even and positive, got {size}")
        self.size = size
        self._table = torch.empty(0, size)

    def forward(self, step_index: Tensor) -> Tensor:
        """int64 ``[*] -> [*, size]``."""
        if capturing():
            return _sinusoids(step_index, self.size)
        needed = int(step_index.max()) + 1
        if needed > _LARGEST_TABLE:
            return _sinusoids(step_index, self.size)
        if needed > self._table.shape[0] or self._table.device != step_index.device:
            with torch.inference_mode(False):
                rows = max(_SMALLEST_TABLE, 1 << (needed - 1).bit_length())
                self._table = _sinusoids(torch.arange(rows, device=step_index.device), self.size)
        return self._table[step_index]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_table": torch.empty(0, self.size)}


def rotate(x: Tensor, sinusoids: Tensor) -> Tensor:
    """Turns each pair ``(x[i], x[i + d/2])`` by the angle whose sine and cosine are given (arXiv 2104.09864).

    Args:
        x: ``[*, d]``, queries or keys of one head.
        sinusoids: ``[*, d]`` from `Sinusoids`; leading dimensions broadcast.
    """
    sin, cos = sinusoids.to(x.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _sinusoids(step_index: Tensor, size: int) -> Tensor:
    power = torch.arange(0, size, 2, device=step_index.device, dtype=torch.float64) / size
    angle = step_index.to(torch.float64).unsqueeze(-1) * _BASE**-power
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2).to(torch.float32)
