"""Where files that go to MLflow may come from, and go: a run's directory, and a store, may be a
stranger's.
"""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from yamame.system.messages import print_stderr


def lies_in(home: Path, path: Path) -> bool:
    """Whether a file or folder is there, and all of it in ``home``; a run's directory may be a
    stranger's.
    """
    if not path.exists():
        return False
    links = [file for file in (path, *path.rglob("*")) if file.is_symlink()]
    within = not links and path.resolve().is_relative_to(home.resolve())
    if not within:
        print_stderr(f"{path}: not stored, for it leads out of {home}")
    return within


def is_place_of(owner: str, uri: str, what: object) -> bool:
    """Whether the place for files is where MLflow puts it; a stranger's store may name any
    directory.
    """
    parts = urlsplit(uri)
    place = Path(unquote(parts.path)).resolve()
    takes = parts.scheme not in ("", "file") or place.parts[-2:] == (owner, "artifacts")
    if not takes:
        print_stderr(
            f"{what}: not stored, for artifacts must lie in .../{owner}/artifacts, got {place}"
        )
    return takes
