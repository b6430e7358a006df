"""Reading what a run left in an MLflow store; nothing is written there."""

import os
from pathlib import Path

from yamame.checks import UsageError
from yamame.tracking.mlflow_store import SQLITE, absolute_uri, connect

_PROGRESS_BAR = "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"


def download_artifacts(tracking_uri: str, run_id: str, folder: str, target: Path) -> list[Path]:
    """Copies the files of an artifact folder of a run, sorted by name.

    Args:
        tracking_uri: The store.
        run_id: The run.
        folder: The artifact folder; one that is not there has no files.
        target: Local directory for the copies.

    Raises:
        UsageError: There is no such store, or no such run in it.
    """
    uri = absolute_uri(tracking_uri)
    if uri.startswith(SQLITE) and not Path(uri.removeprefix(SQLITE)).is_file():
        raise UsageError(
            f"{run_id} is no run directory, and there is no MLflow store {tracking_uri} to look in"
        )
    os.environ.setdefault(_PROGRESS_BAR, "false")
    client = connect(uri)
    from mlflow.exceptions import MlflowException

    try:
        client.get_run(run_id)
        names = sorted(item.path for item in client.list_artifacts(run_id, folder) if not item.is_dir)
        return [Path(client.download_artifacts(run_id, name, str(target))) for name in names]
    except MlflowException as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"{run_id} is no run directory, and no run in the MLflow store {uri}: {reason}"
        ) from error
