"""Places of files that go to MLflow. A run directory, and a store, may be a stranger's: neither may
name other places.
"""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from yamame.system.messages import print_stderr


def lies_in(home: Path, path: Path) -> bool:
    """Return whether a file or folder exists and lies in ``home``, with everything in it."""
    if not path.exists():
        return False

    is_within = path.resolve().is_relative_to(home.resolve())
    for file in (path, *path.rglob("*")):
        if file.is_symlink():
            is_within = False
    if not is_within:
        print_stderr(f"{path}: not stored, it leads out of {home}")
    return is_within


def is_place_of(owner: str, uri: str, stored: object) -> bool:
    """Return whether an artifact location is one that MLflow itself gives to a run or model.

    Args:
        owner: Id of the run or model.
        uri: The location that the store names for it.
        stored: Name of the file to store, for the message.
    """
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        return True  # a server decides about its own files

    location = Path(unquote(parts.path)).resolve()
    if location.parts[-2:] == (owner, "artifacts"):
        return True
    print_stderr(
        f"{stored}: not stored, artifacts must lie in .../{owner}/artifacts, got {location}"
    )
    return False
