"""One run in an MLflow store, through MLflow's client: no global active run, several runs per
process.

The store is a SQLite database by default, with artifacts in ``mlruns`` beside it. MLflow is
imported when a run is opened.
"""

import json
import logging
import os
import re
import sqlite3
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from uuid import uuid4

from yamame.checks import SettingError, UsageError
from yamame.files.atomic import TEMPORARY_SUFFIX, is_left_behind
from yamame.files.run_directory import check_folder
from yamame.system.garbage import collection_paused
from yamame.system.messages import one_line, print_stderr
from yamame.tracking.database import SQLITE as SQLITE
from yamame.tracking.database import (
    ForeignDatabaseError,
    check_beside,
    check_is_store,
    check_opens,
    create_tables,
    exclusive_access,
    sqlite_uri,
)
from yamame.tracking.database import absolute_uri as absolute_uri
from yamame.tracking.database import database_of as database_of
from yamame.tracking.names import clean_key as clean_key
from yamame.tracking.names import clean_value as clean_value
from yamame.tracking.pages import EXPERIMENT_TAGS
from yamame.tracking.places import lies_in, repository_of
from yamame.tracking.summary import Status

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

Answer = TypeVar("Answer")

METRICS_PER_BATCH = 1000
_ITEMS_PER_BATCH = 100
RUN_TAG = "yamame.run_uuid"
"""Tag with the number that a run directory gave its run before the run existed."""
_MARK_TAG = "yamame.mark"
_REFUSED_TAG = "yamame.refused"
"""Tag of a run of which MLflow refused an entry, at least once."""
_TABLES_TAG = "mlflow.loggedArtifacts"
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # MLflow would also repeat the request that creates a run.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class NoAnswerError(UsageError):
    """The store does not answer, or cannot be used."""


@dataclass(frozen=True)
class MLflowRun:
    """Run that is open for writing. Made by `create`, `reopen` or `find`.

    Everything may be sent repeatedly: it is stored once. Metrics are an exception in a store that
    is not a database.
    """

    client: "MlflowClient"
    run_id: str
    experiment_id: str

    @classmethod
    def create(
        cls, tracking_uri: str, experiment: str, *, name: str, tags: Mapping[str, Any]
    ) -> "MLflowRun":
        """Create a run, and the experiment if it is missing.

        Raises:
            UsageError: The store takes no run.
        """
        client = connect(tracking_uri)
        values = {"mlflow.source.name": sys.argv[0], **tags}
        with _answering(tracking_uri):
            run = client.create_run(
                _experiment_id(client, tracking_uri, experiment),
                run_name=name,
                tags={clean_key(key): clean_value(value) for key, value in values.items()},
            )
        return cls(client, run.info.run_id, run.info.experiment_id)

    @classmethod
    def reopen(cls, tracking_uri: str, run_id: str) -> "MLflowRun":
        """Open an existing run.

        Raises:
            NoAnswerError: The store does not answer.
            UsageError: The store does not hold the run, or the run was deleted there.
        """
        from mlflow.exceptions import MlflowException

        database = database_of(tracking_uri)
        # MLflow would create a database that is missing.
        gone = database is not None and not os.path.lexists(database)
        if not gone:
            client = connect(tracking_uri, may_create=False)
            with _answering(tracking_uri):
                try:
                    info = client.get_run(run_id).info
                    gone = info.lifecycle_stage == "deleted"
                except MlflowException as error:
                    if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                        raise
                    gone = True
        if gone:
            raise UsageError(
                f"MLflowTracker: the MLflow run {run_id} must be in {tracking_uri}, it is missing"
            )
        return cls(client, run_id, info.experiment_id)

    @classmethod
    def find(
        cls, tracking_uri: str, experiment: str, *, tag: str, value: str
    ) -> "MLflowRun | None":
        """Open the run with a value of a tag; None if there is no such run.

        Raises:
            NoAnswerError: The store does not answer.
        """
        database = database_of(tracking_uri)
        if database is not None and not os.path.lexists(database):
            return None
        client = connect(tracking_uri, may_create=False)
        with _answering(tracking_uri):
            experiment_id = _find_experiment(client, tracking_uri, experiment)
            if experiment_id is None:
                return None
            runs = client.search_runs([experiment_id], f"tags.`{tag}` = '{value}'")
        if not runs:
            return None
        return cls(client, runs[0].info.run_id, runs[0].info.experiment_id)

    def last_steps(self) -> dict[str, int]:
        """Return the last stored step of each metric."""
        # Public ``data.metrics`` drops the steps, and reading whole histories takes seconds on long
        # runs.
        data = self.client.get_run(self.run_id).data
        return {metric.key: metric.step for metric in data._metric_objs}

    def log_metrics(self, points: Sequence[tuple[str, float, int, int]]) -> None:
        """Store points of metrics, in one transaction per thousand.

        Args:
            points: Name, value, milliseconds since 1970 and step of each.
        """
        from mlflow.entities import Metric

        metrics = [Metric(*point) for point in points]
        for start in range(0, len(metrics), METRICS_PER_BATCH):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + METRICS_PER_BATCH])

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Store the parameters that the run does not have yet, a hundred in one request."""
        from mlflow.entities import Param

        known = self.client.get_run(self.run_id).data.params
        missing: dict[str, Param] = {}
        for name, value in params.items():
            key = clean_key(name)
            # MLflow refuses to change a parameter, also where two names become one.
            if key not in known and key not in missing:
                missing[key] = Param(key, clean_value(value))
        batch = list(missing.values())
        for start in range(0, len(batch), _ITEMS_PER_BATCH):
            self.client.log_batch(self.run_id, params=batch[start : start + _ITEMS_PER_BATCH])

    def log_tags(self, tags: Mapping[str, Any]) -> None:
        """Store tags, in place of tags with the same names."""
        for key, value in tags.items():
            self.client.set_tag(self.run_id, clean_key(key), clean_value(value))

    def log_artifact(self, path: Path, folder: str | None, *, home: Path) -> None:
        """Store a copy of a file or directory.

        Args:
            path: File or directory. One that is missing, leads out of ``home`` or has links is left
                out.
            folder: Artifact folder; None for the root.
            home: The run directory.
        """
        # A run directory may be a stranger's, and name any file of this machine.
        if lies_in(home, path):
            uri = self.client.get_run(self.run_id).info.artifact_uri
            self._store_files(self.run_id, uri, path, folder)

    def log_model(self, path: Path, *, step: int, mark: str, home: Path) -> None:
        """Store an MLflow model as output of the run.

        Args:
            path: Folder of the model.
            step: Step of the run that the model is of.
            mark: Unique text. A model with a mark that the run already has is not stored again.
            home: The run directory, in which the folder must lie.
        """
        from mlflow.entities import LoggedModelOutput, LoggedModelStatus
        from mlflow.exceptions import MlflowException

        known = self.client.get_run(self.run_id)
        outputs = known.outputs.model_outputs if known.outputs else []
        for output in outputs:
            if self.client.get_logged_model(output.model_id).tags.get(_MARK_TAG) == mark:
                return
        if not lies_in(home, path):
            return

        try:
            model = self.client.create_logged_model(
                self.experiment_id,
                name=re.sub(r"[^\w-]", "-", known.info.run_name),
                source_run_id=self.run_id,
                tags={_MARK_TAG: mark},
                model_type="agent",
            )
        except MlflowException as error:
            if error.error_code != "ENDPOINT_NOT_FOUND":
                raise
            print_stderr(
                f"{path}: not stored, models of runs need an MLflow server of 3.0 or later"
            )
            return

        if self._store_files(model.model_id, model.artifact_location, path, None):
            self.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
            self.client.log_outputs(self.run_id, [LoggedModelOutput(model.model_id, step=step)])

    def _store_files(self, owner: str, uri: str, path: Path, folder: str | None) -> bool:
        """Store a file or directory of a run or model; return False, with a warning, if ``uri`` is
        not its place.
        """
        try:
            repository = repository_of(self.client.tracking_uri, owner, uri)
        except UsageError as error:
            print_stderr(f"{path.name}: not stored, {error}")
            return False
        if path.is_dir():
            repository.log_artifacts(str(path), folder)
        else:
            repository.log_artifact(str(path), folder)
        return True

    def log_table(self, file: str, content: Mapping[str, Any]) -> None:
        """Store a table, in place of a table with the same name."""
        uri = self.client.get_run(self.run_id).info.artifact_uri
        name = PurePosixPath(file)
        folder = None if name.parent == PurePosixPath() else str(name.parent)
        # Not MLflow's ``log_table``, which appends to a table of the same name. Its pages find
        # tables by a tag.
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary, name.name)
            path.write_text(json.dumps(dict(content), indent=2))
            if not self._store_files(self.run_id, uri, path, folder):
                return
        known: list[Any] = []
        with suppress(LookupError, ValueError, TypeError, RecursionError):  # a tag of somebody else
            known += json.loads(self.client.get_run(self.run_id).data.tags[_TABLES_TAG])
        entry = {"path": file, "type": "table"}
        if entry not in known:
            self.client.set_tag(self.run_id, _TABLES_TAG, json.dumps([*known, entry]))

    def takes_entries(self) -> bool:
        """Return whether the store takes an entry of this run that is certainly correct."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.set_tag(self.run_id, _REFUSED_TAG, "see mlflow.refused.jsonl")
        except MlflowException:
            return False
        return True

    def set_status(self, status: Status | Literal["RUNNING"], ms: int | None = None) -> None:
        """Store how the run ended, or that it is running.

        Args:
            status: The status.
            ms: Time of the end in milliseconds since 1970; None for now.
        """
        if status == "RUNNING":
            self.client.update_run(self.run_id, status=status)
        else:
            end = None if ms is None else max(0, ms)
            self.client.set_terminated(self.run_id, status=status, end_time=end)


def connect(tracking_uri: str, *, may_create: bool = True) -> "MlflowClient":
    """Return a client of a store, which is created if it is a SQLite database that is missing.

    MLflow then prints no log lines, progress bars or warnings, and sends no usage statistics. A
    request to a server is made once and waits ten seconds, unless MLflow's environment variables
    set other values.

    Args:
        tracking_uri: The store.
        may_create: Create a SQLite database that is missing, and tables in an empty one.

    Raises:
        NoAnswerError: MLflow cannot use the store.
        ForeignDatabaseError: The file of a SQLite store is none of the installed MLflow. It is not
            changed.
    """
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    database = database_of(tracking_uri)
    if database is not None and not may_create and not os.path.lexists(database):
        raise ForeignDatabaseError(tracking_uri, "there is no such file")
    is_imported = "mlflow.tracking" in sys.modules
    with (
        _answering(tracking_uri),
        warnings.catch_warnings(),
        exclusive_access(database),
        nullcontext() if is_imported else collection_paused(),
    ):
        warnings.simplefilter("ignore")
        if database is not None and os.path.lexists(database):
            check_is_store(database, may_be_empty=may_create)
        elif database is not None:
            check_beside(database)

        from mlflow.tracking import MlflowClient

        # MLflow logs what it then raises, with its traceback.
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)

        if database is not None and not database.exists():
            _create_database(database)
        client = MlflowClient(tracking_uri)
        _within_deadline(tracking_uri, lambda: client.search_experiments(max_results=1))
    return client


def _within_deadline(tracking_uri: str, ask: Callable[[], Answer]) -> Answer:
    """Return the answer of a store, or raise if it does not come in time.

    The timeout of a request is that between two bytes, and a server may send one at a time for
    ever.

    Args:
        tracking_uri: Store. A SQLite database is asked without a deadline.
        ask: Makes one request.

    Raises:
        NoAnswerError: There is no whole answer within three times the timeout of a request.
    """
    if database_of(tracking_uri) is not None:
        return ask()
    seconds = 3 * float(os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"])
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def answer() -> None:
        try:
            answers.append(ask())
        except BaseException as error:  # raised in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        message = f"must be a store that answers, got {tracking_uri}: no whole answer within"
        raise NoAnswerError(f"{message} {seconds:g} seconds", key="tracking_uri")
    return answers[0]


def _create_database(database: Path) -> None:
    """Create a store under another name, so that a killed process leaves no half of one."""
    from mlflow.tracking import MlflowClient

    for old in database.parent.glob(f"{database.name}.*{TEMPORARY_SUFFIX}"):
        process = old.suffixes[-2].removeprefix(".")
        if is_left_behind(process):
            old.unlink()

    # Two names, as MLflow keeps its connection to a file that was deleted.
    from_schema, migrated = (
        database.with_name(f"{database.name}.{uuid4().hex}.{os.getpid()}{TEMPORARY_SUFFIX}")
        for _ in range(2)
    )
    check_opens(from_schema)
    try:
        create_tables(from_schema)
        MlflowClient(sqlite_uri(from_schema)).search_experiments(max_results=1)
    except Exception:
        # A version of MLflow that does not know these tables, or alembic for it, refuses them.
        from_schema.unlink()
        MlflowClient(sqlite_uri(migrated)).search_experiments(max_results=1)
        migrated.rename(database)
    else:
        from_schema.rename(database)


@contextmanager
def _answering(tracking_uri: str) -> Iterator[None]:
    """Turn any error of MLflow into a `NoAnswerError` of one line."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # MLflow raises errors of databases, drivers and servers
        message = f"must be a store that MLflow can use, got {tracking_uri}: {one_line(error)}"
        remedy = "try again, another process is writing there" if _is_locked(error) else None
        raise NoAnswerError(message, key="tracking_uri", remedy=remedy) from error


def _is_locked(error: BaseException | None) -> bool:
    """Return whether SQLite reported a lock, as an error or as the cause of one."""
    while error is not None:
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return True
        error = error.__cause__ or error.__context__
    return False


def check_store(cfg: Mapping[str, Any]) -> None:
    """Check that the store of a configuration takes a new run. A missing database is not created.

    Args:
        cfg: The composed configuration. Without a ``logger`` that has a store nothing is checked.

    Raises:
        UsageError: The store does not answer, cannot be created, or its experiment was deleted.
    """
    node = cfg.get("logger") or {}
    if "tracking_uri" not in node:
        return
    uri = absolute_uri(node["tracking_uri"])
    database = database_of(uri)
    if database is not None and not database.exists():
        check_folder(database.parent, "logger.tracking_uri")
    else:
        client = connect(uri)
        _within_deadline(uri, lambda: _find_experiment(client, uri, node["experiment"]))


def _find_experiment(client: "MlflowClient", tracking_uri: str, name: str) -> str | None:
    """Return the id of an experiment; None if it does not exist.

    Raises:
        UsageError: It was deleted.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        return None
    if experiment.lifecycle_stage == "deleted":
        restore = f"mlflow experiments restore --experiment-id {experiment.experiment_id}"
        condition = f"not be deleted, but it is in {tracking_uri}"
        remedy = f"restore it there with {restore}, or choose another"
        raise SettingError("logger.experiment", name, condition, remedy=remedy)
    return str(experiment.experiment_id)


def _experiment_id(client: "MlflowClient", tracking_uri: str, name: str) -> str:
    from mlflow.exceptions import MlflowException

    experiment_id = _find_experiment(client, tracking_uri, name)
    if experiment_id is not None:
        return experiment_id

    database = database_of(tracking_uri)
    location = None
    if database is not None:
        # By default MLflow would put artifacts below the working directory.
        location = (database.parent / "mlruns" / clean_key(name)).as_uri()
    try:
        return str(client.create_experiment(name, artifact_location=location, tags=EXPERIMENT_TAGS))
    except MlflowException:
        # Another process created it in the meantime; any other cause fails again here.
        experiment_id = _find_experiment(client, tracking_uri, name)
        if experiment_id is None:
            raise
        return experiment_id
