"""The files of a trajectory store.

``<n>.steps``
    Segment n: trajectories one after the other; of each, all values of its first entry, then of its second.
``<n>.lengths``
    The number of timesteps of each trajectory in segment n (int64).
``<k>.manifest``
    JSON. ``format``, ``owner`` and ``capacity``; ``fields``: key, dtype and shape of every entry of a timestep;
    ``num_segments`` begun so far, so that no number is used twice; ``held``: the number of trajectories appended
    so far, and those that are held, oldest first, as ``[segment, first, end]``; ``protected``: the same as it was
    when checkpoints were made. Written after everything that it names; the newest, of ``number`` k, counts.
``lock``
    Locked by the one process that may write.

A segment is appended to in one session, never changed, and deleted as a whole. What was written survives the
death of the process, not of the machine.
"""

import fcntl
import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from yamame.checks import require

STORE = "TrajectoryStorage"
FORMAT = "yamame trajectories 2"
Manifest = dict[str, Any]


class Segment(NamedTuple):
    """What the files of a segment hold, which may be more than a manifest names."""

    lengths: np.ndarray
    """Timesteps of each trajectory ``[n]`` int64."""
    data: np.ndarray
    """Bytes, memory-mapped: they can be read even after the file was deleted."""

    @classmethod
    def open(cls, path: Path, number: int) -> "Segment":
        """Maps a segment of a folder; ``FileNotFoundError`` if there is none."""
        lengths = np.fromfile(path / f"{number}.lengths", np.int64)
        return cls(lengths, np.asarray(np.memmap(path / f"{number}.steps", np.uint8, "r")))


def read_manifest(path: Path) -> Manifest | None:
    """Reads the newest manifest of a folder; None where a store could be created.

    Raises:
        ValueError: The folder holds something else, or a store of another format.
    """
    files = sorted(path.iterdir()) if path.exists() else []
    numbers = [int(file.stem) for file in files if file.suffix == ".manifest"]
    if not numbers:
        foreign = [str(file) for file in files if file.name not in ("lock", "draft")]
        require(STORE, "path", foreign, not foreign, "be empty or hold trajectories")
        return None
    try:
        manifest: Manifest = json.loads((path / f"{max(numbers)}.manifest").read_text())
    except FileNotFoundError:  # the writer has replaced it
        return read_manifest(path)
    require(STORE, f"format of {path}", manifest["format"], manifest["format"] == FORMAT, f"be {FORMAT!r}")
    return manifest


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Writes a manifest, whole or not at all."""
    write(path / "draft", "wb", [json.dumps(manifest).encode()])
    # A new name, as some file systems write to the disk when a file is replaced, which takes milliseconds.
    (path / "draft").rename(path / f"{manifest['number']}.manifest")


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
        raise ValueError(f"{STORE}: path must not be written by another process, got {path}") from error
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
        [[key] if isinstance(key, str) else list(key), str(value.dtype).split(".")[1], list(value.shape[1:])]
        for key, value in timesteps.items(True, True)
    ]


def check_fields(fields: list[list[Any]], timesteps: TensorDictBase) -> None:
    """Raises ValueError unless the timesteps have these fields, in any order."""
    got = fields_of(timesteps)
    missing, strange = ([one for one in a if one not in b] for a, b in ((fields, got), (got, fields)))
    require(STORE, "trajectories", strange, not missing and not strange, f"hold {missing}")


def flatten(trajectories: TensorDictBase | Sequence[TensorDictBase]) -> tuple[TensorDictBase, np.ndarray]:
    """All real timesteps ``[R]``, one after the other, and lengths ``[n]`` of what `TrajectoryStorage.append` takes."""
    if isinstance(trajectories, TensorDictBase):
        timesteps, lengths = _flatten_padded(trajectories)
    elif len(trajectories):
        parts = [one.exclude("mask") for one in trajectories]
        for part in parts:
            check_fields(fields_of(parts[0]), part)
        timesteps, lengths = torch.cat(parts), np.array([len(part) for part in parts])
    else:
        return TensorDict({}, [0]), np.zeros(0, np.int64)
    require(STORE, "lengths of trajectories", lengths.tolist(), bool((lengths > 0).all()), "be positive")
    following = timesteps.get("next", TensorDict())
    twice = [key for key in following.keys(True, True) if key in timesteps.keys(True)]
    remedy = "not be held under 'next' too: trajectories must be packed, with yamame.replay.pack"
    require(STORE, "entries of the root", twice, not twice, remedy)
    return timesteps, lengths


def _flatten_padded(trajectories: TensorDictBase) -> tuple[TensorDictBase, np.ndarray]:
    shape = trajectories.shape
    require(STORE, "trajectories", tuple(shape), len(shape) == 2, "be [n, L], see yamame.replay.pack")
    mask = trajectories.get("mask", None)
    if mask is None:
        return trajectories.flatten(), np.full(shape[0], shape[1])
    mask = mask.reshape(shape)
    lengths = mask.sum(-1, keepdim=True)
    padded = bool((mask == (torch.arange(shape[1], device=mask.device) < lengths)).all())
    require(STORE, "mask", "a real timestep after padding", padded, "be right padded")
    return trajectories.exclude("mask")[mask], lengths.flatten().cpu().numpy()
