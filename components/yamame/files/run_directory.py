"""One directory per run: ``<root>/<name>``, claimed by one process at a time.

A run directory is never reused by accident: an existing one is refused unless the run is resumed or
overwritten, and a file lock keeps two processes from writing the same run. The lock belongs to the
process, so it disappears with it, however it ends. A run that was claimed and never begun leaves
everything as it was, the run it was to replace included.
"""

import contextlib
import fcntl
import os
import re
import shutil
from pathlib import Path
from typing import IO, Literal

from yamame.checks import UsageError
from yamame.files.atomic import make_folder, sweep_partial_files

LOCK_FILE = ".lock"
_FORMER, _MOVING, _DELETED = ".former", ".moving", ".deleted"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,+-]{0,127}")


class RunDirectory:
    """The claimed directory of one run. Made by `RunDirectory.open`, given up by `close`.

    Between `open` and `begin` files may be written, but nothing is decided: `close`, or the death
    of the process, leaves the directory as it was before.

    Attributes:
        path: The directory.
        resumed: Whether it continues an earlier run.
        begun: Whether the run is there, whatever happens.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     run = RunDirectory.open(root, "maze")
    ...     run.begin()
    ...     run.close()
    ...     [entry.name for entry in run.path.iterdir()]
    ['.lock']
    """

    def __init__(self, path: Path, *, resumed: bool, lock: IO[str], created: list[Path]):
        self.path = path
        self.resumed = resumed
        self.begun = False
        self._lock = lock
        self._created = created  # the directories that `open` made, innermost first

    @classmethod
    def open(
        cls,
        root: str | Path,
        name: str,
        *,
        resume: bool | Literal["auto"] = False,
        overwrite: bool = False,
    ) -> "RunDirectory":
        """Claims ``<root>/<name>`` for this process.

        Args:
            root: Directory of all runs; made when missing.
            name: Name of the run: letters, digits and ``. _ = , + -``.
            resume: Continue the run that is there; ``auto``: if there is one.
            overwrite: Replace the run that is there.

        Raises:
            UsageError: The name is no directory name; the run exists and neither option is set;
                both are set; there is nothing to resume; the directory is not a run; another
                process has claimed it.
        """
        path = checked_path(root, name, resume=resume, overwrite=overwrite)
        for entry in (path / _FORMER, path / _MOVING, path / _DELETED, path / LOCK_FILE):
            if entry.is_symlink():
                raise UsageError(f"RunDirectory: {entry} must be no link; remove it")
        created = [folder for folder in (path, *path.parents) if not folder.exists()]
        make_folder(path)
        lock = _claim(path)
        try:
            _put_back(path)  # a process may have died before its run began
            sweep_partial_files(path)
            if (path / _DELETED).exists():  # while a run was being deleted
                shutil.rmtree(path / _DELETED)
            resumed = _is_used(path) if resume == "auto" else resume
            if overwrite:
                _set_aside(path)
            elif not resume and _is_used(path):
                raise UsageError(_refusal(path))
        except BaseException:
            lock.close()
            raise
        return cls(path, resumed=resumed, lock=lock, created=created)

    def begin(self) -> None:
        """From now on the run is there, whatever happens; the one that it replaces is deleted."""
        self.begun = True
        former = self.path / _FORMER
        if (
            former.exists()
        ):  # under another name, or half of it would be put back if this process died now
            shutil.rmtree(former.rename(self.path / _DELETED))

    def close(self) -> None:
        """Gives the directory up; a new run that has not begun leaves it as it was before."""
        if not (self.begun or self.resumed):
            _clear(self.path)
            _put_back(self.path)
            if self._created:
                (self.path / LOCK_FILE).unlink()
            for folder in self._created:
                with contextlib.suppress(OSError):  # another run began there meanwhile
                    folder.rmdir()
        self._lock.close()


class SharedDirectory(RunDirectory):
    """The directory of a run that another process has claimed for this one too: nothing is made,
    moved or deleted.
    """

    def __init__(self, path: Path, *, resumed: bool) -> None:
        self.path, self.resumed, self.begun = path, resumed, False

    def begin(self) -> None:
        """From now on the run is there, whatever happens."""
        self.begun = True

    def close(self) -> None:
        """Does nothing."""


def checked_path(
    root: str | Path, name: str, *, resume: bool | Literal["auto"], overwrite: bool
) -> Path:
    """The path of a run after every refusal of `RunDirectory.open` that can be decided without
    writing anything.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            "RunDirectory: run.name must be 1 to 128 letters, digits or . _ = , + - and begin with a letter "
            f"or digit, got {name!r}"
        )
    if resume and overwrite:
        given = "auto" if resume == "auto" else "true"
        raise UsageError(
            f"RunDirectory: resume={given} and run.overwrite=true must not be given together"
        )
    path = Path(root) / name
    check_folder(path, "RunDirectory: run.root or run.name")
    used = _is_used(path)
    if resume is True and not used:
        raise UsageError(
            f"RunDirectory: there must be a run to resume, {path} does not exist or is empty"
        )
    if used and not (resume or overwrite):
        raise UsageError(_refusal(path))
    if used and not (path / LOCK_FILE).exists():
        raise UsageError(f"RunDirectory: {path} must be a run's directory, it holds other files")
    return path


def check_folder(path: str | Path, key: str) -> None:
    """Refuses what is no directory and cannot become one; nothing is made.

    Args:
        path: Where something is to be written later.
        key: What the user called it.

    Raises:
        UsageError: There is a file in the way, or the place must not be written to.
    """
    if str(path).startswith("-"):
        raise UsageError(f"{key}: must be a directory and not begin with a dash, got {path}")
    path = Path(path).absolute()
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if not there.is_dir():
        raise UsageError(f"{key}: must be a directory, got {path}: {there} is a file")
    if not os.access(there, os.W_OK):
        raise UsageError(f"{key}: must be a directory to write to, got {path}: {there} is not")


def _refusal(path: Path) -> str:
    return (
        f"RunDirectory: {path} exists; continue it with resume=true, replace it with run.overwrite=true "
        "or choose another run.name"
    )


def _is_used(path: Path) -> bool:
    return path.is_dir() and any(entry.name != LOCK_FILE for entry in path.iterdir())


def _claim(path: Path) -> IO[str]:
    """Takes the lock of a run directory, or says who holds it."""
    lock = (path / LOCK_FILE).open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise UsageError(f"RunDirectory: {path} is being written by process {holder}") from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def _entries(path: Path) -> list[Path]:
    return [entry for entry in path.iterdir() if entry.name not in (LOCK_FILE, _FORMER, _MOVING)]


def _clear(path: Path) -> None:
    for entry in _entries(path):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _move(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for entry in _entries(source):
        entry.rename(target / entry.name)


def _set_aside(path: Path) -> None:
    """Moves a run into a folder of its own, which has its final name only when it is complete."""
    _move(path, path / _MOVING)
    (path / _MOVING).rename(path / _FORMER)


def _put_back(path: Path) -> None:
    """Undoes `_set_aside`, wherever it or this was interrupted; what was written since is
    deleted.
    """
    if (path / _FORMER).exists():
        _clear(path)
        (path / _FORMER).rename(path / _MOVING)
    if (path / _MOVING).exists():
        _move(path / _MOVING, path)
        (path / _MOVING).rmdir()
