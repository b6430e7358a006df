"""Experiment tracking behind one small protocol: MLflow, or nothing.

A tracker is built from configuration alone and writes nothing until `start`. It then is a context
manager that closes the run with its true status: FINISHED, FAILED on an error, KILLED on Ctrl-C or
a signal.
"""

import contextlib
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from yamame.checks import UsageError, check_bounds, require
from yamame.files.atomic import json_safe
from yamame.files.run_directory import RunDirectory
from yamame.system.messages import format_value, one_line, print_stderr
from yamame.tracking.costs import SystemMetrics
from yamame.tracking.history import CHANGED_TAG
from yamame.tracking.log import METRICS_FILE, JsonLines
from yamame.tracking.machine import machine
from yamame.tracking.mlflow_store import RUN_TAG, MLflowRun, NoAnswerError, absolute_uri
from yamame.tracking.names import clean_key, is_inner_path, is_renamed
from yamame.tracking.pages import run_address, ui_command
from yamame.tracking.record import RUN_FILE, open_run, read_record, write_record
from yamame.tracking.sender import ENTRIES_FILE, Sender
from yamame.tracking.sessions import note_session
from yamame.tracking.summary import git_revision, run_status, versions

TRACKING_URI = os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
"""Default store: MLflow's own setting, else where ``mlflow ui`` looks if it is started in the same
directory.
"""
EXPERIMENT = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "yamame"
PARENT_VARIABLE = "YAMAME_MLFLOW_PARENT"
"""Environment variable with the id of the run that new runs become children of."""


class Tracker(Protocol):
    """Interface of a tracker: a context manager that closes the run. This one does nothing."""

    def start(
        self,
        directory: Path,
        *,
        name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str] | None = None,
    ) -> Self:
        """Open the run of a run directory: the one recorded there, else a new one.

        Args:
            directory: The run's directory.
            name: Name of a new run.
            params: Flat configuration, stored for a new run only.
            tags: Description of the run as it is now. They replace tags of a continued run.
        """
        return self

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Log metrics at a step. A step not beyond the last one of a metric is not stored."""

    def flush(self) -> None:
        """Make everything logged so far survive a power failure. Call it before each checkpoint."""

    def log_artifact(self, path: Path, *, folder: str | None = None) -> None:
        """Store a copy of a file or directory. It is copied later, so it must stay in its place."""

    def log_table(self, name: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """Store a table, given by columns of equal length, in place of one of the same name."""

    def log_model(self, folder: Path, make: Callable[[Path], Any], *, step: int) -> None:
        """Store the agent of a step as an MLflow model, which ``make`` writes to a new folder."""

    def pages(self) -> list[str]:
        """Return commands and addresses that show the run to a person."""
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class NullTracker(Tracker):
    """Tracks nothing.

    >>> with NullTracker().start(Path("runs/a"), name="a", params={}) as tracker:
    ...     tracker.log({"loss": 1.0}, step=1)
    """


class MLflowTracker(Tracker):
    """Tracks a run with MLflow.

    Metrics are appended to ``metrics.jsonl`` of the run directory, everything else to
    ``mlflow.jsonl``. A thread follows both files and sends them (`yamame.tracking.sender`). Only
    the start of a new run waits for MLflow and, for a limited time, the end. While MLflow does not
    answer the files grow; the rest is sent when the run is continued, or by ``recipes/sync.py``.

    Store and id of the MLflow run are kept in ``mlflow.json`` of the run directory, so that a
    continued run uses the same MLflow run, whatever the configuration or the working directory.
    Metrics that the store already holds are not stored again: a run that continues from an earlier
    checkpoint repeats its steps silently until it passes the last stored one. Of long runs not
    every point is stored (`yamame.tracking.thinning`); the log has all of them.

    Args:
        tracking_uri: A store as MLflow knows them. A relative SQLite path is relative to the
            working directory.
        experiment: Name of the experiment; created if missing, with its artifacts in ``mlruns``
            beside a SQLite database.
        system_metrics: Add the load of the machine and of the process.
        flush_s: Seconds for which metrics are gathered before they are sent in one transaction.
        wait_s: Seconds without an answer after which the end of a run waits no longer.
        models: Store the agent of a finished run as an MLflow model.
    """

    @check_bounds
    def __init__(
        self,
        *,
        tracking_uri: str = TRACKING_URI,
        experiment: str = EXPERIMENT,
        system_metrics: bool = True,
        flush_s: float = 5.0,
        wait_s: float = 10.0,
        models: bool = True,
    ):
        self.tracking_uri = tracking_uri
        self.experiment = experiment
        self.system_metrics = system_metrics
        self.flush_s = flush_s
        self.wait_s = wait_s
        self.models = models
        self._sampled_at = time.monotonic()
        self._keys: dict[str, str | None] = {}
        self._open: _OpenRun | None = None
        self._system: SystemMetrics | None = None

    @property
    def sender(self) -> Sender:
        """Sender of the open run.

        Raises:
            RuntimeError: `start` was not called.
        """
        return self._opened.sender

    @property
    def run(self) -> MLflowRun | None:
        """Open MLflow run; None while the store of a continued run has not answered."""
        return self.sender.run

    @property
    def _opened(self) -> "_OpenRun":
        if self._open is None:
            raise RuntimeError("MLflowTracker: start must be called first")
        return self._open

    def start(
        self,
        directory: Path,
        *,
        name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str] | None = None,
    ) -> Self:
        """See `Tracker.start`.

        Raises:
            UsageError: The recorded run is not in its store, or the store takes no new one.
        """
        directory = Path(directory).absolute()
        made_by = _made_by()
        present = _storable("tag", {**made_by, **(tags or {})})
        parent = os.environ.get(PARENT_VARIABLE)
        if parent:
            present.setdefault("mlflow.parentRunId", parent)

        tracking_uri = absolute_uri(self.tracking_uri)
        resumed = self._record_intent(directory, tracking_uri)
        run = _open_recorded(directory, tracking_uri)
        changed = note_session(directory, made_by, params, resumed=resumed)
        if changed:
            present[CHANGED_TAG] = changed

        # Before anything is appended: it compares its offsets with the sizes of the files.
        sender = Sender(
            directory,
            lambda: _existing(open_run(directory, tracking_uri=tracking_uri), directory),
            run=run,
            pause_s=self.flush_s,
        )
        log = JsonLines(directory / METRICS_FILE)
        entries = JsonLines(directory / ENTRIES_FILE)
        # Parameters are logged before the run is created, so that they are the first entry for
        # every later sender.
        stored = _storable("parameter", params)
        entries.append({"params": {key: str(value) for key, value in stored.items()}})
        is_new = run is None and "run_id" not in read_record(directory)
        if is_new:
            try:
                sender.run = _create_run(directory, tracking_uri, name=name, tags=present)
            except UsageError:
                log.close()
                entries.close()
                raise
        entries.append({"tags": present})
        entries.append({"status": "RUNNING", "ms": _milliseconds()})

        self._open = _OpenRun(directory, log, entries, sender)
        self._system = SystemMetrics() if self.system_metrics else None
        is_sent = False
        if is_new:
            with contextlib.suppress(Exception):  # the thread tries again, and warns
                sender.send()
                is_sent = True
        sender.start(at_once=not is_sent)
        return self

    def _record_intent(self, directory: Path, tracking_uri: str) -> bool:
        """Record where the run will be created; return whether it was created before.

        The intent stands on disk before the run is created, so that the run is found by its number
        if the process dies in between.
        """
        if (directory / RUN_FILE).exists():
            return "run_id" in read_record(directory)
        intent = {
            "tracking_uri": tracking_uri,
            "experiment": self.experiment,
            "run_uuid": uuid.uuid4().hex,
        }
        write_record(directory, intent)
        return False

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """See `Tracker.log`."""
        log = self._opened.log
        now = time.monotonic()
        sampled: dict[str, float] = {}
        # Not more often than metrics are sent: reading the load takes a millisecond.
        if now - self._sampled_at >= self.flush_s:
            self._sampled_at = now
            if self._system is not None:
                sampled = self._system.sample()

        # The log has the names that MLflow stores.
        values = {}
        for name, value in {**metrics, **sampled}.items():
            if name not in self._keys:
                self._keys[name] = _storable_key("metric", name, self._keys.values())
            key = self._keys[name]
            if key is not None:
                values[key] = _as_float(value)
        if values:
            log.append({"step": step, "time": round(time.time(), 3), "metrics": values})

    def flush(self) -> None:
        """See `Tracker.flush`."""
        self._opened.log.flush()
        self._opened.entries.flush()

    def log_artifact(self, path: Path, *, folder: str | None = None) -> None:
        """See `Tracker.log_artifact`."""
        home = self._opened.directory.resolve()
        path = Path(path).resolve()
        condition = f"lie in the run's directory, {home}"
        require("log_artifact", "path", str(path), path.is_relative_to(home), condition)
        is_inner = not folder or is_inner_path(folder)
        require("log_artifact", "folder", folder, is_inner, "be a relative path without '..'")
        self._opened.entries.append({"artifact": str(path.relative_to(home)), "folder": folder})

    def log_table(self, name: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """See `Tracker.log_table`."""
        # MLflow's pages expect rows.
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        content = {"columns": list(columns), "data": json_safe(rows)}
        file = f"{name.removesuffix('.json')}.json"
        require("log_table", "name", name, is_inner_path(file), "be a relative path without '..'")
        self._opened.entries.append({"table": file, "content": content})

    def log_model(self, folder: Path, make: Callable[[Path], Any], *, step: int) -> None:
        """See `Tracker.log_model`."""
        if not self.models:
            return
        # A former session may have left a model of an earlier step.
        shutil.rmtree(folder, ignore_errors=True)
        make(folder)
        home = self._opened.directory.resolve()
        path = str(folder.resolve().relative_to(home))
        # By the mark a model that is sent twice is stored once.
        self._opened.entries.append({"model": path, "step": step, "mark": uuid.uuid4().hex})

    def pages(self) -> list[str]:
        """See `Tracker.pages`."""
        # A run that never began has no sender: the store refused it.
        if self._open is None or self.run is None:
            return []
        uri = self.run.client.tracking_uri
        address = run_address(uri, self.run.experiment_id, self.run.run_id)
        command = ui_command(uri)
        return [address] if command is None else [command, address]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            # The last entry: it is sent after everything that was logged.
            self._opened.entries.append({"status": run_status(kind), "ms": _milliseconds()})
            self.flush()
        finally:
            self.sender.close(wait_s=self.wait_s)
            self._opened.log.close()
            self._opened.entries.close()


@dataclass(frozen=True)
class _OpenRun:
    """Files of a run that is written, and their sender."""

    directory: Path
    log: JsonLines
    entries: JsonLines
    sender: Sender


def send_rest(directory: Path) -> int:
    """Send everything of a run directory that MLflow has not got, while no run is writing there.

    Returns:
        Number of points and other entries that were sent.

    Raises:
        UsageError: The directory belongs to no run, a run is writing there, or MLflow does not take
            everything.
    """
    directory = directory.resolve()
    # The claim keeps a run from writing there meanwhile.
    claimed = RunDirectory.open(directory.parent, directory.name, resume=True)
    try:
        tracking_uri = absolute_uri(os.environ.get("MLFLOW_TRACKING_URI") or TRACKING_URI)
        sender = Sender(
            directory,
            lambda: _existing(open_run(directory, tracking_uri=tracking_uri), directory),
            run=None,
            pause_s=0.0,
        )
        try:
            sender.send()
        except Exception as error:
            waiting = sender.count_waiting()
            raise UsageError(
                f"{directory}: {sender.sent} points are sent, {waiting} wait: {one_line(error)}"
            ) from error
        return sender.sent
    finally:
        claimed.close()


def _existing(run: MLflowRun | None, directory: Path) -> MLflowRun:
    if run is None:
        raise UsageError(
            f"{directory}: no run in MLflow, the process died before it was created",
            remedy="resume the run",
        )
    return run


def _open_recorded(directory: Path, tracking_uri: str) -> MLflowRun | None:
    """Return the run of a directory; None if there is none, or its store does not answer."""
    try:
        return open_run(directory, tracking_uri=tracking_uri)
    except NoAnswerError:
        # Only a new run needs its store now; a continued one is sent later.
        if "run_id" not in read_record(directory):
            raise
        return None


def _create_run(
    directory: Path, tracking_uri: str, *, name: str, tags: Mapping[str, str]
) -> MLflowRun:
    """Create the MLflow run that the record of a run directory announces.

    It is created in the store that the user named: a stranger's record could name any file.
    """
    record = {**read_record(directory), "tracking_uri": tracking_uri}
    write_record(directory, record)
    run = MLflowRun.create(
        record["tracking_uri"],
        record["experiment"],
        name=name,
        tags={**tags, RUN_TAG: record["run_uuid"]},
    )
    write_record(directory, {**record, "run_id": run.run_id})
    return run


def _storable(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by names that MLflow stores, and warn about the others."""
    stored: dict[str, Any] = {}
    for name, value in values.items():
        key = _storable_key(kind, name, stored)
        if key is not None:
            stored[key] = value
    return stored


def _storable_key(kind: str, name: str, taken: Collection[str | None]) -> str | None:
    """Return the name under which MLflow stores a value, with a warning if it is another one.

    Args:
        kind: Kind of the value, for the warning.
        name: Name that was logged.
        taken: Names that MLflow has from other logged names.

    Returns:
        The name; None if another value has it.
    """
    key = clean_key(name)
    shown = f"{kind} {format_value(name)}"
    if key in taken:
        print_stderr(f"{shown}: not logged, MLflow has another {kind} of the name {key}")
        return None
    if is_renamed(name):
        print_stderr(f"{shown}: logged as {key}, MLflow does not take such a name")
    return key


def _as_float(value: float) -> float:
    """Return a number as float; an infinity for an integer beyond floats."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _made_by() -> dict[str, str]:
    """Return tags with versions, the kind of machine, and the commit."""
    made_by = {f"version.{package}": version for package, version in versions().items()}
    made_by |= {f"machine.{name}": value for name, value in machine().items()}
    made_by["mlflow.source.git.commit"] = git_revision() or "unknown"
    return made_by


def _milliseconds() -> int:
    """Return the time in milliseconds since 1970; 0 if a wrong clock shows an earlier time."""
    return max(0, int(time.time() * 1000))
