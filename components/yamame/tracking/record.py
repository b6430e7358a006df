"""Where the MLflow run of a run directory is: written down in ``mlflow.json``, and found again after a move.

A SQLite store is noted twice: absolute, and relative to the run directory where this lies beside or below the store, as
``../../mlflow.db``. A project that is moved or copied as a whole thus goes on in its own store, and a run that is moved
alone in the store where it began. No store is made where one is missing.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yamame.checks import UsageError
from yamame.files.atomic import write_json
from yamame.tracking.mlflow_store import SQLITE, MLflowRun, database_of


def write_record(record: Path, tracking_uri: str, run_id: str) -> None:
    """Notes a run and its store, which is absolute."""
    known = {"tracking_uri": tracking_uri, "run_id": run_id}
    database, folder = database_of(tracking_uri), record.parent.resolve()
    if database is not None and folder.is_relative_to(database.parent):
        known["relative_path"] = os.path.relpath(database, folder)
    write_json(record, known)


def reopen_recorded(record: Path, tracking_uri: str, *, tags: Mapping[str, Any]) -> MLflowRun:
    """Continues the run that is noted, in the first of its possible SQLite stores that holds it, or in its server.

    Args:
        record: The file with the note.
        tracking_uri: The store that new runs go to, where this one may have been moved as well.
        tags: As for `MLflowRun.reopen`.

    Raises:
        UsageError: Its store is gone, or does not hold it any more.
    """
    known = json.loads(record.read_text())
    uris = [known["tracking_uri"]]
    if database_of(uris[0]) is not None:
        beside = [(record.parent / path).resolve() for path in [known.get("relative_path")] if path]
        noted = [database_of(uri) for uri in (uris[0], tracking_uri)]
        stores = dict.fromkeys([*beside, *(store for store in noted if store is not None)])
        uris = [f"{SQLITE}{store}" for store in stores if store.is_file()]
        if not uris:
            raise UsageError(
                f"MLflowTracker: the store of the run must be there, found none at {' or '.join(map(str, stores))}; "
                f"bring it back, or delete {record} to go on in a new MLflow run"
            )
    for uri in uris:
        try:
            run = MLflowRun.reopen(uri, known["run_id"], tags=tags)
        except UsageError:
            if uri == uris[-1]:
                raise
            continue  # another project's store may lie where the run was moved to
        break
    write_record(record, uri, run.run_id)
    return run
