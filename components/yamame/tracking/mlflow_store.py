"""One run in an MLflow store, by its client alone: no global active run, several runs per process.

The database is SQLite by default, artifacts lie in ``mlruns`` beside it. MLflow is imported when a
run is opened.
"""

import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from yamame.checks import UsageError
from yamame.files.atomic import TEMPORARY_SUFFIX, is_left_behind
from yamame.files.run_directory import check_folder
from yamame.system.garbage import collection_paused
from yamame.system.messages import one_line, print_stderr
from yamame.tracking.database import check_opens, create_tables, exclusive_access
from yamame.tracking.pages import EXPERIMENT_TAGS
from yamame.tracking.places import is_place_of, lies_in
from yamame.tracking.summary import Status

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

SQLITE = "sqlite:///"
METRICS_PER_BATCH = 1000
_ITEMS_PER_BATCH = 100
RUN_TAG = "yamame.run_uuid"
"""Tag with the number that a run directory gave its run before that was there."""
_MARK_TAG = "yamame.mark"
_TABLES_TAG = "mlflow.loggedArtifacts"
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # it repeats what creates a run, too
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
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


class NoAnswerError(UsageError):
    """The store cannot be reached or cannot be used."""


@dataclass(frozen=True)
class MLflowRun:
    """A run that is open for writing. Made by `create`, `reopen` or `find`.

    What is stored twice is stored once, but for metrics in a store that is no database.
    """

    client: "MlflowClient"
    run_id: str
    experiment_id: str

    @classmethod
    def create(
        cls, tracking_uri: str, experiment: str, *, name: str, tags: Mapping[str, Any]
    ) -> "MLflowRun":
        """Starts a run, making the experiment when it is not there.

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
        """Continues a run.

        Raises:
            UsageError: The store does not hold it, or it was deleted there; a `NoAnswerError`, if
                the store cannot be asked.
        """
        from mlflow.exceptions import MlflowException

        database = database_of(tracking_uri)
        gone = database is not None and not database.is_file()
        if not gone:
            client = connect(tracking_uri)
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
                f"MLflowTracker: the MLflow run {run_id} must be in {tracking_uri}, it is not there"
            )
        return cls(client, run_id, info.experiment_id)

    @classmethod
    def find(
        cls, tracking_uri: str, experiment: str, *, tag: str, value: str
    ) -> "MLflowRun | None":
        """The run that has this value of a tag; None where there is none.

        Raises:
            UsageError: The store cannot be asked.
        """
        database = database_of(tracking_uri)
        if database is not None and not database.is_file():
            return None
        client = connect(tracking_uri)
        with _answering(tracking_uri):
            experiment_id = _find_experiment(client, tracking_uri, experiment)
            wanted = f"tags.`{tag}` = '{value}'"
            runs = [] if experiment_id is None else client.search_runs([experiment_id], wanted)
        return cls(client, runs[0].info.run_id, runs[0].info.experiment_id) if runs else None

    def last_steps(self) -> dict[str, int]:
        """The largest step stored for each metric."""
        # Public ``data.metrics`` drops the steps, and reading whole histories takes seconds on long
        # runs.
        return {
            metric.key: metric.step for metric in self.client.get_run(self.run_id).data._metric_objs
        }

    def log_metrics(self, points: Sequence[tuple[str, float, int, int]]) -> None:
        """Stores metrics (key, value, milliseconds since 1970, step), in one transaction (one per
        thousand).
        """
        from mlflow.entities import Metric

        metrics = [Metric(*point) for point in points]
        for start in range(0, len(metrics), METRICS_PER_BATCH):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + METRICS_PER_BATCH])

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Stores the parameters that the run does not have yet; MLflow never lets one change."""
        from mlflow.entities import Param

        known = self.client.get_run(self.run_id).data.params
        items = {clean_key(key): clean_value(value) for key, value in params.items()}
        missing = [Param(key, value) for key, value in items.items() if key not in known]
        for start in range(0, len(missing), _ITEMS_PER_BATCH):
            self.client.log_batch(self.run_id, params=missing[start : start + _ITEMS_PER_BATCH])

    def log_tags(self, tags: Mapping[str, Any]) -> None:
        """Stores tags in place of those of the same names."""
        for key, value in tags.items():
            self.client.set_tag(self.run_id, clean_key(key), clean_value(value))

    def log_artifact(self, path: Path, folder: str | None, *, home: Path) -> None:
        """Stores a copy of a file or directory; what is not there any more is left out.

        Only what lies in ``home`` is stored, links excepted, for a run's directory may be a
        stranger's.
        """
        if not lies_in(home, path) or not self._takes_files(path):
            return
        log = self.client.log_artifacts if path.is_dir() else self.client.log_artifact
        log(self.run_id, str(path), folder)

    def log_model(self, path: Path, *, step: int, mark: str, home: Path) -> None:
        """Stores the folder of an MLflow model as what the run had learned at a step, once for the
        same ``mark``.
        """
        from mlflow.entities import LoggedModelOutput, LoggedModelStatus
        from mlflow.exceptions import MlflowException

        known = self.client.get_run(self.run_id)
        outputs = known.outputs.model_outputs if known.outputs else []
        there = (
            self.client.get_logged_model(output.model_id).tags.get(_MARK_TAG) for output in outputs
        )
        if mark in there or not lies_in(home, path):
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
                f"{path}: not stored, for this MLflow server knows no models of runs; one from 3.0 on does"
            )
            return
        if is_place_of(model.model_id, model.artifact_location, path):
            self.client.log_model_artifacts(model.model_id, str(path))
            self.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
            self.client.log_outputs(self.run_id, [LoggedModelOutput(model.model_id, step=step)])

    def _takes_files(self, what: object) -> bool:
        return is_place_of(self.run_id, self.client.get_run(self.run_id).info.artifact_uri, what)

    def log_table(self, file: str, content: Mapping[str, Any]) -> None:
        """Stores a table. MLflow's pages find it by a tag; its own ``log_table`` appends to one of
        the same name.
        """
        if not self._takes_files(file):
            return
        self.client.log_dict(self.run_id, dict(content), file)
        known = json.loads(self.client.get_run(self.run_id).data.tags.get(_TABLES_TAG, "[]"))
        entry = {"path": file, "type": "table"}
        if entry not in known:
            self.client.set_tag(self.run_id, _TABLES_TAG, json.dumps([*known, entry]))

    def set_status(self, status: Status | Literal["RUNNING"], ms: int | None = None) -> None:
        """Says how the run ended, and when in milliseconds since 1970 (None: now), or that it goes
        on.
        """
        if status == "RUNNING":
            self.client.update_run(self.run_id, status=status)
        else:
            self.client.set_terminated(self.run_id, status=status, end_time=ms)


def connect(tracking_uri: str) -> "MlflowClient":
    """A client, after keeping MLflow from talking and from waiting for long.

    It writes no log lines, progress bars, usage statistics or foreign warnings. A request to a
    server is made once and waits ten seconds, unless the environment variables of MLflow say
    otherwise.

    Raises:
        NoAnswerError: MLflow can use no such store.
    """
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    database = database_of(tracking_uri)
    is_imported = "mlflow.tracking" in sys.modules
    with (
        _answering(tracking_uri),
        warnings.catch_warnings(),
        exclusive_access(database),
        nullcontext() if is_imported else collection_paused(),
    ):
        warnings.simplefilter("ignore")
        if database is not None and database.exists():
            check_opens(database)

        from mlflow.tracking import MlflowClient

        # MLflow logs what it then raises, with its traceback.
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)

        if database is not None and not database.exists():
            _create_database(database)
        client = MlflowClient(tracking_uri)
        client.search_experiments(max_results=1)
    return client


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
        MlflowClient(f"{SQLITE}{from_schema}").search_experiments(max_results=1)
    except Exception:
        # A version of MLflow that does not know these tables, or alembic for it, refuses them.
        from_schema.unlink()
        MlflowClient(f"{SQLITE}{migrated}").search_experiments(max_results=1)
        migrated.rename(database)
    else:
        from_schema.rename(database)


@contextmanager
def _answering(tracking_uri: str) -> Iterator[None]:
    """Makes one line of whatever MLflow raises."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # databases, drivers and servers make MLflow raise almost anything
        remedy = (
            "; another process is writing there, try again" if "is locked" in str(error) else ""
        )
        problem = f"tracking_uri: must be a store that MLflow can use, got {tracking_uri}: {one_line(error)}"
        raise NoAnswerError(problem + remedy) from error


def check_store(cfg: Mapping[str, Any]) -> None:
    """Refuses a store that cannot take a new run, before anything is written; a new database is not
    yet made.

    Args:
        cfg: The composed configuration; without a ``logger`` that has a store there is nothing to
            refuse.

    Raises:
        UsageError: Names the store and what is wrong with it.
    """
    node = cfg.get("logger") or {}
    if "tracking_uri" not in node:
        return
    uri = absolute_uri(node["tracking_uri"])
    database = database_of(uri)
    if database is not None and not database.exists():
        check_folder(database.parent, "logger.tracking_uri")
    else:
        _find_experiment(connect(uri), uri, node["experiment"])


def _find_experiment(client: "MlflowClient", tracking_uri: str, name: str) -> str | None:
    """The id of an experiment, if there is one that takes runs or none of this name."""
    experiment = client.get_experiment_by_name(name)
    if experiment is not None and experiment.lifecycle_stage == "deleted":
        raise UsageError(
            f"logger.experiment: must not be deleted, but {name} is in {tracking_uri}; restore it there with "
            f"mlflow experiments restore --experiment-id {experiment.experiment_id}, or choose another"
        )
    return None if experiment is None else str(experiment.experiment_id)


def _experiment_id(client: "MlflowClient", tracking_uri: str, name: str) -> str:
    from mlflow.exceptions import MlflowException

    experiment_id = _find_experiment(client, tracking_uri, name)
    if experiment_id is not None:
        return experiment_id
    database = database_of(tracking_uri)
    location = None if database is None else (database.parent / "mlruns" / clean_key(name)).as_uri()
    try:
        return str(client.create_experiment(name, artifact_location=location, tags=EXPERIMENT_TAGS))
    except MlflowException:
        # Another process made it in the meantime; anything else shows up again here.
        experiment_id = _find_experiment(client, tracking_uri, name)
        if experiment_id is None:
            raise
        return experiment_id
