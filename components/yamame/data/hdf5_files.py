"""Reading of HDF5 files, without following what leads to other files.

An HDF5 file can name other files in three ways: external links, external storage of an array, and
virtual arrays. Each would read any file of the user, so none of them is followed.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from yamame.checks import UsageError, require
from yamame.data.sizes import Sizes
from yamame.files.paths import check_regular, typed_file
from yamame.spaces.arrays import Array
from yamame.system.messages import one_line

_DEEPEST = 32


class StoredArray:
    """Array of an HDF5 file, read when it is used.

    Args:
        dataset: The array in the open file.
        name: Name of file and array in messages.
        sizes: Sum of the sizes of what is read.

    Attributes:
        shape: Shape of the array.
        dtype: Dtype of the array.
    """

    def __init__(self, dataset: Any, name: str, sizes: Sizes) -> None:
        self.shape: tuple[int, ...] = dataset.shape
        self.dtype: np.dtype[Any] = dataset.dtype
        self._dataset = dataset
        self._name = name
        self._sizes: Sizes | None = sizes

    def count(self) -> None:
        """Add the size of the array, once."""
        if self._sizes is not None:
            read = math.prod(self.shape) * self.dtype.itemsize
            stored = self._dataset.id.get_storage_size()
            # The name of the file as well: it is opened again for each of several.
            identity = (self._dataset.file.filename, hash(self._dataset.id))
            self._sizes.add(self._name, read, stored, identity=identity)
            self._sizes = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        self.count()
        array: Array = self._dataset[()]
        return array if dtype is None else array.astype(dtype)


@contextmanager
def opened(path: Path, h5py: Any, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Open a file, and yield its arrays in nested mappings; they can be read within the block.

    Args:
        path: A regular file, or a link to one in its folder.
        h5py: The module.
        sizes: Sum of the sizes of what is read.

    Raises:
        UsageError: The path is a link out of its folder, a pipe or a device; the file is damaged,
            or names other files.
    """
    try:
        resolved = typed_file(path)
        check_regular(resolved)
        file = h5py.File(resolved, "r")
    except OSError as error:
        raise UsageError(
            f"{path}: must be an HDF5 file, it cannot be read: {one_line(error)}"
        ) from error
    with file:
        yield _Reader(h5py, str(path), sizes).read(file)


class _Reader:
    """Walk through the groups of a file.

    Args:
        h5py: The module.
        name: Name of the file in messages.
        sizes: Sum of the sizes of what is read.
    """

    def __init__(self, h5py: Any, name: str, sizes: Sizes) -> None:
        self._h5py = h5py
        self._name = name
        self._sizes = sizes
        # Hard links can make a group a part of itself.
        self._seen: set[int] = set()

    def read(self, group: Any, place: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return the groups and arrays of a group.

        Raises:
            UsageError: An entry is a link, or its numbers are in another file.
        """
        require(self._name, "depth of groups", len(place), len(place) < _DEEPEST, "be at most 32")
        identity = hash(group.id)
        path = "/".join(place)
        is_new = identity not in self._seen
        require(self._name, f"group {path!r}", "another name", is_new, "have one name")
        self._seen.add(identity)

        tree: dict[str, Any] = {}
        for key in group:
            here = (*place, key)
            label = f"entry {'/'.join(here)!r}"
            link = group.get(key, getlink=True)
            is_hard = isinstance(link, self._h5py.HardLink)
            target = getattr(link, "filename", getattr(link, "path", None))
            remedy = "copy its target"
            condition = "be an array or a group, not a link"
            require(self._name, label, f"a link to {target}", is_hard, condition, remedy=remedy)

            value = group[key]
            if isinstance(value, self._h5py.Group):
                tree[key] = self.read(value, here)
            elif isinstance(value, self._h5py.Dataset) and value.shape is not None:
                self._check_storage(value, label)
                tree[key] = StoredArray(value, f"{self._name}: {'/'.join(here)}", self._sizes)
            else:
                # A type with a name, or an array without a shape, holds no numbers.
                tree[key] = None
        return tree

    def _check_storage(self, dataset: Any, label: str) -> None:
        """Raise for an array whose numbers are in other files."""
        condition = "be stored in this file"
        remedy = "copy the numbers into it"
        for is_elsewhere, found in (
            (bool(dataset.external), "external storage"),
            (dataset.is_virtual, "a virtual dataset"),
        ):
            require(self._name, label, found, not is_elsewhere, condition, remedy=remedy)


def count_all(tree: Mapping[str, Any]) -> None:
    """Add the sizes of all arrays of a file, where a library reads it as a whole."""
    for value in tree.values():
        if isinstance(value, Mapping):
            count_all(value)
        elif isinstance(value, StoredArray):
            value.count()
