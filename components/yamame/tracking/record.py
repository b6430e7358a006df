"""Location of the MLflow run of a run directory, recorded in ``mlflow.json``.

The record is written before the run is created: store, experiment and a number of its own, by which
the run is found if the process dies before it records the run's id.

A SQLite store is recorded twice: absolute, and relative to the run directory (``../../mlflow.db``)
if this lies beside or below the store. A project that is moved or copied as a whole thus continues
in its own store, and a run that is moved alone in the store where it began. A missing store is not
created.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from yamame.checks import UsageError
from yamame.files.atomic import read_json, write_json
from yamame.tracking.mlflow_store import RUN_TAG, SQLITE, MLflowRun, NoAnswerError, database_of

RUN_FILE = "mlflow.json"


def read_record(directory: Path) -> dict[str, str]:
    """Return ``tracking_uri``, ``experiment``, ``run_uuid`` and, if the run exists, ``run_id``."""
    return read_json(directory / RUN_FILE)


def write_record(directory: Path, record: Mapping[str, str]) -> None:
    """Write the record of a run directory, whose store is an absolute one."""
    record = {key: value for key, value in record.items() if key != "relative_path"}
    database = database_of(record["tracking_uri"])
    folder = directory.resolve()
    if database is not None and folder.is_relative_to(database.parent):
        record["relative_path"] = os.path.relpath(database, folder)
    write_json(directory / RUN_FILE, record)


def open_run(directory: Path, *, tracking_uri: str | None = None) -> MLflowRun | None:
    """Open the MLflow run of a run directory, in its server or the first of its SQLite stores that
    holds it.

    Args:
        directory: The run directory.
        tracking_uri: The store of new runs, to which this run may have been moved. If the run is on
            a server, this must be the same server.

    Returns:
        The run; None if it was never created.

    Raises:
        NoAnswerError: The store does not answer.
        UsageError: The store is missing, is another server, or does not hold the run any more.
    """
    record = read_record(directory)
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


def _stores(directory: Path, record: Mapping[str, str], tracking_uri: str | None) -> list[str]:
    """Return the server of a run, or those of its SQLite databases that exist."""
    recorded = record["tracking_uri"]
    database = database_of(recorded)
    if database is None:
        # A server that only the record names may be a stranger's, who would get the credentials in
        # the user's environment.
        if tracking_uri not in (None, recorded):
            raise UsageError(
                f"MLflowTracker: the run is recorded in {recorded}, the store given is "
                f"{tracking_uri}",
                remedy=f"if it is yours, set MLFLOW_TRACKING_URI={recorded}",
            )
        return [recorded]

    candidates = []
    if "relative_path" in record:
        candidates.append((directory.resolve() / record["relative_path"]).resolve())
    candidates.append(database)
    own = None if tracking_uri is None else database_of(tracking_uri)
    if own is not None:
        candidates.append(own)

    existing: list[str] = []
    for candidate in candidates:
        uri = f"{SQLITE}{candidate}"
        if candidate.is_file() and uri not in existing:
            existing.append(uri)
    if not existing:
        places = " or ".join(map(str, dict.fromkeys(candidates)))
        raise UsageError(
            f"MLflowTracker: the store of the run must exist, found none at {places}",
            remedy=f"restore it, or delete {directory / RUN_FILE} to continue in a new MLflow run",
        )
    return existing
