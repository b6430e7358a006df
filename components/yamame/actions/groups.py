"""Several categorical choices side by side in one vector, and the same choices one per row.

Flat form: `[*, sum(sizes)]`, the groups one after the other. Padded form: `[*, num_groups, max(sizes)]`,
each group filled up on the right. Going to the padded form and back is the identity.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from yamame.actions.constant import Constant


class Groups:
    """The layout of concatenated groups of the given sizes.

    Args:
        sizes: number of entries of each group, all positive.

    Raises:
        ValueError: if there is no group or a group is empty.

    >>> groups = Groups([2, 3])
    >>> groups.pad(torch.tensor([1, 2, 3, 4, 5]), fill=0)
    tensor([[1, 2, 0],
            [3, 4, 5]])
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"Groups: sizes must be positive and at least one, got {self.sizes}")
        self.num_groups, self.width, self.total = len(self.sizes), max(self.sizes), sum(self.sizes)
        self.even = min(self.sizes) == self.width
        sizes_M = torch.tensor(self.sizes)
        offsets_M = sizes_M.cumsum(0) - sizes_M
        column_MW = torch.arange(self.width).expand(self.num_groups, -1)
        valid_MW = column_MW < sizes_M.unsqueeze(-1)
        # Where each padded entry is read from; column `total` holds the fill value.
        source_MW = torch.where(valid_MW, column_MW + offsets_M.unsqueeze(-1), self.total)
        self.offsets, self.valid = Constant(offsets_M), Constant(valid_MW)
        self._source = Constant(source_MW.flatten())
        self._kept = Constant(valid_MW.flatten().nonzero().squeeze(-1))

    def pad(self, flat: Tensor, fill: float) -> Tensor:
        """`[*, sum(sizes)]` to `[*, num_groups, max(sizes)]`, the missing entries being `fill`."""
        if self.even:
            return flat.unflatten(-1, (self.num_groups, self.width))
        padded = F.pad(flat, (0, 1), value=fill).index_select(-1, self._source.on(flat.device))
        return padded.unflatten(-1, (self.num_groups, self.width))

    def unpad(self, padded: Tensor) -> Tensor:
        """`[*, num_groups, max(sizes)]` to `[*, sum(sizes)]`."""
        flat = padded.flatten(-2)
        return flat if self.even else flat.index_select(-1, self._kept.on(flat.device))
