"""One run in an MLflow store, by its client alone: no global active run, several runs per process.

The database is SQLite by default, artifacts lie in ``mlruns`` beside it. MLflow is imported when a run is
opened.
"""

import fcntl
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yamame.checks import UsageError
from yamame.files.run_directory import check_folder
from yamame.tracking.summary import Status

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

SQLITE = "sqlite:///"
_METRICS_PER_BATCH, _PARAMS_PER_BATCH = 1000, 100
_LONGEST_KEY, _LONGEST_VALUE = 250, 6000
_FORBIDDEN = re.compile(r"[^\w\-. :/]", re.ASCII)


def database_of(tracking_uri: str) -> Path | None:
    """The file of a SQLite store; None for a store of another kind."""
    return Path(tracking_uri.removeprefix(SQLITE)) if tracking_uri.startswith(SQLITE) else None


def absolute_uri(tracking_uri: str) -> str:
    """A relative SQLite path made absolute, so that a run is found again from another directory."""
    database = database_of(tracking_uri)
    return tracking_uri if database is None else f"{SQLITE}{database.resolve()}"


def clean_key(key: str) -> str:
    """A name MLflow accepts.

    >>> clean_key("success@64")
    'success_64'
    """
    return _FORBIDDEN.sub("_", key)[:_LONGEST_KEY]


def clean_value(value: Any) -> str:
    """A parameter or tag value MLflow accepts; what is too long ends in an ellipsis."""
    text = str(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


@dataclass(frozen=True)
class MLflowRun:
    """A run that is open for writing. Made by `create` or `reopen`."""

    client: "MlflowClient"
    run_id: str

    @classmethod
    def create(cls, tracking_uri: str, experiment: str, *, name: str, tags: Mapping[str, Any]) -> "MLflowRun":
        """Starts a run, making the experiment when it is not there."""
        client = connect(tracking_uri)
        values = {"mlflow.source.name": sys.argv[0], **tags}
        run = client.create_run(
            _experiment_id(client, tracking_uri, experiment),
            run_name=name,
            tags={clean_key(key): clean_value(value) for key, value in values.items()},
        )
        return cls(client, run.info.run_id)

    @classmethod
    def reopen(cls, tracking_uri: str, run_id: str, *, tags: Mapping[str, Any]) -> "MLflowRun":
        """Continues a run; the tags replace those of the same names.

        Raises:
            UsageError: The store does not hold it, or it was deleted there.
        """
        from mlflow.exceptions import MlflowException

        client = connect(tracking_uri)
        try:
            deleted = client.get_run(run_id).info.lifecycle_stage == "deleted"
        except MlflowException:
            deleted = True
        if deleted:
            raise UsageError(
                f"MLflowTracker: the MLflow run {run_id} must be in {tracking_uri}, it is not there"
            )
        client.update_run(run_id, status="RUNNING")
        for key, value in tags.items():
            client.set_tag(run_id, clean_key(key), clean_value(value))
        return cls(client, run_id)

    def last_steps(self) -> dict[str, int]:
        """The largest step stored for each metric."""
        # Public ``data.metrics`` drops the steps, and reading whole histories takes seconds on long runs.
        return {metric.key: metric.step for metric in self.client.get_run(self.run_id).data._metric_objs}

    def log_metrics(self, metrics: Sequence["Metric"]) -> None:
        """Stores metrics of any keys and steps in one transaction (one per thousand)."""
        for start in range(0, len(metrics), _METRICS_PER_BATCH):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + _METRICS_PER_BATCH])

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Stores parameters, which MLflow never lets change."""
        from mlflow.entities import Param

        items = [Param(clean_key(key), clean_value(value)) for key, value in params.items()]
        for start in range(0, len(items), _PARAMS_PER_BATCH):
            self.client.log_batch(self.run_id, params=items[start : start + _PARAMS_PER_BATCH])

    def finish(self, status: Status) -> None:
        """Closes the run."""
        self.client.set_terminated(self.run_id, status=status)


def connect(tracking_uri: str) -> "MlflowClient":
    """A client, after keeping MLflow from talking: no log lines, progress bars, usage statistics, foreign warnings.

    Raises:
        UsageError: MLflow can use no such store.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    try:
        with warnings.catch_warnings(), _alone_with(tracking_uri):
            warnings.simplefilter("ignore")
            from mlflow.tracking import MlflowClient

            for name in ("mlflow", "alembic"):
                logging.getLogger(name).setLevel(logging.WARNING)
            client = MlflowClient(tracking_uri)
            client.search_experiments(max_results=1)
    except Exception as error:  # databases, drivers and servers make MLflow raise almost anything
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UsageError(
            f"tracking_uri: must be a store that MLflow can use, got {tracking_uri}: {reason}"
        ) from error
    return client


def check_store(cfg: Mapping[str, Any]) -> None:
    """Refuses a store that cannot take a new run, before anything is written; a new database is not yet made.

    Args:
        cfg: The composed configuration; without a ``logger`` that has a store there is nothing to refuse, and a run
            that is resumed knows its own.

    Raises:
        UsageError: Names the store and what is wrong with it.
    """
    node = cfg.get("logger") or {}
    if "tracking_uri" not in node or cfg.get("resume") is True:
        return
    uri = absolute_uri(node["tracking_uri"])
    database = database_of(uri)
    if database is not None and not database.exists():
        check_folder(database.parent, "logger.tracking_uri")
    else:
        _find_experiment(connect(uri), uri, node["experiment"])


@contextmanager
def _alone_with(tracking_uri: str) -> Iterator[None]:
    """Keeps other processes waiting: MLflow fails where two of them set up one SQLite database at once."""
    database = database_of(tracking_uri)
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(database.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _find_experiment(client: "MlflowClient", tracking_uri: str, name: str) -> str | None:
    """The id of an experiment, if there is one that takes runs or none of this name."""
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage == "deleted":
        raise UsageError(
            f"logger.experiment: must not be deleted, but {name} is in {tracking_uri}; restore it there with "
            f"mlflow experiments restore --experiment-id {found.experiment_id}, or choose another"
        )
    return None if found is None else str(found.experiment_id)


def _experiment_id(client: "MlflowClient", tracking_uri: str, name: str) -> str:
    from mlflow.exceptions import MlflowException

    found = _find_experiment(client, tracking_uri, name)
    if found is not None:
        return found
    database = database_of(tracking_uri)
    location = None if database is None else (database.parent / "mlruns" / clean_key(name)).as_uri()
    try:
        return str(client.create_experiment(name, artifact_location=location))
    except MlflowException:
        # Another process made it in the meantime; anything else shows up again here.
        found = _find_experiment(client, tracking_uri, name)
        if found is None:
            raise
        return found
