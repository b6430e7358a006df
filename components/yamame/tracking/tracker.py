"""Experiment tracking behind one small protocol: MLflow, or nothing.

A tracker is built from configuration alone and writes nothing until `start`. It then is a context manager
that closes the run with the truth: FINISHED, FAILED on an error, KILLED on Ctrl-C or a signal.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from yamame.tracking.costs import SystemMetrics
from yamame.tracking.mlflow_store import MLflowRun, absolute_uri, clean_key
from yamame.tracking.record import reopen_recorded, write_record
from yamame.tracking.summary import git_revision, json_safe, run_status, versions

if TYPE_CHECKING:
    from mlflow.entities import Metric

TRACKING_URI = "sqlite:///mlflow.db"
"""Where ``mlflow ui`` looks by itself when it is started in the same directory."""
EXPERIMENT = "yamame"
PARENT_VARIABLE = "YAMAME_MLFLOW_PARENT"
"""Environment variable with the id of the run that new runs become children of."""
RUN_FILE = "mlflow.json"
_TABLES_TAG = "mlflow.loggedArtifacts"


class Tracker(Protocol):
    """What a recipe may ask of a tracker. A context manager that closes the run; this one does nothing."""

    def start(
        self, directory: Path, *, name: str, params: Mapping[str, Any], tags: Mapping[str, str] | None = None
    ) -> Self:
        """Opens the run of a run directory: the one recorded there, else a new one.

        Args:
            directory: The run's directory.
            name: Name of a new run.
            params: Flat configuration, recorded for a new run only.
            tags: What else to say of the run as it is now; they replace those of a run that goes on.
        """
        return self

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Records metrics at a step of the run. A step not beyond the last one of a key is dropped."""

    def flush(self) -> None:
        """Makes everything logged so far last. Call it before each checkpoint."""

    def log_artifact(self, path: Path, *, folder: str | None = None) -> None:
        """Records a copy of a file or directory."""

    def log_table(self, name: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """Records a table, given by columns of equal length, in place of one of the same name."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class NullTracker(Tracker):
    """Tracks nothing.

    >>> with NullTracker().start(Path("runs/a"), name="a", params={}) as tracker:
    ...     tracker.log({"loss": 1.0}, step=1)
    """


class MLflowTracker(Tracker):
    """Tracks a run with MLflow.

    The run's id and store are kept in ``mlflow.json`` of the run directory, so a continued run goes on in the
    same MLflow run whatever the configuration or the working directory say. Metrics that the store already
    holds are never stored again: a run that goes back to a checkpoint repeats its steps silently until it
    passes the last recorded one.

    Args:
        tracking_uri: A store as MLflow knows them; a relative SQLite path is relative to the working
            directory.
        experiment: Name of the experiment; made when missing, with its artifacts in ``mlruns`` beside a
            SQLite database.
        system_metrics: Add the load of the machine and the process whenever metrics go to the store.
        flush_s: Seconds for which metrics are gathered before they go to the store in one transaction.
    """

    def __init__(
        self,
        *,
        tracking_uri: str = TRACKING_URI,
        experiment: str = EXPERIMENT,
        system_metrics: bool = True,
        flush_s: float = 5.0,
    ):
        self.tracking_uri = tracking_uri
        self.experiment = experiment
        self.system_metrics = system_metrics
        self.flush_s = flush_s
        self._metrics: list[Metric] = []
        self._flushed = time.monotonic()
        self._run: MLflowRun | None = None
        self._system: SystemMetrics | None = None
        self._last_steps: dict[str, int] = {}

    @property
    def run(self) -> MLflowRun:
        """The open run.

        Raises:
            RuntimeError: `start` was not called.
        """
        if self._run is None:
            raise RuntimeError("MLflowTracker: start must be called first")
        return self._run

    def start(
        self, directory: Path, *, name: str, params: Mapping[str, Any], tags: Mapping[str, str] | None = None
    ) -> Self:
        """See `Tracker.start`.

        Raises:
            UsageError: The recorded run is not in its store.
        """
        record = Path(directory) / RUN_FILE
        parent = os.environ.get(PARENT_VARIABLE)
        present = ({"mlflow.parentRunId": parent} if parent else {}) | dict(tags or {})
        if record.exists():
            self._run = reopen_recorded(record, absolute_uri(self.tracking_uri), tags=present)
        else:
            uri = absolute_uri(self.tracking_uri)
            made_by = {f"version.{package}": version for package, version in versions().items()}
            if (revision := git_revision()) is not None:
                made_by["mlflow.source.git.commit"] = revision
            self._run = MLflowRun.create(uri, self.experiment, name=name, tags=made_by | present)
            write_record(record, uri, self._run.run_id)
            self._run.log_params(params)
        self._metrics = []
        self._last_steps = self._run.last_steps()
        self._system = SystemMetrics() if self.system_metrics else None
        return self

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """See `Tracker.log`."""
        if self._run is None:
            raise RuntimeError("MLflowTracker: start must be called before log")
        from mlflow.entities import Metric

        due = time.monotonic() - self._flushed >= self.flush_s
        sampled = self._system.sample() if self._system and due else {}
        now = int(time.time() * 1000)
        for name, value in {**metrics, **sampled}.items():
            key = clean_key(name)
            if step > self._last_steps.get(key, -1):
                self._metrics.append(Metric(key, float(value), now, step))
                self._last_steps[key] = step
        if due:
            self.flush()

    def flush(self) -> None:
        """See `Tracker.flush`."""
        run, metrics, self._metrics = self.run, self._metrics, []
        self._flushed = time.monotonic()
        run.log_metrics(metrics)

    def log_artifact(self, path: Path, *, folder: str | None = None) -> None:
        """See `Tracker.log_artifact`."""
        log = self.run.client.log_artifacts if Path(path).is_dir() else self.run.client.log_artifact
        log(self.run.run_id, str(path), folder)

    def log_table(self, name: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """See `Tracker.log_table`. MLflow's pages find a table by a tag; its own ``log_table`` appends to one."""
        run, file = self.run, f"{name.removesuffix('.json')}.json"
        rows = json_safe([list(row) for row in zip(*columns.values(), strict=True)])
        run.client.log_dict(run.run_id, {"columns": list(columns), "data": rows}, file)
        known = json.loads(run.client.get_run(run.run_id).data.tags.get(_TABLES_TAG, "[]"))
        entry = {"path": file, "type": "table"}
        if entry not in known:
            run.client.set_tag(run.run_id, _TABLES_TAG, json.dumps([*known, entry]))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.flush()
        finally:
            self.run.finish(run_status(kind))
