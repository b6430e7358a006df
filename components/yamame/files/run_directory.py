"""Directories of runs: ``<root>/<name>``, each claimed by one process at a time.

An existing directory is refused unless the run is resumed or overwritten, and a file lock keeps two
processes from writing the same run. A run that was claimed but never begun leaves everything as it
was, including the run that it would have replaced.
"""

import contextlib
import fcntl
import io
import os
import re
import shutil
from pathlib import Path
from typing import IO, Literal

from yamame.checks import UsageError, require_setting
from yamame.files.atomic import make_folder, sweep_partial_files
from yamame.files.paths import UnsafePathError, check_tree, open_regular

LOCK_FILE = ".lock"
_FORMER, _MOVING, _DELETED = ".former", ".moving", ".deleted"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,+-]{0,127}")


class RunDirectory:
    """Claimed directory of a run. Made by `RunDirectory.open`, released by `close`.

    Until `begin` is called, `close` or the death of the process restores the directory as it was
    before `open`.

    Attributes:
        path: The directory.
        resumed: Whether it continues an earlier run.
        begun: Whether the run has begun, so that its directory stays.

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
        self._created = created  # directories that `open` created, innermost first

    @classmethod
    def open(
        cls,
        root: str | Path,
        name: str,
        *,
        resume: bool | Literal["auto"] = False,
        overwrite: bool = False,
    ) -> "RunDirectory":
        """Claim ``<root>/<name>`` for this process.

        Args:
            root: Directory of all runs; created if missing.
            name: Name of the run: letters, digits and ``. _ = , + -``.
            resume: Continue an existing run; ``auto``: if there is one.
            overwrite: Replace an existing run.

        Raises:
            UsageError: The name is invalid; the run exists and neither option is set; both are set;
                there is no run to resume; the directory is not a run; another process has claimed
                it.
            UnsafePathError: The directory holds a link, a pipe, a socket or a device.
            UnsafePathError: The directory holds a link, a pipe or a device.
        """
        path = checked_path(root, name, resume=resume, overwrite=overwrite)
        check_run(path)
        created = [folder for folder in (path, *path.parents) if not folder.exists()]
        make_folder(path)
        lock = _claim(path)
        try:
            # A process may have died before its run began, or while it deleted the former run.
            _put_back(path)
            sweep_partial_files(path)
            if (path / _DELETED).exists():
                shutil.rmtree(path / _DELETED)
            resumed = _is_used(path) if resume == "auto" else resume
            if overwrite:
                _set_aside(path)
            elif not resume and _is_used(path):
                raise _refusal(path)
        except BaseException:
            lock.close()
            raise
        return cls(path, resumed=resumed, lock=lock, created=created)

    def begin(self) -> None:
        """Keep the directory from now on, and delete the run that it replaces."""
        self.begun = True
        former = self.path / _FORMER
        if former.exists():
            # Renamed first: if this process died now, half of the former run would be restored.
            shutil.rmtree(former.rename(self.path / _DELETED))

    def close(self) -> None:
        """Release the directory. If a new run has not begun, it is as it was before `open`."""
        if not (self.begun or self.resumed):
            _clear(self.path)
            _put_back(self.path)
            if self._created:
                (self.path / LOCK_FILE).unlink()
            for folder in self._created:
                # Another run may have begun there meanwhile, so that the folder is not empty.
                with contextlib.suppress(OSError):
                    folder.rmdir()
        self._lock.close()


class SharedDirectory(RunDirectory):
    """Directory of a run that another process has claimed for this one, too.

    Nothing is created, moved or deleted.
    """

    def __init__(self, path: Path, *, resumed: bool) -> None:
        self.path = path
        self.resumed = resumed
        self.begun = False

    def begin(self) -> None:
        """Set `begun`."""
        self.begun = True

    def close(self) -> None:
        """Do nothing."""


def checked_path(
    root: str | Path, name: str, *, resume: bool | Literal["auto"], overwrite: bool
) -> Path:
    """Return the path of a run after the checks of `RunDirectory.open` that need no writing."""
    condition = "be 1 to 128 letters, digits or . _ = , + - and start with a letter or digit"
    require_setting("run.name", name, bool(_NAME.fullmatch(name)), condition)
    given = "auto" if resume == "auto" else "true"
    condition = f"be false with resume={given}"
    require_setting("run.overwrite", overwrite, not (resume and overwrite), condition)
    path = Path(root) / name
    check_folder(path, "run.root")
    used = _is_used(path)
    if resume is True and not used:
        message = f"no run to resume, {path} does not exist or is empty"
        raise UsageError(message, key="resume", remedy="start it with resume=auto")
    if used and not (resume or overwrite):
        raise _refusal(path)
    # Every run has a lock file: other files are not to be overwritten.
    if used and not (path / LOCK_FILE).exists():
        message = f"{path} must be a run's directory, it holds other files"
        raise UsageError(message, key="run.name")
    return path


def check_run(path: Path) -> None:
    """Check that a run directory holds nothing but folders and regular files.

    Through a link in a stranger's directory files would be read, written or deleted elsewhere.

    Raises:
        UnsafePathError: The first link, pipe, socket or device that is found.
    """
    try:
        check_tree(path)
    except UnsafePathError as error:
        error.key = "run.name"
        error.remedy = (
            "remove it, or replace it by a copy of its target; run.root=<folder> keeps whole runs "
            "on another disk"
        )
        raise


def check_folder(path: str | Path, key: str) -> None:
    """Check that a path is a directory or can become one. Nothing is created.

    Args:
        path: Directory that will be written to later.
        key: Setting that names it, for the message.

    Raises:
        SettingError: A file is in the way, or writing is not permitted.
    """
    given = str(path)
    # Most likely a misplaced option of the command line.
    is_option = given.startswith("-")
    require_setting(key, given, not is_option, "be a directory and not start with a dash")
    existing = Path(path).absolute()
    while not existing.exists():
        existing = existing.parent
    condition = f"be a directory, but {existing} is a file"
    require_setting(key, given, existing.is_dir(), condition)
    condition = f"be a directory to write to, but {existing} is not"
    require_setting(key, given, os.access(existing, os.W_OK), condition)


def _refusal(path: Path) -> UsageError:
    remedy = (
        "continue it with resume=true, replace it with run.overwrite=true or choose another "
        "run.name"
    )
    return UsageError(f"{path} exists", key="run.name", remedy=remedy)


def _is_used(path: Path) -> bool:
    """Return whether a directory has more than a lock file."""
    if not path.is_dir():
        return False
    return any(entry.name != LOCK_FILE for entry in path.iterdir())


def _claim(path: Path) -> IO[str]:
    """Take the lock of a run directory.

    Raises:
        UsageError: Another process holds it.
    """
    # Text, because the number of a process is written and read.
    lock = io.TextIOWrapper(open_regular(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, "r+b"))
    # The lock belongs to the process, so it disappears with it, however the process ends.
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        message = f"{path} is being written by process {holder}"
        raise UsageError(message, key="run.name") from None
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
    """Move a run into a folder below its directory."""
    # The folder has its final name only when it is complete.
    _move(path, path / _MOVING)
    (path / _MOVING).rename(path / _FORMER)


def _put_back(path: Path) -> None:
    """Undo `_set_aside`, also if it or this was interrupted. Newer files are deleted."""
    if (path / _FORMER).exists():
        _clear(path)
        (path / _FORMER).rename(path / _MOVING)
    if (path / _MOVING).exists():
        _move(path / _MOVING, path)
        (path / _MOVING).rmdir()
