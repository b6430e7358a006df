"""Index of the trajectories held by a store."""

from collections.abc import Iterable
from itertools import chain

import numpy as np

SEGMENT, START, LENGTH, CHECKSUM = range(4)
"""Columns of the index: number of the segment, first timestep there, timesteps, CRC-32."""
NUM_COLUMNS = 4


def index_rows(
    segment: int, *, first_timestep: int, lengths: np.ndarray, checksums: np.ndarray
) -> np.ndarray:
    """Make rows for trajectories that follow each other in a segment.

    Args:
        segment: Number of the segment.
        first_timestep: Position of the first trajectory there, in timesteps.
        lengths: Timesteps of each trajectory ``[n]``.
        checksums: CRC-32 of each trajectory ``[n]``.

    Returns:
        Rows ``[n, 4]`` int64.

    >>> index_rows(7, first_timestep=5, lengths=np.array([2, 3]), checksums=np.array([8, 9]))
    array([[7, 5, 2, 8],
           [7, 7, 3, 9]])
    """
    rows = np.empty((len(lengths), NUM_COLUMNS), np.int64)
    rows[:, SEGMENT] = segment
    rows[:, START] = first_timestep + lengths.cumsum() - lengths
    rows[:, LENGTH] = lengths
    rows[:, CHECKSUM] = checksums
    return rows


class TrajectoryIndex:
    """Rows of the trajectories held, oldest first.

    Appending and evicting take time in proportion to the trajectories that come and go, not to
    those held (amortized).

    Args:
        rows: ``[n, 4]`` int64, see `index_rows`.

    Attributes:
        num_timesteps: Timesteps of all trajectories held.

    >>> lengths = np.array([2, 3])
    >>> rows = index_rows(0, first_timestep=0, lengths=lengths, checksums=lengths)
    >>> index = TrajectoryIndex(rows)
    >>> index.append(index_rows(1, first_timestep=0, lengths=lengths, checksums=lengths))
    >>> index.evict(index.count_excess([], capacity=6))
    >>> index.rows[:, LENGTH], index.num_timesteps
    (array([2, 3]), 5)
    """

    def __init__(self, rows: np.ndarray) -> None:
        # Rows before `_first` were evicted, rows from `_end` on are free.
        self._buffer = rows
        self._first = 0
        self._end = len(rows)
        self.num_timesteps = int(rows[:, LENGTH].sum())

    @property
    def rows(self) -> np.ndarray:
        """Rows ``[n, 4]`` of the trajectories held; a view."""
        return self._buffer[self._first : self._end]

    def __len__(self) -> int:
        return self._end - self._first

    def append(self, rows: np.ndarray) -> None:
        """Append rows of new trajectories."""
        if self._end + len(rows) > len(self._buffer):
            # Twice the size that is needed: on average, each row is moved at most once.
            held = self.rows
            num_held = len(held)
            self._buffer = np.empty((2 * (num_held + len(rows)), NUM_COLUMNS), np.int64)
            self._buffer[:num_held] = held
            self._first = 0
            self._end = num_held

        self._buffer[self._end : self._end + len(rows)] = rows
        self._end += len(rows)
        self.num_timesteps += int(rows[:, LENGTH].sum())

    def evict(self, count: int) -> None:
        """Remove the oldest trajectories."""
        self.num_timesteps -= int(self.rows[:count, LENGTH].sum())
        self._first += count

    def count_excess(self, new_lengths: Iterable[int], *, capacity: int) -> int:
        """Count the oldest trajectories to evict when new ones are appended.

        Args:
            new_lengths: Timesteps of the new trajectories, which may have to leave again.
            capacity: Largest number of timesteps held.
        """
        new_lengths = list(new_lengths)
        excess = self.num_timesteps + sum(new_lengths) - capacity
        count = 0
        for length in chain(self.rows[:, LENGTH], new_lengths):
            if excess <= 0:
                break
            excess -= int(length)
            count += 1
        return count
