"""Files that are either wholly there or not there: write beside, flush to disk, rename."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from yamame.checks import UsageError
from yamame.system.messages import one_line

TEMPORARY_SUFFIX = ".partial"
"""Suffix of files that were being written; such a file is never read and may be deleted."""


@contextmanager
def atomic_writer(path: Path) -> Iterator[IO[bytes]]:
    """Opens a binary file that replaces ``path`` when the block ends without an error.

    The data and the directory entry are flushed to disk before this returns. If the block raises,
    or the process is killed at any moment, ``path`` keeps its former content. An ``OSError`` names
    the file.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        flush_folder(path.parent)
    except OSError as error:
        if error.errno is not None:
            error.filename = error.filename or str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def flush_folder(path: Path) -> None:
    """Flushes the entries of a directory to disk: names that were made, replaced and deleted in
    it.
    """
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def is_left_behind(process: str) -> bool:
    """Whether what was named after a process, by its number, is the litter of one that has died.

    This process is asked before it writes anything, so its own number is that of an earlier one.
    """
    if not process.isdecimal():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return int(process) == os.getpid()


def sweep_partial_files(folder: Path) -> None:
    """Deletes what killed processes were writing with `atomic_writer` in a folder or below it."""
    for file in folder.rglob(f"*{TEMPORARY_SUFFIX}"):
        if is_left_behind(file.name.removesuffix(TEMPORARY_SUFFIX).rpartition(".")[2]):
            file.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Makes a directory and its parents, where they are missing, and flushes their names to
    disk.
    """
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        flush_folder(path.parent)


def write_json(path: Path, data: Any) -> Path:
    """Writes plain data as JSON, atomically. NaN and infinities are refused with ``ValueError``."""
    with atomic_writer(path) as file:
        file.write((json.dumps(data, indent=2, allow_nan=False) + "\n").encode())
    return path


def json_safe(value: Any) -> Any:
    """Plain data with null for every number that JSON cannot hold."""
    if isinstance(value, Mapping):
        return {name: json_safe(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file.

    Raises:
        UsageError: There is something else in the file.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise UsageError(f"{path} must be a file of JSON, it is no file")
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # also of bytes that are no text
        raise UsageError(
            f"{path} must be a file of JSON, it cannot be read: {one_line(error)}"
        ) from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} must hold a mapping, got {type(data).__name__}")
    return data
