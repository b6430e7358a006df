"""Files of a trajectory store.

``<n>.steps``
    Segment n: trajectories one after the other. Each consists of all values of its first entry,
    then all values of its second entry, and so on.
``<n>.index``
    Number of timesteps and CRC-32 of the bytes (int64 each) of every trajectory in segment n.
``<k>.manifest``
    JSON. ``crc``: CRC-32 of everything else in the file. ``format``, ``owner`` and ``capacity``.
    ``fields``: key, dtype and shape of every entry of a timestep. ``num_segments``: segments begun
    so far, so that no number is used twice. ``held``: number of trajectories appended so far, and
    the trajectories held, oldest first, as ranges ``[segment, first, end]``. ``protected``: former
    values of ``held`` that checkpoints refer to. A manifest is written after everything that it
    names. The manifest with the highest ``number`` k counts. One that is known to be flushed stays
    beside it, because after a power cut the newer one may be missing.
``lock``
    Locked by the process that may write.

Only one session appends to a segment. Segments are never changed, and are deleted as a whole.
Written data survive the death of the process; data named by a state dict survive a power cut.
"""

import fcntl
import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from yamame.checks import require
from yamame.files.paths import (
    UnsafePathError,
    create_file,
    open_descriptor,
    open_regular,
    read_regular,
)
from yamame.files.schema import SchemaError, Whole, check_form
from yamame.replay.disk.index import index_rows
from yamame.system.messages import one_line

STORE = "TrajectoryStorage"
FORMAT = "yamame trajectories 3"
DTYPES = {
    str(dtype).split(".")[1]: dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.bits"))
}
"""Dtypes by name, without those of quantized numbers."""
REMEDY = "restore the folder from a copy, or start a new run"
Manifest = dict[str, Any]
MOST_PARTS = 2**14
"""Ranges of held trajectories; each has two files of its own."""
_LARGEST_MANIFEST = 2**26
_RANGE = (Whole(), Whole(), Whole())
_STATE = {"num_appended": Whole(), "parts": list}
_FORM = {
    "owner": str,
    "capacity": Whole(least=1),
    "fields": [([str], str, [Whole(most=2**40)])],
    "num_segments": Whole(),
    "held": _STATE,
    "protected": [_STATE],
}
"""Content of a manifest, see `yamame.files.schema`."""


class Segment(NamedTuple):
    """Content of the files of a segment, which may be more than a manifest names."""

    rows: np.ndarray
    """Rows of a `TrajectoryIndex` ``[n, 4]``, one for each trajectory."""
    data: np.ndarray
    """Memory-mapped bytes. They stay readable after the file was deleted."""

    @classmethod
    def open(cls, path: Path, number: int) -> "Segment":
        """Map a segment of a folder.

        Raises:
            FileNotFoundError: A file of the segment is missing.
        """
        with open_regular(path / f"{number}.index") as file:
            values = np.fromfile(file, np.int64)
        # A killed process may have written half of a pair.
        num_trajectories = len(values) // 2
        pairs = values[: 2 * num_trajectories].reshape(num_trajectories, 2)
        rows = index_rows(number, first_timestep=0, lengths=pairs[:, 0], checksums=pairs[:, 1])
        return cls(rows, map_bytes(path, number))


def map_bytes(path: Path, number: int) -> np.ndarray:
    """Map the timesteps of a segment ``[bytes]``.

    Raises:
        FileNotFoundError: The file is missing.
    """
    with open_regular(path / f"{number}.steps") as file:
        # An empty file cannot be mapped.
        if os.fstat(file.fileno()).st_size == 0:
            return np.zeros(0, np.uint8)
        return np.asarray(np.memmap(file, np.uint8, "r"))


def number_of(file: Path) -> int | None:
    """Return the number in the name of a file of a store; None if it has another name."""
    is_numbered = file.suffix in (".steps", ".index", ".manifest") and file.stem.isdecimal()
    return int(file.stem) if is_numbered else None


def read_manifests(path: Path) -> list[Manifest]:
    """Read the intact manifests of a folder, newest first.

    Args:
        path: Folder of a store.

    Returns:
        Manifests, in each of which ``number`` is the highest number in use. Empty if a store could
        be created in the folder.

    Raises:
        ValueError: The folder holds something else, a store of another format, or no intact
            manifest.
    """
    files = sorted(path.iterdir()) if path.exists() else []
    numbered = {}
    for file in files:
        number = number_of(file)
        if file.suffix == ".manifest" and number is not None:
            numbered[number] = file
    if not numbered:
        foreign = [str(file) for file in files if file.name not in ("lock", "draft")]
        require(STORE, "path", foreign, not foreign, "be empty or hold trajectories")

    intact: list[Manifest] = []
    errors: list[ValueError] = []
    for number in sorted(numbered, reverse=True):
        try:
            manifest = _parse(numbered[number])
        except FileNotFoundError:
            # The writer has replaced this manifest since the folder was listed.
            return read_manifests(path)
        except ValueError as error:
            errors.append(error)
        else:
            intact.append({**manifest, "number": max(numbered)})

    if errors and not intact:
        raise errors[0]
    return intact


def _parse(file: Path) -> Manifest:
    """Read a manifest, and raise ``ValueError`` unless it is intact."""
    try:
        manifest = json.loads(read_regular(file, most=_LARGEST_MANIFEST))
        check_form(manifest, {"format": str}, "manifest")
    except (OSError, UnsafePathError):
        raise
    except Exception as error:
        # Damaged JSON raises almost anything.
        raise _unreadable(file, error) from error
    format_name = manifest["format"]
    name = f"format of {file.parent}"
    require(STORE, name, format_name, format_name == FORMAT, f"be {FORMAT!r}")

    checksum = manifest.pop("crc", None)
    name = f"checksum of {file}"
    matches = checksum == _checksum(manifest)
    require(STORE, name, checksum, matches, "be that of its text", remedy=REMEDY)
    try:
        check_form(manifest, _FORM, "manifest")
        for state in (manifest["held"], *manifest["protected"]):
            checked_state(state)
        _check_keys(manifest["fields"])
    except SchemaError as error:
        raise _unreadable(file, error) from error
    unknown = {dtype for _, dtype, _ in manifest["fields"]} - DTYPES.keys()
    require(STORE, f"dtypes in {file}", sorted(unknown), not unknown, "be those of torch")
    read: Manifest = manifest
    return read


def _unreadable(file: Path, error: Exception) -> ValueError:
    return ValueError(
        f"{STORE}: {file} must be a manifest, it cannot be read ({one_line(error)}); {REMEDY}"
    )


def _check_keys(fields: Sequence[tuple[Sequence[str], str, Sequence[int]]]) -> None:
    """Raise unless the fields of a manifest can be entries of one TensorDict.

    Raises:
        SchemaError: A key is empty or reserved, or two keys cannot stand beside each other.
    """
    keys = {tuple(key) for key, _, _ in fields}
    if len(keys) < len(fields):
        raise SchemaError("each field must occur once")
    for key in keys:
        # The mask is computed, and an entry has either a value or further entries.
        parents = {key[:length] for length in range(1, len(key))}
        if not key or "" in key or key == ("mask",) or parents & keys:
            raise SchemaError(f"{list(key)} must be the name of an entry")


def checked_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the held trajectories of a manifest or a state dict, as plain numbers.

    Raises:
        SchemaError: They are no ranges, or too many.
    """
    check_form(state, _STATE, "held")
    if len(state["parts"]) > MOST_PARTS:
        raise SchemaError(f"held.parts must be at most {MOST_PARTS}, got {len(state['parts'])}")
    check_form(state["parts"], [_RANGE], "held.parts")
    for number, first, end in state["parts"]:
        if first > end:
            raise SchemaError(f"held.parts must be ranges, got {[number, first, end]}")
    return {"num_appended": state["num_appended"], "parts": [list(part) for part in state["parts"]]}


def write_manifest(path: Path, manifest: Manifest, *, to_disk: bool = False) -> None:
    """Write a manifest as a whole or not at all.

    Args:
        path: Folder of the store.
        manifest: Content.
        to_disk: Whether to wait until the file survives a power cut.
    """
    text = json.dumps({"crc": _checksum(manifest), **manifest})
    draft = path / "draft"
    write(draft, "wb", [text.encode()])
    if to_disk:
        flush(draft)
    # The name is new: some file systems flush a file that replaces another one, which takes
    # milliseconds.
    draft.rename(path / f"{manifest['number']}.manifest")
    if to_disk:
        flush(path)


def _checksum(manifest: Manifest) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk.

    Raises:
        OSError: The flush failed; names the path.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)


def write(path: Path, mode: str, data: Iterable[Any]) -> None:
    """Write buffers to a file.

    Raises:
        OSError: The disk is full, or the file cannot be written; names the path.
    """
    try:
        with _opened(path, mode) as file:
            file.writelines(data)
    except OSError as error:
        message = f"{STORE}: {path} cannot be written ({error.strerror}); free some space"
        raise OSError(error.errno, message) from error


def _opened(path: Path, mode: str) -> IO[bytes]:
    """Open a file for ``wb``, which replaces it, or ``ab``; no link is followed."""
    if mode == "wb":
        return create_file(path)
    return open_regular(path, os.O_WRONLY | os.O_APPEND, mode)


def lock(path: Path) -> int:
    """Lock a folder for this process.

    Returns:
        Descriptor that holds the lock until it is closed.

    Raises:
        ValueError: Another process holds the lock.
    """
    descriptor = open_descriptor(path / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ValueError(
            f"{STORE}: path must not be written by another process, got {path}"
        ) from error
    return descriptor


def without_first(count: int, parts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Remove the oldest trajectories from ranges, and merge adjacent ranges of one segment.

    Args:
        count: Number of trajectories to remove.
        parts: Ranges ``[segment, first, end]``, oldest first.

    >>> without_first(3, [[0, 4, 6], [1, 0, 5], [1, 5, 7]])
    [[1, 1, 7]]
    """
    left: list[list[int]] = []
    for segment, first, end in parts:
        removed = min(count, end - first)
        count -= removed
        if left and left[-1][0] == segment:
            left[-1][2] = end
        elif first + removed < end:
            left.append([segment, first + removed, end])
    return left


def to_bytes(value: Tensor) -> np.ndarray:
    """Return the bytes of ``[R, ...]`` as ``[R, bytes]``, without a copy if possible."""
    value = value.detach().cpu().contiguous()
    flat = value.view(len(value), math.prod(value.shape[1:]))
    return flat.view(torch.uint8).numpy()


def fields_of(timesteps: TensorDictBase) -> list[list[Any]]:
    """Return key, dtype and shape of every entry of timesteps ``[R]``, as in a manifest."""
    fields: list[list[Any]] = []
    for key, value in timesteps.items(True, True):
        path = [key] if isinstance(key, str) else list(key)
        dtype = str(value.dtype).split(".")[1]
        fields.append([path, dtype, list(value.shape[1:])])
    return fields


def width_of(fields: list[list[Any]]) -> int:
    """Return the number of bytes of a timestep with these fields."""
    return sum(DTYPES[dtype].itemsize * math.prod(shape) for _, dtype, shape in fields)


def check_fields(fields: list[list[Any]], timesteps: TensorDictBase) -> None:
    """Raise unless the timesteps have these fields, in any order.

    Raises:
        ArgumentError: An entry is missing, unknown, or of another dtype or shape.
    """
    found = fields_of(timesteps)
    missing = [field for field in fields if field not in found]
    unknown = [field for field in found if field not in fields]
    matches = not missing and not unknown
    require(STORE, "trajectories", unknown, matches, f"hold {missing}")


def flatten(
    trajectories: TensorDictBase | Sequence[TensorDictBase],
) -> tuple[TensorDictBase, np.ndarray]:
    """Concatenate the real timesteps of trajectories.

    Args:
        trajectories: As for `TrajectoryStorage.append`.

    Returns:
        Timesteps ``[R]`` of all trajectories, and lengths ``[n]``.

    Raises:
        ArgumentError: A trajectory is empty, not right padded or not packed, or entries differ.
    """
    if isinstance(trajectories, TensorDictBase):
        timesteps, lengths = _flatten_padded(trajectories)
    elif len(trajectories):
        unpadded = [trajectory.exclude("mask") for trajectory in trajectories]
        for trajectory in unpadded:
            check_fields(fields_of(unpadded[0]), trajectory)
        timesteps = torch.cat(unpadded)
        lengths = np.array([len(trajectory) for trajectory in unpadded])
    else:
        return TensorDict({}, [0]), np.zeros(0, np.int64)

    positive = bool((lengths > 0).all())
    require(STORE, "lengths of trajectories", lengths.tolist(), positive, "be positive")

    # A packed trajectory holds every observation once, a rollout at the root and under "next".
    root = timesteps.keys(True)
    following = timesteps.get("next", TensorDict())
    twice = [key for key in following.keys(True, True) if key in root]
    remedy = "pack trajectories with yamame.replay.pack"
    require(
        STORE, "entries of the root", twice, not twice, "not be held under 'next'", remedy=remedy
    )
    return timesteps, lengths


def _flatten_padded(trajectories: TensorDictBase) -> tuple[TensorDictBase, np.ndarray]:
    shape = trajectories.shape
    remedy = "pack rollouts with yamame.replay.pack"
    require(STORE, "trajectories", tuple(shape), len(shape) == 2, "be [n, L]", remedy=remedy)
    mask = trajectories.get("mask", None)
    # Without a mask, nothing is padding.
    if mask is None:
        return trajectories.flatten(), np.full(shape[0], shape[1])

    mask = mask.reshape(shape)
    lengths = mask.sum(-1, keepdim=True)
    step = torch.arange(shape[1], device=mask.device)
    is_right_padded = bool((mask == (step < lengths)).all())
    require(STORE, "mask", "a real timestep after padding", is_right_padded, "be right padded")
    return trajectories.exclude("mask")[mask], lengths.flatten().cpu().numpy()
