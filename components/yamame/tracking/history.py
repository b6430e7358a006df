"""Reader of runs in an MLflow store, as plain data and files. It never writes there."""

import fnmatch
import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from yamame.checks import SettingError, UsageError, require_setting
from yamame.files.paths import inside
from yamame.system.messages import one_line, print_stderr, printable
from yamame.tracking.database import absolute_uri, database_of
from yamame.tracking.mlflow_store import connect
from yamame.tracking.pages import run_address
from yamame.tracking.places import local_place, repository_of

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

Array = npt.NDArray[np.float64]
Axis = Literal["env_steps", "updates", "cpu_s", "wall_s"]
"""Units in which the progress of a run is measured."""
AXIS_TAG = "axis"
"""Tag with the unit of a run's metric steps, if they are not environment steps."""
FOLDER_TAG = "folder"
COMMAND_TAG = "command"
"""Tag with the command line of a run."""
CHANGED_TAG = "changed_between_sessions"
"""Tag of a run that was resumed on a different machine, revision or with different settings, with
the values of each session.
"""
PREFIXES = ("eval/", "train/", "cost/")
"""Prefixes of the metrics that are read."""
_RUNS_PER_PAGE = 1000
_SILENT_S = 5.0
_LARGEST_FILE = 2**28
_LARGEST = 1e300
"""MLflow stores an infinity as a larger number."""


@dataclass(frozen=True)
class MetricHistory:
    """One metric of a run over its steps, one value per step, in order.

    Attributes:
        steps: ``[N]``, in the unit of the run's axis, strictly increasing.
        values: ``[N]``, NaN where the run logged no finite number.
    """

    steps: Array
    values: Array


@dataclass(frozen=True)
class RunHistory:
    """Settings, tags and metrics of a run.

    Attributes:
        run_id: MLflow's id.
        name: Name, not always unique.
        status: ``FINISHED``, ``FAILED``, ``KILLED``, ``RUNNING``.
        started_ms: Start time in milliseconds since 1970.
        params: Flat configuration, as text.
        tags: Tags of MLflow and of Yamame.
        metrics: Histories by name, for names that begin with one of `PREFIXES`.
        page: Address of the run's page in MLflow.
        problem: Reason why the metrics could not be read; empty if they could.
    """

    run_id: str
    name: str
    status: str = "FINISHED"
    started_ms: int = 0
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, MetricHistory] = field(default_factory=dict)
    page: str = ""
    problem: str = ""

    @property
    def folder(self) -> Path | None:
        """Directory of the run; None if it is not on this machine."""
        path = Path(self.tags.get(FOLDER_TAG, ""))
        return path if path.is_absolute() and path.is_dir() else None

    @property
    def seed(self) -> str:
        """Seed, as text."""
        return self.params.get("seed", "?")

    @property
    def axis(self) -> Axis:
        """Unit of the metric steps."""
        return "updates" if self.tags.get(AXIS_TAG) == "updates" else "env_steps"


@dataclass(frozen=True)
class RunReader:
    """Reader of one experiment of an MLflow store; use `open` to create one."""

    client: "MlflowClient"
    experiment_id: str

    @classmethod
    def open(cls, tracking_uri: str, experiment: str) -> "RunReader":
        """Look up an experiment.

        Raises:
            UsageError: There is no such database, or no such experiment in it.
        """
        missing = f"store.tracking_uri: must be a database that exists, got {tracking_uri}"
        client = _connect_to_existing(tracking_uri, missing)
        entry = client.get_experiment_by_name(experiment)
        if entry is None:
            known = ", ".join(sorted(entry.name for entry in client.search_experiments()))
            condition = f"be one of {known} in {tracking_uri}"
            raise SettingError("store.experiment", experiment, condition)
        return cls(client, entry.experiment_id)

    def read(self, wanted: Sequence[str] | str | None = None) -> list[RunHistory]:
        """Return the runs, oldest first, without the parent runs of sweeps.

        Control characters in their texts, and lone surrogates, are written as escapes.

        Args:
            wanted: Names, patterns of names (``*``, ``?``) or ids, or a single one; None for all.

        Raises:
            UsageError: There is no run, ``wanted`` is empty, or an entry matches no run.
        """
        patterns = [wanted] if isinstance(wanted, str) else ["*"] if wanted is None else wanted
        if not patterns:
            raise SettingError("runs", patterns, "name at least one run, or be null for all")
        runs = [run for run in self._search() if run.data.params]
        if not runs:
            raise UsageError("the experiment has no run yet", key="runs")
        for pattern in patterns:
            is_found = any(_matches(run, pattern) for run in runs)
            require_setting("runs", pattern, is_found, "match a run by name or id")
        runs = [run for run in runs if any(_matches(run, pattern) for pattern in patterns)]
        runs.sort(key=lambda run: run.info.start_time or 0)

        histories = []
        printed_at = time.monotonic()
        for number, run in enumerate(runs):
            # A server is asked for each metric of each run, which may take minutes.
            if time.monotonic() - printed_at > _SILENT_S:
                printed_at = time.monotonic()
                print_stderr(f"{number} of {len(runs)} runs are read")
            histories.append(self._history(run))
        return histories

    def artifact(self, run_id: str, name: str) -> bytes | None:
        """Return the content of an artifact; None if the run does not have it.

        A file of more than 256 MiB, or one that lies where the store should not have files, counts
        as missing; the reason is printed.
        """
        from mlflow.exceptions import MlflowException

        try:
            with tempfile.TemporaryDirectory() as folder:
                files = _read_files(self.client, run_id, "", Path(folder), only=name)
                if not files:
                    return None
                size = files[0].stat().st_size
                if size > _LARGEST_FILE:
                    print_stderr(f"{run_id}: {name} is not read, it has {size} bytes")
                    return None
                return files[0].read_bytes()
        except (MlflowException, OSError):
            return None
        except UsageError as error:
            print_stderr(f"{run_id}: {name} is not read: {error}")
            return None

    def _search(self) -> list["Run"]:
        runs, token = [], None
        while True:
            page = self.client.search_runs(
                [self.experiment_id], max_results=_RUNS_PER_PAGE, page_token=token
            )
            runs += list(page)
            token = page.token
            if not token:
                return runs

    def _history(self, run: "Run") -> RunHistory:
        """Read a run. A failure is its `RunHistory.problem`: other runs can still be read."""
        metrics: dict[str, MetricHistory] = {}
        problem = ""
        try:
            metrics = self._metrics(run)
        except Exception as error:
            problem = one_line(error)
        return RunHistory(
            run_id=run.info.run_id,
            name=printable(run.info.run_name or ""),
            status=run.info.status,
            started_ms=run.info.start_time or 0,
            params=_all_printable(run.data.params),
            tags=_all_printable(run.data.tags),
            metrics=metrics,
            page=run_address(self.client.tracking_uri, self.experiment_id, run.info.run_id),
            problem=problem,
        )

    def _metrics(self, run: "Run") -> dict[str, MetricHistory]:
        names = sorted(name for name in run.data.metrics if name.startswith(PREFIXES))
        points = _points_in_database(self.client, run.info.run_id)
        if points is None:
            # One request per metric: slow, but all that a server offers.
            points = {}
            for name in names:
                history = self.client.get_metric_history(run.info.run_id, name)
                history.sort(key=lambda point: (point.step, point.timestamp))
                points[name] = [(point.step, point.value) for point in history]
        metrics = {}
        for name in names:
            # The latest of several values at one step counts.
            latest = dict(points[name])
            steps = np.array(list(latest), float)
            values = np.array(list(latest.values()), float)
            metrics[printable(name)] = MetricHistory(
                steps, np.where(np.abs(values) < _LARGEST, values, np.nan)
            )
        return metrics


def _points_in_database(
    client: "MlflowClient", run_id: str
) -> dict[str, list[tuple[int, float]]] | None:
    """Read all metrics of a run with one query, sorted by step and time.

    The client makes a query and an object of the database layer per metric and point, which takes
    five times as long.

    Returns:
        Name to steps and values; None if the store is not a database.
    """
    # Not MLflow's public interface: it may move. A process that uses only a server has not imported
    # the module, which takes a second.
    module = sys.modules.get("mlflow.store.tracking.sqlalchemy_store")
    store: Any = getattr(getattr(client, "_tracking_client", None), "store", None)
    if module is None or not isinstance(store, module.SqlAlchemyStore):
        return None
    try:
        from mlflow.store.tracking.dbmodels.models import SqlMetric
    except ImportError:
        return None
    columns = (SqlMetric.key, SqlMetric.step, SqlMetric.value, SqlMetric.is_nan)
    points: dict[str, list[tuple[int, float]]] = {}
    with store.ManagedSessionMaker() as session:
        query = session.query(*columns).filter(SqlMetric.run_uuid == run_id)
        order = (SqlMetric.step, SqlMetric.timestamp, SqlMetric.value)
        for name, step, value, is_nan in query.order_by(*order):
            points.setdefault(name, []).append((step, math.nan if is_nan else value))
    return points


def is_named(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern (``*``, ``?``)."""
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def _matches(run: "Run", pattern: str) -> bool:
    return run.info.run_id == pattern or is_named(run.info.run_name, pattern)


def download_artifacts(tracking_uri: str, run_id: str, folder: str, target: Path) -> list[Path]:
    """Return the files of an artifact folder of a run, sorted by name.

    Args:
        tracking_uri: Address of the store.
        run_id: MLflow's id of the run.
        folder: Artifact folder. A folder that does not exist has no files.
        target: Local directory of copies. Files that lie on this machine are not copied.

    Raises:
        UsageError: There is no such store, or no such run in it.
    """
    problem = f"{run_id} is no run directory, and"
    missing = f"{problem} there is no MLflow store {tracking_uri} to look in"
    client = _connect_to_existing(tracking_uri, missing)
    from mlflow.exceptions import MlflowException

    try:
        return _read_files(client, run_id, folder, target)
    except MlflowException as error:
        store = absolute_uri(tracking_uri)
        message = f"{problem} no run in the MLflow store {store}: {one_line(error)}"
        raise UsageError(message) from error


def _read_files(
    client: "MlflowClient", run_id: str, folder: str, target: Path, *, only: str | None = None
) -> list[Path]:
    """Return the files of an artifact folder, sorted by name; those of a server are copied.

    Args:
        client: Client of the store.
        run_id: MLflow's id of the run.
        folder: Artifact folder; empty for the root.
        target: Local directory of copies.
        only: Name of the only file that is wanted; None for all.

    Raises:
        MlflowException: The store has no such run, or does not answer.
        UsageError: The store names a place that it should not have (`repository_of`).
    """
    uri = client.get_run(run_id).info.artifact_uri
    place = local_place(client.tracking_uri, run_id, uri)
    if place is not None:
        home = inside(place, folder) if folder else place
        entries = sorted(home.iterdir()) if home.is_dir() else []
        # Nothing in the place is a link or a pipe.
        files = [path for path in entries if path.is_file()]
        return [path for path in files if only in (None, path.name)]

    repository = repository_of(client.tracking_uri, run_id, uri)
    names = sorted(item.path for item in repository.list_artifacts(folder) if not item.is_dir)
    copies = []
    for name in names:
        if only in (None, name):
            copies.append(Path(repository.download_artifacts(name, str(target))))
    return copies


def _all_printable(values: Mapping[str, str]) -> dict[str, str]:
    return {printable(name): printable(value) for name, value in values.items()}


def _connect_to_existing(tracking_uri: str, problem: str) -> "MlflowClient":
    """Return a client of a store; raise ``problem`` if its database does not exist."""
    # MLflow would create a missing database.
    database = database_of(tracking_uri)
    if database is not None and not database.exists():
        raise UsageError(problem)
    # A report makes thousands of requests and can be repeated, so failures are reported early.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    return connect(absolute_uri(tracking_uri), may_create=False)
