"""Limits on the memory that data sets ask for."""

from collections.abc import Hashable

from yamame.checks import UsageError

_ALWAYS_READ = 2**30
"""Bytes that are read whatever they take on the disk."""
_MOST_PER_STORED = 100
"""Bytes of arrays per byte on the disk, beyond that."""
_GIB = 2**30


class Sizes:
    """Sums of the sizes of arrays in memory and on the disk.

    A file of some megabytes can hold arrays of any size: compressed zeros, parts of a sparse file,
    or an array whose shape was declared without any numbers. Ordinary data take at most a small
    multiple of the size of their files.

    >>> sizes = Sizes()
    >>> sizes.add("a.npz", 2**20, 2**10)
    >>> sizes.add("b.npz", 2**33, 2**21)
    Traceback (most recent call last):
    yamame.checks.UsageError: b.npz: arrays of 8.0 GiB must not be stored in 2098176 bytes; store \
them without compression, as np.savez does
    """

    def __init__(self) -> None:
        self._read = 0
        self._stored = 0
        self._known: set[Hashable] = set()

    def add(self, name: str, read: int, stored: int, *, identity: Hashable = None) -> None:
        """Count an array, or the arrays of a file, before they are read.

        Args:
            name: Name of the file in messages.
            read: Bytes of the arrays in memory.
            stored: Bytes on the disk.
            identity: What is equal for two names (hard links) of the same bytes; they take the disk
                once. None if there is one name.

        Raises:
            UsageError: All arrays together ask for far more memory than they take on the disk.
        """
        self._read += read
        if identity is None or identity not in self._known:
            self._stored += stored
        if identity is not None:
            self._known.add(identity)
        if self._read > max(_ALWAYS_READ, _MOST_PER_STORED * self._stored):
            raise UsageError(
                f"{name}: arrays of {self._read / _GIB:.1f} GiB must not be stored in "
                f"{self._stored} bytes",
                remedy="store them without compression, as np.savez does",
            )
