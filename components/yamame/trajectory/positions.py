"""Where a timestep lies in its episode, as numbers a network can use.

`Sinusoids` are added to the features or rotate queries and keys (`rotate`). They are functions of ``step_index``, never
of the place in a sequence, so a window cut anywhere out of an episode is read as acting read it.
"""

import torch
from torch import Tensor, nn

from yamame.checks import require

_BASE = 10_000.0


class Sinusoids(nn.Module):
    """Interleaved sines and cosines of ``step_index / 10000^(2 i / size)`` (arXiv 1706.03762).

    int64 ``[*] -> [*, size]`` float32. Any index is allowed: angles are float64, exact at a million steps.

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

    def forward(self, step_index: Tensor) -> Tensor:
        """int64 ``[*] -> [*, size]``."""
        power = torch.arange(0, self.size, 2, device=step_index.device, dtype=torch.float64) / self.size
        angle = step_index.to(torch.float64).unsqueeze(-1) * _BASE**-power
        return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2).to(torch.float32)


def rotate(x: Tensor, sinusoids: Tensor) -> Tensor:
    """Turns each pair ``(x[i], x[i + d/2])`` by the angle whose sine and cosine are given (arXiv 2104.09864).

    Args:
        x: ``[*, d]``, queries or keys of one head.
        sinusoids: ``[*, d]`` from `Sinusoids`; leading dimensions broadcast.
    """
    sin, cos = sinusoids.to(x.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
