"""Paths that a file or a directory from elsewhere may name.

A run directory, a data set or a store can come from a stranger. A link in it, or a name like
``../x``, would make this process read or write files that have nothing to do with it, and a pipe
would make it wait forever. All such paths are checked and opened here:

- `open_regular` opens one file, and refuses links, pipes and devices;
- `inside` resolves a name that a file gives, and refuses what lies outside of its folder;
- `check_tree` looks at all that is in a folder.

The folder itself, and what is above it, were typed by the user and may be links.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from yamame.checks import UsageError

_READ_ONLY = os.O_RDONLY
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe returns at once
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class UnsafePathError(UsageError):
    """A link, a pipe or device, or a path that leads out of its folder.

    Args:
        path: The path.
        reason: What is wrong with it.
    """

    def __init__(self, path: str | Path, reason: str) -> None:
        remedy = "remove it, or copy the files that it stands for"
        super().__init__(f"{path} is refused: {reason}", remedy=remedy)
        self.path = Path(path)
        self.reason = reason


def check_regular(path: str | Path) -> os.stat_result:
    """Return the status of a regular file, without following a link.

    Raises:
        FileNotFoundError: There is no such file.
        UnsafePathError: It is a link, a directory, a pipe, a socket or a device.
    """
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise UnsafePathError(path, f"it must be a regular file, not {_kind_of(status)}")
    return status


def open_regular(path: str | Path, flags: int = _READ_ONLY, mode: str = "rb") -> IO[bytes]:
    """Open a regular file in binary mode, without following a link and without waiting for a pipe.

    Args:
        path: The file.
        flags: Flags of ``os.open``. With ``os.O_CREAT`` a missing file is created.
        mode: Mode of ``os.fdopen`` that suits the flags.

    Raises:
        FileNotFoundError: There is no such file.
        UnsafePathError: It is a link, a directory, a pipe, a socket or a device.
    """
    if not flags & os.O_CREAT or os.path.lexists(path):
        check_regular(path)
    # The flags matter only if the file was replaced since it was looked at.
    descriptor = os.open(path, flags | _NO_LINK | _NO_WAIT, 0o666)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafePathError(path, f"it must be a regular file, not {_kind_of(status)}")
        return os.fdopen(descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise


def inside(home: str | Path, name: str | Path) -> Path:
    """Return the path of a file or folder that a file names, relative to ``home``.

    The path need not exist. No part of it below ``home`` may be a link.

    Args:
        home: Folder that the path must lie in.
        name: Relative path.

    Raises:
        UnsafePathError: The name is absolute or empty, leads out of ``home``, holds a NUL, or one
            of its parts is a link.
    """
    text = os.fspath(name)
    parts = Path(text).parts if "\0" not in text else ()
    if not parts or Path(text).is_absolute() or ".." in parts:
        raise UnsafePathError(text, f"it must be the name of a file in {home}")
    path = Path(home)
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise UnsafePathError(path, "it is a link")
    return path


def check_tree(folder: str | Path, *, but_for: frozenset[str] = frozenset()) -> None:
    """Raise if a folder holds, at any depth, anything but folders and regular files.

    Args:
        folder: The folder. It may itself be a link; it need not exist.
        but_for: Names of entries that are skipped, with all that they contain.

    Raises:
        UnsafePathError: The first link, pipe, socket or device that is found.
    """
    for entry in _walk(folder, but_for):
        status = entry.stat(follow_symlinks=False)
        is_allowed = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
        if not is_allowed:
            raise UnsafePathError(entry.path, f"it is {_kind_of(status)}")


def _walk(folder: str | Path, but_for: frozenset[str]) -> Iterator["os.DirEntry[str]"]:
    """Yield the entries of a folder at all depths; links are not followed."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name in but_for:
            continue
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, but_for)


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
