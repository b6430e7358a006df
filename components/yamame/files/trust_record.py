"""Record of the runs that this user has made on this machine, so that they need no ``trust`` later.

A run whose configuration names classes of other packages needs ``trust=[mylab.]`` wherever it is
loaded, because its directory could have come from somebody else. That a command line has named
them is recorded outside of the run directory, where no archive that is unpacked over it can claim
the same: a line of JSON in ``$XDG_STATE_HOME/yamame/trusted.jsonl`` (by default below
``~/.local/state``). ``YAMAME_TRUST_RECORD`` is the path of another file, or ``off``.

A run directory is recognised by its real path, device, inode and owner, and only a configuration
whose sections with such names are equal to the recorded ones is trusted: what else replaces the
files in the directory gains nothing. A module must also be the same file as it was, so that one of
the same name in the working directory is not imported for it.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yamame.checks import UsageError
from yamame.files.paths import UnsafePathError, open_descriptor, read_regular
from yamame.files.untrusted import Need, needs_of

VARIABLE = "YAMAME_TRUST_RECORD"
"""Environment variable with the path of the record, or ``off``."""
_OFF = ("off", "0", "false", "no")
_LARGEST = 2**19
"""Bytes from which runs that no longer exist are removed."""
_MOST_READ = 2**26
_LONGEST_WAIT_S = 5.0
_PAUSE_S = 0.01
_LEVELS = 4
"""Folders between a run and its files, as in ``<run>/model/data/agent``."""


@dataclass(frozen=True)
class Recorded:
    """Trust that is recorded for a run.

    Attributes:
        packages: Prefixes for ``trust``; empty if the run is not recorded, or another module would
            be imported now.
        files: Whether the files that its configuration names may be opened.
        elsewhere: Modules that are not found where the run imported them from, with that folder.
    """

    packages: tuple[str, ...] = ()
    files: bool = False
    elsewhere: Mapping[str, str] = field(default_factory=dict)


def record_file() -> Path | None:
    """Return the file of the record; None if it is turned off, or there is no place for it.

    >>> os.environ[VARIABLE] = "off"
    >>> record_file()
    """
    given = os.environ.get(VARIABLE, "")
    if given.lower() in _OFF:
        return None
    if given:
        return Path(given).absolute()
    # The XDG Base Directory Specification declares relative paths invalid.
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        try:
            state = Path.home() / ".local" / "state"
        except RuntimeError:  # no home directory
            return None
    return state / "yamame" / "trusted.jsonl"


def record_run(directory: Path, config: Mapping[str, Any]) -> None:
    """Record that a command line or a program has named the classes of a run.

    Nothing is recorded for runs that need no trust. A home that cannot be written to is no failure.

    Args:
        directory: Run directory.
        config: Configuration that was composed from the command line, never one from a file.
    """
    file = record_file()
    needs = _needs(config)
    if file is None or not needs:
        return
    modules = {name: _origin(name) for name in _top_levels(needs)}
    # A class of the program that was started has no name that another program could import.
    if None in modules.values():
        return
    with contextlib.suppress(OSError, UnsafePathError):
        entry = {
            **_identity(directory),
            "digest": _digest(config, needs),
            "packages": _packages(needs),
            "modules": modules,
        }
        _append(file, entry)


def recorded(source: str | Path, config: Any) -> Recorded:
    """Return the trust recorded for the run that a configuration was read from.

    Args:
        source: Run directory, or a file or folder in it.
        config: Configuration in it.
    """
    file = record_file()
    if file is None or not isinstance(config, Mapping):
        return Recorded()
    needs = _needs(config)
    place = Path(os.path.realpath(source))
    if not needs or not os.path.exists(place):
        return Recorded()

    digest = _digest(config, needs)
    known = [entry for entry in _entries(file) if entry.get("digest") == digest]
    identities = []
    for folder in (place, *list(place.parents)[:_LEVELS]):
        with contextlib.suppress(OSError):
            identities.append(_identity(folder))
    elsewhere: dict[str, str] = {}
    for entry in reversed(known):
        identity = {name: entry.get(name) for name in ("path", "device", "inode", "owner")}
        if identity not in identities or entry["owner"] != os.geteuid():
            continue
        moved = _moved(entry)
        if not moved:
            return Recorded(tuple(_packages(needs)), files=True)
        elsewhere |= moved
    return Recorded(elsewhere=elsewhere)


def _needs(config: Mapping[str, Any]) -> list[Need]:
    """Return what a configuration needs trust in; nothing if no trust is enough for it."""
    try:
        return list(needs_of(config))
    except UsageError:
        return []


def _moved(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the modules of an entry that would now be imported from another file."""
    modules = entry.get("modules")
    if not isinstance(modules, dict):
        return {"": ""}
    moved = {}
    for name, origin in modules.items():
        if _origin(name) != origin:
            moved[name] = os.path.dirname(str(origin).partition(os.pathsep)[0])
    return moved


def _identity(directory: Path) -> dict[str, Any]:
    """Return what another directory cannot have: path, device, inode and owner together."""
    path = os.path.realpath(directory)
    status = os.stat(path)
    return {
        "path": path,
        "device": status.st_dev,
        "inode": status.st_ino,
        "owner": status.st_uid,
    }


def _digest(config: Mapping[str, Any], needs: Sequence[Need]) -> str:
    """Return a digest of the sections of a configuration that need trust, as a whole: arguments of
    a trusted class count as well.
    """
    sections = {need.path[0]: config[need.path[0]] for need in needs}
    text = json.dumps(sections, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _packages(needs: Sequence[Need]) -> list[str]:
    return sorted({need.prefix for need in needs if need.prefix is not None})


def _top_levels(needs: Sequence[Need]) -> list[str]:
    return sorted({prefix.partition(".")[0] for prefix in _packages(needs)})


def _origin(name: str) -> str | None:
    """Return the file or the folders that a module is imported from, without importing it."""
    module = sys.modules.get(name)
    try:
        spec = getattr(module, "__spec__", None) or importlib.util.find_spec(name)
    except Exception:  # finders of other packages may raise anything
        return None
    if spec is None:
        return None
    if spec.has_location and spec.origin:
        return os.path.realpath(spec.origin)
    # A package without __init__.py has folders alone.
    folders = list(spec.submodule_search_locations or ())
    return os.pathsep.join(map(os.path.realpath, folders)) or spec.origin


def _entries(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of the record; none if it is missing, damaged or writable for others."""
    try:
        status = os.lstat(file)
        # Another user's lines would have code of theirs run.
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            return
        content = read_regular(file, most=_MOST_READ)
    except (OSError, UnsafePathError):
        return
    for line in content.splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue  # cut off by a full disk
        if isinstance(entry, dict):
            yield entry


def _append(file: Path, entry: Mapping[str, Any]) -> None:
    """Append a line, unless the record has it; any number of processes may do so at once."""
    if any({**known, "time": None} == {**entry, "time": None} for known in _entries(file)):
        return
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    line = json.dumps({**entry, "time": round(time.time())}) + "\n"
    with _locked(file) as descriptor:
        if os.fstat(descriptor).st_size > _LARGEST:
            _prune(file, line)
        else:
            os.write(descriptor, line.encode())


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[int]:
    """Within the block, no other process writes the record."""
    while True:
        descriptor = open_descriptor(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            _wait_for_lock(descriptor)
            # Another process may have replaced the file while this one waited.
            if os.path.samestat(os.fstat(descriptor), os.stat(file)):
                os.fchmod(descriptor, 0o600)
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _wait_for_lock(descriptor: int) -> None:
    """Lock a file; a lock that no process gives back must not keep a run from beginning.

    Raises:
        BlockingIOError: Other processes hold it for seconds.
    """
    end = time.monotonic() + _LONGEST_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE_S)


def _prune(file: Path, line: str) -> None:
    """Replace the record by its lines about directories that still exist, and another line."""
    kept = []
    for entry in _entries(file):
        with contextlib.suppress(OSError, TypeError, KeyError, ValueError):
            identity = _identity(Path(entry["path"]))
            if identity.items() <= entry.items():
                kept.append(json.dumps(entry) + "\n")
    # Runs that all exist would have it pruned each time: the older half is forgotten then.
    text = "".join(kept)
    if len(text) > _LARGEST // 2:
        kept = kept[len(kept) // 2 :]
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as new:
        new.write("".join([*kept, line]))
    os.replace(temporary, file)
