"""Where the MLflow run of a run directory is: written down in ``mlflow.json``, and found again
after a move.

The record is there before the run: store, experiment and a number of its own, by which the run is
found if the process dies before it notes the run's id.

A SQLite store is noted twice: absolute, and relative to the run directory where this lies beside or
below the store, as ``../../mlflow.db``. A project that is moved or copied as a whole thus goes on
in its own store, and a run that is moved alone in the store where it began. No store is made where
one is missing.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from yamame.checks import UsageError
from yamame.files.atomic import read_json, write_json
from yamame.tracking.mlflow_store import RUN_TAG, SQLITE, MLflowRun, NoAnswerError, database_of

RUN_FILE = "mlflow.json"


def read_record(directory: Path) -> dict[str, str]:
    """What is noted: ``tracking_uri``, ``experiment``, ``run_uuid`` and, once the run is there,
    ``run_id``.
    """
    return read_json(directory / RUN_FILE)


def write_record(directory: Path, record: Mapping[str, str]) -> None:
    """Notes it; the store is absolute."""
    known = {key: value for key, value in record.items() if key != "relative_path"}
    database, folder = database_of(known["tracking_uri"]), directory.resolve()
    if database is not None and folder.is_relative_to(database.parent):
        known["relative_path"] = os.path.relpath(database, folder)
    write_json(directory / RUN_FILE, known)


def open_run(directory: Path, *, tracking_uri: str | None = None) -> MLflowRun | None:
    """The MLflow run of a run directory, in the first of its possible SQLite stores that holds it,
    or in its server.

    Args:
        directory: The run directory.
        tracking_uri: The store that new runs go to, where this one may have been moved as well. Of
            a server, it must be the one that is noted.

    Returns:
        None if the run was never made.

    Raises:
        UsageError: Its store is gone, is another server, or does not hold it any more; a
            `NoAnswerError`, if the store cannot be asked.
    """
    record = read_record(directory)
    if "run_id" not in record:
        # A process may have made it that died before it could say so.
        place = record["tracking_uri"], record["experiment"]
        run = MLflowRun.find(*place, tag=RUN_TAG, value=record["run_uuid"])
        if run is not None:
            write_record(directory, {**record, "run_id": run.run_id})
        return run
    for uri in (uris := _stores(directory, record, tracking_uri)):
        try:
            run = MLflowRun.reopen(uri, record["run_id"])
        except UsageError as error:
            if isinstance(error, NoAnswerError) or uri == uris[-1]:
                raise
            continue  # another project's store may lie where the run was moved to
        break
    if uri != record["tracking_uri"]:
        write_record(directory, {**record, "tracking_uri": uri})
    return run


def _stores(directory: Path, record: Mapping[str, str], tracking_uri: str | None) -> list[str]:
    """The stores that may hold the run: its server, or those of its SQLite databases that are
    there.
    """
    server = record["tracking_uri"]
    noted = database_of(server)
    if noted is None:
        if tracking_uri not in (None, server):  # a stranger's run would get the user's credentials
            raise UsageError(
                f"MLflowTracker: the run is noted in {server}, the store given is {tracking_uri}; if it is yours, set "
                f"MLFLOW_TRACKING_URI={server}"
            )
        return [server]
    others = [directory.resolve() / record["relative_path"]] if "relative_path" in record else []
    own = None if tracking_uri is None else database_of(tracking_uri)
    databases = dict.fromkeys(
        [*(path.resolve() for path in others), noted, *([own] if own else [])]
    )
    there = [f"{SQLITE}{database}" for database in databases if database.is_file()]
    if not there:
        raise UsageError(
            f"MLflowTracker: the store of the run must be there, found none at {' or '.join(map(str, databases))}; "
            f"bring it back, or delete {directory / RUN_FILE} to go on in a new MLflow run"
        )
    return there
