"""Location of the MLflow run of a run directory, recorded in ``mlflow.json``.

The record is written before the run is created: store, experiment and a number of its own, by which
the run is found if the process dies before it records the run's id.

A SQLite store is recorded twice: absolute, and relative to the run directory (``../../mlflow.db``)
if this lies beside or below the store. A project that is moved or copied as a whole thus continues
in its own store, and a run that is moved alone in the store where it began. A missing store is not
created.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from yamame.checks import UsageError
from yamame.files.atomic import read_json, write_json
from yamame.tracking.database import database_of, sqlite_uri
from yamame.tracking.mlflow_store import RUN_TAG, MLflowRun, NoAnswerError

RUN_FILE = "mlflow.json"
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def read_record(directory: Path) -> dict[str, str]:
    """Return ``tracking_uri``, ``experiment``, ``run_uuid`` and, if the run exists, ``run_id``.

    Raises:
        UsageError: The record is missing or damaged.
    """
    path = directory / RUN_FILE
    remedy = (
        f"restore it from a copy, or delete {path} and resume the run: everything is then sent to "
        "a new MLflow run"
    )
    try:
        record = read_json(path)
    except FileNotFoundError as error:
        raise UsageError(
            f"{path}: the record of the MLflow run is missing",
            remedy="restore it from a copy, or resume the run: everything is then sent to a new "
            "MLflow run",
        ) from error
    except UsageError as error:
        error.remedy = remedy
        raise

    needed = ["tracking_uri"]
    # Without an id the run is found by its number.
    needed += ["run_id"] if "run_id" in record else ["experiment", "run_uuid"]
    needed += ["relative_path"] if "relative_path" in record else []
    for key in needed:
        if not isinstance(record.get(key), str):
            raise UsageError(f"{path}: {key} is missing or no text", remedy=remedy)
    # They become part of queries, and the id part of a path.
    for key in ("run_id", "run_uuid"):
        if not _ID.fullmatch(record.get(key, "0")):
            raise UsageError(f"{path}: {key} must be letters and digits", remedy=remedy)
    return record


def write_record(directory: Path, record: Mapping[str, str]) -> None:
    """Write the record of a run directory, whose store is an absolute one."""
    record = {key: value for key, value in record.items() if key != "relative_path"}
    database = database_of(record["tracking_uri"])
    folder = directory.resolve()
    if database is not None and folder.is_relative_to(database.parent):
        record["relative_path"] = os.path.relpath(database, folder)
    write_json(directory / RUN_FILE, record)


def open_run(directory: Path, *, tracking_uri: str) -> MLflowRun | None:
    """Open the MLflow run of a run directory, in its server or the first of its SQLite stores that
    holds it.

    Args:
        directory: The run directory.
        tracking_uri: The store that the user named, to which this run may have been moved. If the
            run is on a server, this must be the same server.

    Returns:
        The run; None if it was never created.

    Raises:
        NoAnswerError: The store does not answer.
        UsageError: The store is missing, is another server, or does not hold the run any more.
    """
    record = read_record(directory)
    check_named(record, tracking_uri)
    if "run_id" not in record:
        # A process may have created it and died before it recorded the id.
        run = MLflowRun.find(
            record["tracking_uri"], record["experiment"], tag=RUN_TAG, value=record["run_uuid"]
        )
        if run is not None:
            write_record(directory, {**record, "run_id": run.run_id})
        return run

    uris = _stores(directory, record, tracking_uri)
    for uri in uris:
        try:
            run = MLflowRun.reopen(uri, record["run_id"])
        except NoAnswerError:
            raise
        except UsageError:
            # The store of another project may lie where the run was moved to.
            if uri == uris[-1]:
                raise
        else:
            break
    if uri != record["tracking_uri"]:
        write_record(directory, {**record, "tracking_uri": uri})
    return run


def check_named(record: Mapping[str, str], tracking_uri: str) -> None:
    """Raise if a run is recorded on another server than the store that the user named.

    A server that only the record names may be a stranger's, who would get the credentials in the
    user's environment.

    Args:
        record: The record.
        tracking_uri: The store that the user named on the command line, in conf or in the
            environment.

    Raises:
        UsageError: They differ.
    """
    recorded = record["tracking_uri"]
    is_named = recorded.rstrip("/") == tracking_uri.rstrip("/")
    if database_of(recorded) is None and not is_named:
        raise UsageError(
            f"MLflowTracker: the run is recorded in {recorded}, the store given is {tracking_uri}",
            remedy=f"if it is yours, set MLFLOW_TRACKING_URI={recorded}",
        )


def _stores(directory: Path, record: Mapping[str, str], tracking_uri: str) -> list[str]:
    """Return the server of a run, or those of its SQLite databases that exist."""
    recorded = record["tracking_uri"]
    database = database_of(recorded)
    if database is None:
        return [recorded]

    candidates = []
    if "relative_path" in record:
        # Links are not resolved, so that one is refused when it is opened.
        path = os.path.normpath(directory.resolve() / record["relative_path"])
        candidates.append(Path(path))
    candidates.append(database)
    own = database_of(tracking_uri)
    if own is not None:
        candidates.append(own)

    existing: list[str] = []
    for candidate in candidates:
        uri = sqlite_uri(candidate)
        # A pipe, or a link to nowhere, is refused when it is opened.
        if os.path.lexists(candidate) and uri not in existing:
            existing.append(uri)
    if not existing:
        places = " or ".join(map(str, dict.fromkeys(candidates)))
        raise UsageError(
            f"MLflowTracker: the store of the run must exist, found none at {places}",
            remedy=f"restore it, or delete {directory / RUN_FILE} to continue in a new MLflow run",
        )
    return existing
