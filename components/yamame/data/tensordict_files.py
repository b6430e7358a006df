"""Reading of the folders that ``TensorDict.memmap`` writes, without changing them.

``TensorDict.load_memmap`` maps files for writing. It makes a file that is too short as long as
``meta.json`` declares, and so damages a copy that is still under way, or the target of a link.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from yamame.checks import UsageError, require
from yamame.data.sizes import Sizes
from yamame.files.paths import check_regular, check_tree, inside, open_regular
from yamame.system.messages import one_line

META = "meta.json"
_LONGEST_META = 2**24
_BLOCK = 512
"""Bytes of a block, in which ``stat`` counts what a file takes on the disk."""
_DTYPES = {
    str(dtype): dtype
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    )
}
_UNSAFE = set('/<>:"|?*\\ %\0\x7f') | set(map(chr, range(32)))
"""Characters of keys that are encoded in names of files."""


def read_folder(path: str | Path, sizes: Sizes) -> TensorDictBase:
    """Read a folder; its tensors are mapped and copied when they are changed.

    Entries that are not tensors, such as texts, are left out.

    Args:
        path: The folder.
        sizes: Sum of the sizes of what is read.

    Raises:
        UsageError: It is not such a folder, is incomplete or damaged, or holds links, objects of
            Python or tensors of an unknown kind.
    """
    try:
        check_tree(path)
        return _read(Path(path), sizes)
    except UsageError:
        raise
    except (OSError, ValueError, LookupError, RuntimeError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path}: must be a TensorDict of tensors, it cannot be read: {one_line(error)}"
        ) from error


def _read(folder: Path, sizes: Sizes) -> TensorDictBase:
    meta = _read_meta(folder)
    kind = str(meta.get("_type", ""))
    if kind.endswith("LazyStackedTensorDict'>"):
        return _read_stack(folder, meta, sizes)
    # Early versions of TensorDict have stored no type.
    is_known = kind == "" or kind.endswith("TensorDict'>")
    require(str(folder), "_type", kind, is_known, "be a TensorDict")

    entries: dict[str, Any] = {}
    for key, entry in meta.items():
        if not isinstance(entry, dict):
            continue
        if "type" not in entry:
            entries[key] = _read_tensor(folder, key, entry, sizes)
            continue
        part = _existing(folder, key, "")
        if entry["type"] != "NonTensorData":
            entries[key] = _read(part, sizes)
            continue
        # Data that JSON cannot hold were pickled.
        if "data" not in _read_meta(part):
            raise ValueError(f"{key} is an object of Python")
    return TensorDict(entries, torch.Size(meta.get("shape", ())))


def _read_stack(folder: Path, meta: dict[str, Any], sizes: Sizes) -> TensorDictBase:
    """Read TensorDicts that were stacked without a copy, each of which has a numbered folder."""
    parts: list[TensorDictBase] = []
    while (folder / str(len(parts)) / META).exists():
        parts.append(_read(folder / str(len(parts)), sizes))
    require(str(folder), "parts", len(parts), bool(parts), "be at least one")
    return torch.stack(parts, int(meta["stack_dim"]))


def _read_meta(folder: Path) -> dict[str, Any]:
    path = inside(folder, META)
    with open_regular(path) as file:
        text = file.read(_LONGEST_META + 1)
    require(str(path), "size", "more", len(text) <= _LONGEST_META, f"be at most {_LONGEST_META}")
    meta = json.loads(text)
    require(str(path), "content", type(meta).__name__, isinstance(meta, dict), "be an object")
    assert isinstance(meta, dict)
    return meta


def _read_tensor(folder: Path, key: str, entry: dict[str, Any], sizes: Sizes) -> Tensor:
    """Map the tensor of an entry of ``meta.json``."""
    name = str(folder)
    is_nested = entry.get("is_nested", False)
    require(name, f"entry {key!r}", "a nested tensor", not is_nested, "be a plain tensor")
    dtype = _DTYPES.get(str(entry["dtype"]))
    condition = f"be one of {', '.join(_DTYPES)}"
    require(name, f"dtype of {key!r}", entry["dtype"], dtype is not None, condition)
    shape = entry["shape"]
    is_shape = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    require(name, f"shape of {key!r}", shape, is_shape, "be a list of sizes")
    assert dtype is not None

    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes == 0:
        # There is no file.
        return torch.empty(shape, dtype=dtype)
    path = _existing(folder, key, ".memmap")
    status = check_regular(path)
    condition = f"be at least {num_bytes} bytes, which {META} declares"
    require(str(path), "size", status.st_size, status.st_size >= num_bytes, condition)
    stored = getattr(status, "st_blocks", status.st_size) * _BLOCK
    sizes.add(str(path), num_bytes, stored, identity=(status.st_dev, status.st_ino))

    with open_regular(path) as file:
        # Copied on write: torch warns about memory that it must not write to.
        array = np.memmap(file, np.uint8, mode="c", shape=(num_bytes,))
    # NumPy lacks some of the dtypes of torch.
    tensor = torch.from_numpy(array)
    tensor = tensor != 0 if dtype == torch.bool else tensor.view(dtype)
    return tensor.reshape(shape)


def _existing(folder: Path, key: str, suffix: str) -> Path:
    """Return the file or folder of a key, in whose name early versions encoded no characters."""
    path = inside(folder, _encode(key) + suffix)
    if not path.exists() and "/" not in key:
        path = inside(folder, key + suffix)
    require(str(folder), "files", "none", path.exists(), f"include {path.name}")
    return path


def _encode(key: str) -> str:
    """Encode a key as the name of a file, as TensorDict does.

    >>> _encode("a/b"), _encode(".."), _encode("")
    ('a%2Fb', '%2E%2E', '%')
    """
    if not key:
        return "%"
    if key in (".", ".."):
        return "%2E" * len(key)
    characters = []
    for character in key:
        characters.append(f"%{ord(character):02X}" if character in _UNSAFE else character)
    return "".join(characters)
