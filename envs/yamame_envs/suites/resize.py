"""Resizing of pictures by area: every new pixel is the mean of the old area that it covers.

The arithmetic is exact. Both sides are cut into as many equal blocks as their sizes allow (210 ->
84 rows are 42 times 5 -> 2), the overlap of an old and a new pixel is a small integer in such a
block, and the sums of overlap times brightness stay far below 2^24, where float32 still holds every
integer. So two small matrix products suffice, and halves are rounded up wherever it runs.

>>> AreaResize((2, 4), (1, 2))(np.array([[0, 4, 9, 9], [8, 8, 9, 9]], dtype=np.uint8))
array([[[5, 9]]], dtype=uint8)
"""

from math import gcd

import numpy as np
import numpy.typing as npt


def _overlaps(old: int, new: int) -> npt.NDArray[np.float32]:
    """Return the overlap ``[new, old]`` of new and old pixels; a row sums to ``old``."""
    starts, ends = np.arange(new)[:, None] * old, (np.arange(new)[:, None] + 1) * old
    left, right = np.arange(old) * new, (np.arange(old) + 1) * new
    return np.clip(np.minimum(ends, right) - np.maximum(starts, left), 0, None).astype(np.float32)


class AreaResize:
    """Function that resizes pictures of one size to another.

    Args:
        old: Height and width of the given pictures.
        new: Height and width of the returned pictures.

    Raises:
        ValueError: The sums would not be exact.
    """

    def __init__(self, old: tuple[int, int], new: tuple[int, int]) -> None:
        self._new = new
        self._blocks = (gcd(old[0], new[0]), gcd(old[1], new[1]))
        self._rows = _overlaps(old[0] // self._blocks[0], new[0] // self._blocks[0])
        self._columns = _overlaps(old[1] // self._blocks[1], new[1] // self._blocks[1]).T.copy()
        self._area = self._rows.shape[1] * self._columns.shape[0]
        if 255 * self._area >= 2**24:
            raise ValueError(f"AreaResize: old must share larger divisors with {new}, got {old}")

    def __call__(self, picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Resize ``[H, W, C]`` or ``[H, W]`` (C = 1) uint8 to ``[C, H', W']`` uint8."""
        height, width = picture.shape[:2]
        blocks = picture.reshape(self._blocks[0], height // self._blocks[0], -1).astype(np.float32)
        rows = (self._rows @ blocks).reshape(self._new[0], width, -1).transpose(2, 0, 1)
        sums = rows.reshape(-1, self._columns.shape[0]) @ self._columns
        means = (2 * sums.astype(np.int32) + self._area) // (2 * self._area)
        return means.astype(np.uint8).reshape(-1, *self._new)
