"""SQLite files that hold an MLflow store."""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SCHEMA = Path(__file__).with_name("mlflow_schema.sql")


@contextmanager
def exclusive_access(database: Path | None) -> Iterator[None]:
    """Make other processes wait while a database is set up; None stands for another kind of store.

    MLflow fails if two processes set up one SQLite database at once.
    """
    if database is None:
        yield
        return

    database.parent.mkdir(parents=True, exist_ok=True)
    # The lock of the directory needs no file of its own and disappears with the process.
    descriptor = os.open(database.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def check_opens(database: Path) -> None:
    """Open a database, where MLflow would try ten times, for minutes.

    A missing file is created. A lock is no obstacle.

    Raises:
        sqlite3.Error: It cannot be opened.
    """
    sqlite3.connect(database).close()


def create_tables(database: Path) -> None:
    """Create the tables of an empty MLflow store, of the version named in ``mlflow_schema.sql``.

    MLflow creates them by some fifty migrations, which take most of a second. If the installed
    version is a newer one, it runs the migrations that are missing.
    """
    connection = sqlite3.connect(database)
    connection.executescript(_SCHEMA.read_text())
    connection.close()
