"""Places of the files of a run in MLflow.

A store may be a stranger's, and names a place for each run. The files of a SQLite store
are in ``mlruns`` beside the database, wherever the store says they are. A server that the user
named decides about its own files, but gets no files, and no credentials, for another host.
"""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from yamame.checks import UsageError
from yamame.files.paths import check_tree, inside
from yamame.system.messages import print_stderr
from yamame.tracking.database import database_of

if TYPE_CHECKING:
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

_ARTIFACTS = "artifacts"
_FOLDERS = ("mlruns", "mlartifacts")
"""Folders in which MLflow, and we, keep the files of experiments beside a database."""
_LOCAL = ("", "file")
_HTTP = ("http", "https", "mlflow-artifacts")
_BUCKETS = ("s3", "r2", "b2", "gs", "wasbs", "abfss", "dbfs", "hdfs", "viewfs")
"""Schemes of storage that a server can share with its users, who have credentials for it."""


class UnknownPlaceError(UsageError):
    """A location of files that the store should not have for them.

    Args:
        uri: The location.
        condition: What it must be.
    """

    def __init__(self, uri: str, condition: str) -> None:
        super().__init__(f"artifacts must {condition}, got {uri}")


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


def local_place(tracking_uri: str, owner: str, uri: str) -> Path | None:
    """Return the folder in which a SQLite store keeps the files of a run or model.

    The folder need not exist. It is the one beside the database, also if the project was moved or
    copied since the store recorded a folder.

    Args:
        tracking_uri: The store.
        owner: Id of the run or model.
        uri: Location that the store names for its files.

    Returns:
        The folder; None if the store is not a SQLite database.

    Raises:
        UnknownPlaceError: The location is not a folder of ``mlruns``.
        UnsafePathError: There is a link, a pipe or a device in the folder or above it.
    """
    database = database_of(tracking_uri)
    if database is None:
        return None

    condition = f"lie in {database.parent / _FOLDERS[0]}/.../{owner}/{_ARTIFACTS}"
    start = max(uri.rfind(f"/{name}/") for name in _FOLDERS)
    # What stands before is not used, and names of the user's folders may have any characters.
    parts = _local_parts(uri[start:] if uri.startswith("/") and start >= 0 else uri)
    if parts is None or parts[-2:] != (owner, _ARTIFACTS):
        raise UnknownPlaceError(uri, condition)
    # The innermost one: a project may itself lie in a folder with this name.
    starts = [index for index, part in enumerate(parts[:-2]) if part in _FOLDERS]
    if not starts or starts[-1] + 1 == len(parts) - 2:
        raise UnknownPlaceError(uri, condition)

    folder = inside(database.parent, Path(*parts[starts[-1] :]))
    check_tree(folder)
    return folder


def _local_parts(uri: str) -> tuple[str, ...] | None:
    """Return the parts of the absolute path that MLflow would open; None if there is no such path.

    Nothing but the path may stand in the location: MLflow and the libraries that it uses disagree
    about the rest.
    """
    from mlflow.utils.file_utils import local_file_uri_to_path

    if any(character in uri for character in "?#;\\\0"):
        return None
    split = urlsplit(uri)
    if split.scheme not in _LOCAL or split.netloc:
        return None
    path = Path(local_file_uri_to_path(uri))
    if not path.is_absolute() or ".." in path.parts:
        return None
    return path.parts


def repository_of(tracking_uri: str, owner: str, uri: str) -> "ArtifactRepository":
    """Return MLflow's writer and reader of the files of a run or model.

    Args:
        tracking_uri: The store. A server must be one that the user named.
        owner: Id of the run or model.
        uri: Location that the store names for its files.

    Raises:
        UnknownPlaceError: See `local_place`; or a server names a folder of this machine that is not
            the owner's, another host, or another kind of storage.
        UnsafePathError: See `local_place`.
    """
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    folder = local_place(tracking_uri, owner, uri)
    if folder is not None:
        return LocalArtifactRepository(folder.absolute().as_uri())

    scheme = urlsplit(uri).scheme
    if scheme in _LOCAL:
        parts = _local_parts(uri)
        if parts is None or parts[-2:] != (owner, _ARTIFACTS):
            raise UnknownPlaceError(uri, f"lie in .../{owner}/{_ARTIFACTS}")
    elif scheme in _HTTP:
        _check_host(tracking_uri, uri)
    elif scheme not in _BUCKETS:
        raise UnknownPlaceError(uri, f"lie on {tracking_uri}, or in one of {', '.join(_BUCKETS)}")
    return get_artifact_repository(uri, tracking_uri=tracking_uri)


def _check_host(tracking_uri: str, uri: str) -> None:
    """Raise for a location on another host than the server, who would get its credentials."""
    server = urlsplit(tracking_uri)
    place = urlsplit(uri)
    is_same = place.netloc == server.netloc and place.scheme == server.scheme
    # MLflow takes the server itself for ``mlflow-artifacts:/``.
    is_proxied = place.scheme == "mlflow-artifacts" and place.netloc in ("", server.netloc)
    if not (is_same or is_proxied):
        raise UnknownPlaceError(uri, f"lie on the host of {tracking_uri}")
