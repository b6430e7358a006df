"""Files that are either complete or not there: write beside, flush to disk, rename."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from yamame.checks import UsageError
from yamame.files.paths import UnsafePathError, create_file, read_regular
from yamame.system.messages import one_line

TEMPORARY_SUFFIX = ".partial"
"""Suffix of files that are being written. They are never read, and those of dead processes may be
deleted.
"""
_LARGEST_JSON = 2**27
"""Bytes of the largest file of JSON that is read: bounds of observations may have many numbers."""


@contextmanager
def atomic_writer(path: Path) -> Iterator[IO[bytes]]:
    """Open a binary file that replaces ``path`` when the block ends without an error.

    If the block raises, or the process or the machine dies at any moment, ``path`` keeps its former
    content. An ``OSError`` names the file.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        with create_file(temporary) as file:
            yield file
            file.flush()
            # Some file systems write the new name to disk before the data.
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
    """Flush the names in a directory to disk: files that were created, replaced or deleted."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def is_left_behind(process: str) -> bool:
    """Return whether a file was left by a process that has died.

    Args:
        process: Number of the process that wrote the file, as text.
    """
    if not process.isdecimal():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    # This process has not written anything yet: its number was that of an earlier process.
    return int(process) == os.getpid()


def sweep_partial_files(folder: Path) -> None:
    """Delete partial files of killed processes in a folder and below it."""
    for file in folder.rglob(f"*{TEMPORARY_SUFFIX}"):
        process = file.name.removesuffix(TEMPORARY_SUFFIX).rpartition(".")[2]
        if is_left_behind(process):
            file.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Create a directory and its parents if they are missing, and flush their names to disk."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        flush_folder(path.parent)


def write_json(path: Path, data: Any) -> Path:
    """Write plain data as JSON, atomically.

    Raises:
        ValueError: The data has NaN or an infinity.
    """
    with atomic_writer(path) as file:
        file.write((json.dumps(data, indent=2, allow_nan=False) + "\n").encode())
    return path


def json_safe(value: Any) -> Any:
    """Return plain data with None in place of NaN and infinities, which JSON cannot hold."""
    if isinstance(value, Mapping):
        return {name: json_safe(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Read a mapping from a JSON file.

    Raises:
        FileNotFoundError: There is no such file.
        UsageError: The file is damaged or holds something else, or is no regular file.
    """
    try:
        data = json.loads(read_regular(path, most=_LARGEST_JSON))
    except UnsafePathError:
        raise
    except (ValueError, RecursionError) as error:  # a ValueError also for bytes that are not UTF-8
        raise UsageError(
            f"{path} must be a file of JSON, it cannot be read: {one_line(error)}"
        ) from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} must hold a mapping, got {type(data).__name__}")
    return data
