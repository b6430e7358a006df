"""Reading of ``.npz`` files, without running code that they may contain."""

import math
import zipfile
from pathlib import Path
from typing import Any

from numpy.lib import format as npy

from yamame.checks import UsageError
from yamame.data.sizes import Sizes
from yamame.files.paths import open_regular, typed_file
from yamame.spaces.arrays import Array
from yamame.system.messages import one_line

_SUFFIX = ".npy"


def read_npz(path: Path, sizes: Sizes) -> dict[str, Any]:
    """Read the arrays of a file.

    Args:
        path: A regular file, or a link to one in its folder.
        sizes: Sum of the sizes of what is read.

    Returns:
        Arrays by name; None for other files in the archive.

    Raises:
        UsageError: The path is a link out of its folder, a pipe or a device; the file is damaged;
            an array holds Python objects; or the arrays ask for far more memory than the file
            takes.
    """
    try:
        with open_regular(typed_file(path)) as file, zipfile.ZipFile(file) as archive:
            return _read_members(archive, path, sizes)
    except UsageError:
        raise
    except FileNotFoundError as error:
        raise UsageError(f"{path}: must be an existing file") from error
    except Exception as error:
        # Damaged files make zipfile and NumPy raise almost anything.
        raise UsageError(
            f"{path}: must be a .npz file of plain arrays, it cannot be read: {one_line(error)}"
        ) from error


def _read_members(archive: zipfile.ZipFile, path: Path, sizes: Sizes) -> dict[str, Any]:
    members = archive.infolist()
    # All sizes are known before anything is read.
    read = sum(member.file_size for member in members)
    sizes.add(str(path), read, path.stat().st_size)

    arrays: dict[str, Any] = {}
    for member in members:
        name = member.filename.removesuffix(_SUFFIX)
        if name in arrays:
            raise ValueError(f"it holds {name!r} twice")
        arrays[name] = None
        if member.filename.endswith(_SUFFIX):
            _check_header(archive, member)
            arrays[name] = _read_array(archive, member)
    return arrays


def _check_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Raise for Python objects, and for a shape that does not fit the size of a member.

    NumPy would make an array of the declared shape first.
    """
    with archive.open(member) as file:
        version = npy.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = npy.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, _, dtype = npy.read_array_header_2_0(file)
        else:
            raise ValueError(f"{member.filename} has the unknown version {version}")
        size = member.file_size - file.tell()
    if dtype.hasobject:
        raise ValueError(f"{member.filename} holds Python objects")
    declared = math.prod(shape) * dtype.itemsize
    if declared != size or min(shape, default=0) < 0:
        raise ValueError(
            f"{member.filename} has {size} bytes, its shape {shape} of {dtype} needs {declared}"
        )


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as file:
        array: Array = npy.read_array(file, allow_pickle=False)
        # The checksum is compared at the end.
        file.read()
    return array
