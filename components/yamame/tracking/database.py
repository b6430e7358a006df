"""SQLite files that hold a store: used by one process at a time, and refused at once where they
cannot be opened.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone_with(database: Path | None) -> Iterator[None]:
    """Keeps other processes waiting: MLflow fails where two of them set up one SQLite database at
    once.
    """
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(database.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def check_opens(database: Path) -> None:
    """Opens a file as MLflow will, which would try ten times, for minutes; a new one is made, a
    lock is no obstacle.

    Raises:
        sqlite3.Error: It cannot be opened.
    """
    sqlite3.connect(database).close()
