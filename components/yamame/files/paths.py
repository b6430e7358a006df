"""Paths that a file or a directory from elsewhere may name.

A run directory, a data set or a store can come from a stranger. A link in it, or a name like
``../x``, would make this process read or write files that have nothing to do with it, and a pipe
would make it wait forever. All such paths are checked and opened here:

- `open_regular` opens one file, and refuses links, pipes and devices; `read_regular` reads it;
- `create_file` makes a new file, and follows nothing that lies at its path; `new_folder` makes a
  folder that appears when it is complete;
- `inside` resolves a name that a file gives, and refuses what lies outside of its folder;
- `typed_file` resolves the name of a file that the user gives;
- `check_tree` looks at all that is in a folder.

The folder itself, and what is above it, were typed by the user and may be links.
"""

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from yamame.checks import UsageError
from yamame.system.messages import shortened

_READ_ONLY = os.O_RDONLY
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe returns at once
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_CLOSED_ON_EXEC = getattr(os, "O_CLOEXEC", 0)
_WRITING = os.O_WRONLY | os.O_RDWR
_DEEPEST = 32
"""Levels of folders below a run or an agent; this package makes fewer than ten."""
_SPARSE = 2**30
"""Bytes from which a file must have some of its content on the disk."""
_BLOCK = 512
"""Unit of ``st_blocks``, on every file system."""


class UnsafePathError(UsageError):
    """A link, a pipe or device, or a path that leads out of its folder.

    Args:
        path: The path.
        reason: What is wrong with it.
        remedy: What the user can do.
    """

    def __init__(
        self,
        path: str | Path,
        reason: str,
        remedy: str = "remove it, or copy the files that it refers to",
    ) -> None:
        super().__init__(f"{path} is rejected: {reason}", remedy=remedy)
        self.path = Path(path)
        self.reason = reason


def check_regular(path: str | Path) -> os.stat_result:
    """Return the status of a regular file, without following a link.

    Raises:
        FileNotFoundError: There is no such file.
        UnsafePathError: It is a link, a directory, a pipe, a socket or a device.
    """
    status = os.lstat(path)
    _require_regular(path, status)
    return status


def _require_regular(path: str | Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnsafePathError(path, f"it must be a regular file, not {_kind_of(status)}")


def open_regular(path: str | Path, flags: int = _READ_ONLY, mode: str = "rb") -> IO[bytes]:
    """Open a regular file in binary mode, without following a link and without waiting for a pipe.

    Args:
        path: The file.
        flags: Flags of ``os.open``. With ``os.O_CREAT`` a missing file is created.
        mode: Mode of ``os.fdopen`` that suits the flags.

    Raises:
        FileNotFoundError, UnsafePathError: As for `open_descriptor`.
    """
    return os.fdopen(open_descriptor(path, flags), mode)


def open_descriptor(path: str | Path, flags: int = _READ_ONLY) -> int:
    """Open a regular file as `open_regular` does, and return its descriptor.

    Args:
        path: The file.
        flags: Flags of ``os.open``.

    Raises:
        FileNotFoundError: There is no such file.
        UnsafePathError: It is a link, a directory, a pipe, a socket or a device; it is to be
            written and has a second name (a hard link); it claims a size that is not on the disk.
    """
    if not flags & os.O_CREAT or os.path.lexists(path):
        _require_one_name(path, check_regular(path), flags)
    # The flags matter only if the file was replaced since it was looked at.
    descriptor = os.open(path, flags | _NO_LINK | _NO_WAIT | _CLOSED_ON_EXEC, 0o666)
    try:
        status = os.fstat(descriptor)
        _require_regular(path, status)
        _require_one_name(path, status, flags)
        _require_content(path, status, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_one_name(path: str | Path, status: os.stat_result, flags: int) -> None:
    """Raise if writing to a file would change one with another name."""
    if flags & _WRITING and status.st_nlink > 1:
        reason = "it is to be written and has another name, too (a hard link)"
        raise UnsafePathError(path, reason, "replace it by a copy")


def _require_content(path: str | Path, status: os.stat_result, descriptor: int) -> None:
    """Raise if most of a large file is not on the disk, so that reading it would hardly end."""
    stored = status.st_blocks * _BLOCK
    if status.st_size < _SPARSE or stored >= status.st_size // 8:
        return
    # Some file systems do not count blocks; those that know no holes find one at the end alone.
    if os.lseek(descriptor, 0, os.SEEK_HOLE) < status.st_size:
        reason = f"its size is {status.st_size} bytes, the disk holds {stored}"
        raise UnsafePathError(path, reason, "restore it from a copy")
    os.lseek(descriptor, 0, os.SEEK_SET)


def read_regular(path: str | Path, *, most: int | None = None) -> bytes:
    """Return the content of a regular file, see `open_regular`.

    Args:
        path: The file.
        most: Largest size in bytes; None for any.

    Raises:
        FileNotFoundError: There is no such file.
        UnsafePathError: As for `open_regular`, or the file is larger than ``most``.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            reason = f"it has {size} bytes, at most {most} are read"
            raise UnsafePathError(path, reason, "restore it from a copy")
        return file.read()


def create_file(path: str | Path) -> IO[bytes]:
    """Create a file for writing. A file or link with this name is replaced, not written through.

    Raises:
        IsADirectoryError, PermissionError: A directory is in the way.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    # Fails if another process has put something there since.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | _CLOSED_ON_EXEC
    return os.fdopen(os.open(path, flags, 0o666), "wb")


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Make a folder that takes its place at ``path`` when the block ends without an error.

    It may replace an empty folder. It is made beside ``path``, whose parent must exist, in a hidden
    folder that is deleted at the end; that of a process that was killed stays, and can be deleted.

    Yields:
        The folder to write to.
    """
    # Of a random name: threads of one process, and processes of several machines, may do the same.
    scratch = tempfile.mkdtemp(prefix=".", suffix=".partial", dir=path.absolute().parent)
    try:
        # The outer folder is closed to other users, which this one should not be.
        folder = Path(scratch, "new")
        folder.mkdir()
        yield folder
        folder.rename(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def inside(home: str | Path, name: str | Path) -> Path:
    """Return the path of a file or folder that a file names, relative to ``home``.

    The path need not exist. No part of it below ``home`` may be a link.

    Args:
        home: Folder that the path must lie in.
        name: Relative path.

    Raises:
        UnsafePathError: The name is absolute or empty, leads out of ``home``, holds a NUL or is no
            UTF-8, is too long, or one of its parts is a link or lies below a file.
    """
    text = os.fspath(name)
    parts = Path(text).parts if "\0" not in text else ()
    if not parts or Path(text).is_absolute() or ".." in parts:
        raise UnsafePathError(shortened(text), f"it must be the name of a file in {home}")
    path = Path(home)
    for part in parts:
        path = path / part
        try:
            is_link = stat.S_ISLNK(os.lstat(path).st_mode)
        except FileNotFoundError:
            is_link = False
        except (NotADirectoryError, UnicodeEncodeError) as error:
            raise _impossible(path) from error
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise _impossible(path) from error
        if is_link:
            raise UnsafePathError(path, "it is a link")
    return path


def _impossible(path: Path) -> UnsafePathError:
    """Return the error of a path that no file can have."""
    reason = "it lies below a file, is too long or is no UTF-8"
    remedy = "restore the file that gives this name from a copy"
    return UnsafePathError(shortened(str(path)), reason, remedy)


def typed_file(path: str | Path) -> Path:
    """Return a file that a user has named, with links resolved.

    The file may be a link to another one in its folder, such as ``latest.pt``. A link that leads
    out of the folder could be a stranger's. Folders above the file may be links to anywhere.

    Raises:
        UnsafePathError: It is a link that leads out of its folder.
    """
    home = Path(path).absolute().parent.resolve()
    resolved = Path(path).resolve()
    if not resolved.is_relative_to(home):
        reason = f"it is a link that leads out of its folder, to {resolved}"
        raise UnsafePathError(path, reason, "name that file itself")
    return resolved


def check_tree(folder: str | Path, *, but_for: frozenset[str] = frozenset()) -> None:
    """Raise if a folder holds, at any depth, anything but folders and regular files.

    Args:
        folder: The folder. It may itself be a link; it need not exist.
        but_for: Names of entries that are skipped, with all that they contain.

    Raises:
        UnsafePathError: The first link, pipe, socket or device that is found; or folders are
            nested more than 32 levels deep.
    """
    waiting = [(os.fspath(folder), 0)]
    while waiting:
        place, depth = waiting.pop()
        if depth > _DEEPEST:
            reason = f"it lies more than {_DEEPEST} folders deep in {folder}"
            raise UnsafePathError(place, reason, "remove it")
        for entry in _entries(place):
            if entry.name in but_for:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # a run that is going on has deleted it
            if stat.S_ISDIR(status.st_mode):
                waiting.append((entry.path, depth + 1))
            elif not stat.S_ISREG(status.st_mode):
                raise UnsafePathError(entry.path, f"it is {_kind_of(status)}")


def _entries(folder: str) -> list["os.DirEntry[str]"]:
    """Return the entries of a folder by name; none if it does not exist."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def _kind_of(status: os.stat_result) -> str:
    mode = status.st_mode
    if stat.S_ISLNK(mode):
        return "a link"
    if stat.S_ISDIR(mode):
        return "a directory"
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"
