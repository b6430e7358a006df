"""SQLite files that hold an MLflow store."""

import fcntl
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

from yamame.checks import UsageError
from yamame.files.paths import UnsafePathError, check_regular, open_regular
from yamame.system.installed import version_of

SQLITE = "sqlite:///"
_KINDS = ("sqlite", "sqlite+pysqlite")
_SCHEMA = Path(__file__).with_name("mlflow_schema.sql")
_TABLES = ("experiments", "runs", "metrics", "params", "tags")
"""Tables that MLflow's database had in every version."""
_USED = (
    *_TABLES,
    "experiment_tags",
    "latest_metrics",
    "logged_models",
    "logged_model_tags",
    "inputs",
)
_BESIDE = ("-journal", "-wal", "-shm")
"""Ends of the names of files that SQLite keeps beside a database, and writes to."""
_JOURNAL_END = bytes.fromhex("d9d505f920a163d7")
"""End of a journal that names another one, which SQLite deletes after it has read both."""
_CREATED = re.compile(r"create (table|view) (\"[^\"]+\"|'[^']+'|`[^`]+`|\[[^]]+\]|\w+)", re.I)
"""Begin of the text that SQLite keeps of a table or view."""
_INDEX = re.compile("create (unique )?index ", re.I)


class ForeignDatabaseError(UsageError):
    """A file that is not a database of the installed version of MLflow.

    Args:
        uri: Address of the store.
        reason: Difference to such a database.
        remedy: Way to mend it.
    """

    def __init__(self, uri: str, reason: str, remedy: str | None = None) -> None:
        message = f"must be a store that MLflow can use, got {uri}: {reason}"
        super().__init__(message, key="tracking_uri", remedy=remedy)


def database_of(tracking_uri: str) -> Path | None:
    """Return the file of a SQLite store; None for another kind of store.

    Raises:
        ForeignDatabaseError: The address has options after a ``?``, or is an address for SQLite,
            which could name another file.
    """
    kind, mark, name = tracking_uri.partition(":///")
    if not mark or kind not in _KINDS:
        return None
    if "?" in name:
        remedy = "write a question mark in a file's name as %3F"
        raise ForeignDatabaseError(tracking_uri, "it has options after '?'", remedy)
    # SQLAlchemy, which opens the file, decodes the name in the same way.
    name = unquote(name)
    # SQLite would open what follows, with options of its own.
    if name.startswith("file:"):
        raise ForeignDatabaseError(tracking_uri, "it starts with 'file:'", "name the file alone")
    return Path(name)


def sqlite_uri(database: Path) -> str:
    """Return the address of the store in a SQLite file.

    >>> database_of(sqlite_uri(Path("/home/me/a%20b/mlflow.db")))
    PosixPath('/home/me/a%20b/mlflow.db')
    """
    text = str(database)
    # Other characters, as blanks, need no escape, and MLflow makes an empty folder beside one whose
    # name is escaped.
    if unquote(text) != text:
        text = text.replace("%", "%25")
    return f"{SQLITE}{text.replace('?', '%3F')}"


def absolute_uri(tracking_uri: str) -> str:
    """Make a relative SQLite path absolute, so that a run is found from another directory."""
    database = database_of(tracking_uri)
    return tracking_uri if database is None else sqlite_uri(database.resolve())


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


def check_is_store(database: Path, *, may_be_empty: bool) -> None:
    """Check that an existing file is a database of the installed MLflow. It is only read, and only
    by SQLite: the system drops the locks that a process holds on a file when this closes it once.

    MLflow would create its tables in any SQLite file, as in that of a browser, and add missing
    tables to a database of another version.

    Args:
        database: The file.
        may_be_empty: Accept a database without tables.

    Raises:
        ForeignDatabaseError: It is another file, a link, a pipe, a directory, or a database of
            another version of MLflow.
    """
    uri = sqlite_uri(database)
    check_beside(database)
    try:
        check_regular(database)
    except UnsafePathError as error:
        raise ForeignDatabaseError(uri, error.reason, "name another file") from error
    _check_schema(database, may_be_empty=may_be_empty)
    # The log and the journal can hold other tables than the file, which SQLite brings in.
    if _logs(database):
        _check_schema(database, may_be_empty=may_be_empty, mode="rw")


def _logs(database: Path) -> list[Path]:
    """Return the log and the journal of a database, of those that are not empty."""
    found = []
    for end in ("-wal", "-journal"):
        path = Path(f"{database}{end}")
        with suppress(FileNotFoundError):  # other processes make and delete them
            if path.stat().st_size > 0:
                found.append(path)
    return found


def _check_schema(database: Path, *, may_be_empty: bool, mode: str = "ro&immutable=1") -> None:
    """Check the tables of a database, see `check_is_store`.

    Args:
        database: The file.
        may_be_empty: Accept a database without tables.
        mode: How to open it. An immutable file is read without locks and without the files that
            SQLite creates beside a database with a write-ahead log.
    """
    uri = sqlite_uri(database)
    try:
        kinds, revision = _read_schema(database, mode)
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if code == sqlite3.SQLITE_BUSY and mode == "rw":
            return  # locked by another process, which has checked it
        if code == sqlite3.SQLITE_NOTADB:
            raise ForeignDatabaseError(uri, "the file is not a database of SQLite") from error
        raise ForeignDatabaseError(uri, f"the file is damaged: {error}") from error
    if not kinds and may_be_empty:
        # Tables that were only just created may still be in one of these alone.
        for log in _logs(database):
            raise ForeignDatabaseError(uri, f"{log.name} holds changes of another program")
        return

    if revision is None or not kinds.keys() >= set(_TABLES):
        reason = f"{database} is the database of another program, without the tables of MLflow"
        raise ForeignDatabaseError(uri, reason, "name a new file")
    for name in _USED:
        # A view instead of a table, or a trigger, can make a query run forever.
        if kinds.get(name, "table") != "table":
            raise ForeignDatabaseError(uri, f"MLflow's table {name} is a {kinds[name]} there")
    _check_revision(uri, revision)


def check_beside(database: Path) -> None:
    """Check the files that SQLite keeps beside a database, which need not exist.

    Raises:
        ForeignDatabaseError: One of them is a link, also a hard one, a pipe, a directory or a
            device; or the journal names another file, which SQLite would delete.
    """
    uri = sqlite_uri(database)
    for end in _BESIDE:
        path = Path(f"{database}{end}")
        try:
            names = check_regular(path).st_nlink
            # Only transactions of several databases at once, which MLflow never makes, end so.
            names_another = end == "-journal" and _last_bytes(path) == _JOURNAL_END
        except FileNotFoundError:
            continue
        except UnsafePathError as error:
            raise ForeignDatabaseError(uri, f"{path.name}: {error.reason}") from error
        if names > 1:
            reason = f"{path.name} is to be written and has another name, too (a hard link)"
            raise ForeignDatabaseError(uri, reason, "replace it by a copy")
        if names_another:
            raise ForeignDatabaseError(uri, f"{path.name} names another file")


def _last_bytes(journal: Path) -> bytes:
    with open_regular(journal) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - len(_JOURNAL_END)))
        return file.read()


def _read_schema(database: Path, mode: str) -> tuple[dict[str, str], str | None]:
    """Return the kinds of tables and views by name, and MLflow's revision of the tables.

    A table of which a trigger watches the changes has the kind ``trigger``, another than a plain
    table the kind ``virtual``.
    """
    address = f"{database.absolute().as_uri()}?mode={mode}"
    with closing(sqlite3.connect(address, uri=True, timeout=0.5)) as opened:
        kinds: dict[str, str] = {}
        query = "select name, sql from sqlite_master where sql is not null"
        made = [_kinds_of(str(name), str(sql)) for name, sql in opened.execute(query)]
        for found in sorted(made, key=lambda found: "trigger" in found.values()):
            kinds |= found
        revision = None
        if kinds.get("alembic_version") == "table":
            row = opened.execute("select version_num from alembic_version").fetchone()
            revision = None if row is None else str(row[0])
    return kinds, revision


def _kinds_of(name: str, sql: str) -> dict[str, str]:
    """Return the kinds of the tables that an entry of a schema makes or watches, by name.

    SQLite makes of an entry what its text says, and does not tell capitals from small letters.
    """
    if _INDEX.match(sql):
        return {}
    created = _CREATED.match(sql)
    if created is not None:
        return {created[2].strip("\"'`[]").lower(): created[1].lower()}
    # A trigger or a virtual table, or a text that was changed by hand.
    kind = "trigger" if sql.upper().startswith("CREATE TRIGGER") else "virtual"
    words = set(re.findall(r"\w+", sql.lower()))
    return dict.fromkeys([name.lower(), *words.intersection(_USED)], kind)


def _check_revision(uri: str, revision: str | None) -> None:
    """Raise for a database of another version of MLflow."""
    try:
        from mlflow.store.db.utils import _get_latest_schema_revision
    except ImportError:
        return  # not MLflow's public interface: it may move, and MLflow checks most databases
    expected = _get_latest_schema_revision()
    if revision != expected:
        raise ForeignDatabaseError(
            uri,
            f"it was written by another version of MLflow, its tables have the revision {revision} "
            f"and MLflow {version_of('mlflow')} needs {expected}",
            "copy the file, then upgrade it with: mlflow db upgrade " + uri,
        )


def create_tables(database: Path) -> None:
    """Create the tables of an empty MLflow store, of the version named in ``mlflow_schema.sql``.

    MLflow creates them by some fifty migrations, which take most of a second. If the installed
    version is a newer one, it runs the migrations that are missing.
    """
    connection = sqlite3.connect(database)
    connection.executescript(_SCHEMA.read_text())
    connection.close()
