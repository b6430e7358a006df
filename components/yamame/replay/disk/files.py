"""The files of a trajectory store.

``<n>.steps``
    Segment n: trajectories one after the other; of each, all values of its first entry, then of its
    second.
``<n>.index``
    Of each trajectory in segment n its number of timesteps, and the CRC-32 of its bytes (int64).
``<k>.manifest``
    JSON. ``crc``: the CRC-32 of all the rest; ``format``, ``owner`` and ``capacity``; ``fields``:
    key, dtype and shape of every entry of a timestep; ``num_segments`` begun so far, so that no
    number is used twice; ``held``: the number of trajectories appended so far, and those that are
    held, oldest first, as ``[segment, first, end]``; ``protected``: the same as it was when
    checkpoints were made. Written after everything that it names; the newest, of ``number`` k,
    counts. One that is known to be on the disk stays beside it: a power cut may leave no newer one.
``lock``
    Locked by the one process that may write.

A segment is appended to in one session, never changed, and deleted as a whole. What was written
survives the death of the process; what a state dict names, that of the machine.
"""

import fcntl
import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from yamame.checks import require
from yamame.system.messages import one_line

STORE = "TrajectoryStorage"
FORMAT = "yamame trajectories 3"
DTYPES = {
    str(dtype).split(".")[1]: dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}
REMEDY = "bring the folder back from a copy, or begin anew"
Manifest = dict[str, Any]


class Segment(NamedTuple):
    """What the files of a segment hold, which may be more than a manifest names."""

    lengths: np.ndarray
    """Timesteps of each trajectory ``[n]`` int64."""
    checksums: np.ndarray
    """CRC-32 of the bytes of each trajectory ``[n]`` int64."""
    data: np.ndarray
    """Bytes, memory-mapped: they can be read even after the file was deleted."""

    @classmethod
    def open(cls, path: Path, number: int) -> "Segment":
        """Maps a segment of a folder; ``FileNotFoundError`` if there is none."""
        index = np.fromfile(path / f"{number}.index", np.int64)
        lengths, checksums = index[: len(index) // 2 * 2].reshape(-1, 2).T
        data = path / f"{number}.steps"
        if not data.stat().st_size:  # which cannot be mapped
            return cls(lengths, checksums, np.zeros(0, np.uint8))
        return cls(lengths, checksums, np.asarray(np.memmap(data, np.uint8, "r")))


def read_manifests(path: Path) -> list[Manifest]:
    """Reads the manifests of a folder that are whole, newest first; none where a store could be
    created.

    The ``number`` of each is the highest that is taken.

    Raises:
        ValueError: The folder holds something else, a store of another format, or no manifest that
            is whole.
    """
    files = sorted(path.iterdir()) if path.exists() else []
    numbers = {
        int(file.stem): file for file in files if file.suffix == ".manifest" and file.stem.isdigit()
    }
    if not numbers:
        foreign = [str(file) for file in files if file.name not in ("lock", "draft")]
        require(STORE, "path", foreign, not foreign, "be empty or hold trajectories")
    whole: list[Manifest] = []
    wrong: list[ValueError] = []
    for number in sorted(numbers, reverse=True):
        try:
            whole.append({**_parse(numbers[number]), "number": max(numbers)})
        except FileNotFoundError:  # the writer has replaced it
            return read_manifests(path)
        except ValueError as error:
            wrong.append(error)
    if wrong and not whole:
        raise wrong[0]
    return whole


def _parse(file: Path) -> Manifest:
    """A manifest, after everything in it was looked at; ``ValueError`` if it is not whole."""
    try:
        manifest: Manifest = json.loads(file.read_bytes())
        form, crc = manifest["format"], manifest.pop("crc", None)
        unknown = {dtype for _, dtype, _ in manifest["fields"]} - DTYPES.keys()
        for state in (manifest["held"], *manifest["protected"]):
            checked_state(state)
    except OSError:
        raise
    except Exception as error:  # whatever is missing, or something else
        reason = f"{file} must be a manifest, it cannot be read ({one_line(error)}): {REMEDY}"
        raise ValueError(f"{STORE}: {reason}") from error
    require(STORE, f"format of {file.parent}", form, form == FORMAT, f"be {FORMAT!r}")
    require(
        STORE,
        f"checksum of {file}",
        crc,
        crc == _checksum(manifest),
        f"be that of its text: {REMEDY}",
    )
    require(STORE, f"dtypes in {file}", sorted(unknown), not unknown, "be those of torch")
    return manifest


def checked_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Which trajectories are held, as a manifest says it; raises an error unless it is made of
    numbers.
    """
    parts = [[int(number), int(first), int(end)] for number, first, end in state["parts"]]
    return {"num_appended": int(state["num_appended"]), "parts": parts}


def write_manifest(path: Path, manifest: Manifest, *, to_disk: bool = False) -> None:
    """Writes a manifest, whole or not at all; ``to_disk``: it survives the death of the machine."""
    text = json.dumps({"crc": _checksum(manifest), **manifest})
    write(path / "draft", "wb", [text.encode()])
    if to_disk:
        flush(path / "draft")
    # A new name, as some file systems write to the disk when a file is replaced, which takes
    # milliseconds.
    (path / "draft").rename(path / f"{manifest['number']}.manifest")
    if to_disk:
        flush(path)


def _checksum(manifest: Manifest) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


def flush(path: Path) -> None:
    """Returns when a file, or the names in a folder, are on the disk; an ``OSError`` names it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)


def write(path: Path, mode: str, data: Iterable[Any]) -> None:
    """Writes buffers to a file, or raises ``OSError`` that names it."""
    try:
        with path.open(mode) as file:
            file.writelines(data)
    except OSError as error:
        message = f"{STORE}: there must be room for {path}, got {error.strerror}"
        raise OSError(error.errno, message) from error


def lock(path: Path) -> int:
    """Locks a folder for this process, until the descriptor that is returned is closed."""
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ValueError(
            f"{STORE}: path must not be written by another process, got {path}"
        ) from error
    return descriptor


def without_first(number: int, parts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The parts without their first trajectories; what follows in the same segment is one part.

    >>> without_first(3, [[0, 4, 6], [1, 0, 5], [1, 5, 7]])
    [[1, 1, 7]]
    """
    left: list[list[int]] = []
    for segment, first, end in parts:
        gone = min(number, end - first)
        number -= gone
        if left and left[-1][0] == segment:
            left[-1][2] = end
        elif first + gone < end:
            left.append([segment, first + gone, end])
    return left


def to_bytes(value: Tensor) -> np.ndarray:
    """The bytes of ``[R, ...]`` as ``[R, bytes]``; shares memory if that is possible."""
    value = value.detach().cpu().contiguous()
    return value.view(len(value), math.prod(value.shape[1:])).view(torch.uint8).numpy()


def fields_of(timesteps: TensorDictBase) -> list[list[Any]]:
    """Key, dtype and shape of every entry of ``[R]`` timesteps, as a manifest has them."""
    return [
        [
            [key] if isinstance(key, str) else list(key),
            str(value.dtype).split(".")[1],
            list(value.shape[1:]),
        ]
        for key, value in timesteps.items(True, True)
    ]


def width_of(fields: list[list[Any]]) -> int:
    """Bytes of a timestep with these fields."""
    return sum(DTYPES[dtype].itemsize * math.prod(size) for _, dtype, size in fields)


def check_fields(fields: list[list[Any]], timesteps: TensorDictBase) -> None:
    """Raises ValueError unless the timesteps have these fields, in any order."""
    got = fields_of(timesteps)
    missing, strange = (
        [one for one in a if one not in b] for a, b in ((fields, got), (got, fields))
    )
    require(STORE, "trajectories", strange, not missing and not strange, f"hold {missing}")


def flatten(
    trajectories: TensorDictBase | Sequence[TensorDictBase],
) -> tuple[TensorDictBase, np.ndarray]:
    """All real timesteps ``[R]``, one after the other, and lengths ``[n]`` of what
    `TrajectoryStorage.append` takes.
    """
    if isinstance(trajectories, TensorDictBase):
        timesteps, lengths = _flatten_padded(trajectories)
    elif len(trajectories):
        parts = [one.exclude("mask") for one in trajectories]
        for part in parts:
            check_fields(fields_of(parts[0]), part)
        timesteps, lengths = torch.cat(parts), np.array([len(part) for part in parts])
    else:
        return TensorDict({}, [0]), np.zeros(0, np.int64)
    require(
        STORE, "lengths of trajectories", lengths.tolist(), bool((lengths > 0).all()), "be positive"
    )
    following = timesteps.get("next", TensorDict())
    twice = [key for key in following.keys(True, True) if key in timesteps.keys(True)]
    remedy = "not be held under 'next' too: trajectories must be packed, with yamame.replay.pack"
    require(STORE, "entries of the root", twice, not twice, remedy)
    return timesteps, lengths


def _flatten_padded(trajectories: TensorDictBase) -> tuple[TensorDictBase, np.ndarray]:
    shape = trajectories.shape
    require(
        STORE, "trajectories", tuple(shape), len(shape) == 2, "be [n, L], see yamame.replay.pack"
    )
    mask = trajectories.get("mask", None)
    if mask is None:
        return trajectories.flatten(), np.full(shape[0], shape[1])
    mask = mask.reshape(shape)
    lengths = mask.sum(-1, keepdim=True)
    padded = bool((mask == (torch.arange(shape[1], device=mask.device) < lengths)).all())
    require(STORE, "mask", "a real timestep after padding", padded, "be right padded")
    return trajectories.exclude("mask")[mask], lengths.flatten().cpu().numpy()
