"""Files that are either wholly there or not there: write beside, flush to disk, rename."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

TEMPORARY_SUFFIX = ".partial"
"""Suffix of files that were being written; such a file is never read and may be deleted."""


@contextmanager
def atomic_writer(path: Path) -> Iterator[IO[bytes]]:
    """Opens a binary file that replaces ``path`` when the block ends without an error.

    The data and the directory entry are flushed to disk before this returns. If the block raises, or the
    process is killed at any moment, ``path`` keeps its former content.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Flushes the entries of a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
