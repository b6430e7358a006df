"""Experiment tracking behind one small protocol: MLflow, or nothing.

A tracker is built from configuration alone and writes nothing until `start`. It then is a context
manager that closes the run with the truth: FINISHED, FAILED on an error, KILLED on Ctrl-C or a
signal.
"""

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from yamame.checks import UsageError, require
from yamame.files.atomic import json_safe
from yamame.files.run_directory import RunDirectory
from yamame.system.messages import one_line
from yamame.tracking.costs import SystemMetrics
from yamame.tracking.history import CHANGED_TAG
from yamame.tracking.machine import machine
from yamame.tracking.mlflow_store import RUN_TAG, MLflowRun, NoAnswerError, absolute_uri, clean_key
from yamame.tracking.pages import run_address, ui_command
from yamame.tracking.record import RUN_FILE, open_run, read_record, write_record
from yamame.tracking.sessions import note_session
from yamame.tracking.spool import SPOOL_FILE, Sender, Spool, Thinning
from yamame.tracking.summary import git_revision, run_status, versions

TRACKING_URI = os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
"""MLflow's own setting, else where ``mlflow ui`` looks by itself when it is started in the same
directory.
"""
EXPERIMENT = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "yamame"
PARENT_VARIABLE = "YAMAME_MLFLOW_PARENT"
"""Environment variable with the id of the run that new runs become children of."""


class Tracker(Protocol):
    """What a recipe may ask of a tracker. A context manager that closes the run; this one does
    nothing.
    """

    def start(
        self,
        directory: Path,
        *,
        name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str] | None = None,
    ) -> Self:
        """Opens the run of a run directory: the one recorded there, else a new one.

        Args:
            directory: The run's directory.
            name: Name of a new run.
            params: Flat configuration, recorded for a new run only.
            tags: What else to say of the run as it is now; they replace those of a run that goes
                on.
        """
        return self

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Records metrics at a step of the run. A step not beyond the last one of a key is
        dropped.
        """

    def flush(self) -> None:
        """Makes everything logged so far outlive the machine. Call it before each checkpoint."""

    def log_artifact(self, path: Path, *, folder: str | None = None) -> None:
        """Records a copy of a file or directory, which is made later: it must stay where it is."""

    def log_table(self, name: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """Records a table, given by columns of equal length, in place of one of the same name."""

    def log_model(self, folder: Path, make: Callable[[Path], Any], *, step: int) -> None:
        """Records what the run has learned up to a step as an MLflow model, which ``make`` writes
        to a new folder.
        """

    def pages(self) -> list[str]:
        """How a person gets to see the run: commands, addresses; nothing where there is nothing to
        see.
        """
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
    """Tracks a run with MLflow, which is waited for when a new run starts and, for a while, at the
    end, never between.

    Everything goes to a `Spool` in the run directory and from there to the store, by a thread.
    While MLflow does not answer it waits in the spool; what is left at the end is sent when the run
    is continued or by ``recipes/sync.py``.

    The run's store and id are kept in ``mlflow.json`` of the run directory, so a continued run goes
    on in the same MLflow run whatever the configuration or the working directory say. Metrics that
    the store already holds are never stored again: a run that goes back to a checkpoint repeats its
    steps silently until it passes the last recorded one. On long runs not every point is stored,
    see `Thinning`.

    Args:
        tracking_uri: A store as MLflow knows them; a relative SQLite path is relative to the
            working directory.
        experiment: Name of the experiment; made when missing, with its artifacts in ``mlruns``
            beside a SQLite database.
        system_metrics: Add the load of the machine and the process whenever metrics go to the
            store.
        flush_s: Seconds for which metrics are gathered before they go to the store in one
            transaction.
        wait_s: Seconds without an answer after which the end of a run waits for MLflow no more.
        models: Record the agent of a run that has finished as an MLflow model.
    """

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
        self._sampled = time.monotonic()
        self._sender: Sender | None = None
        self._system: SystemMetrics | None = None

    @property
    def sender(self) -> Sender:
        """What sends to the open run.

        Raises:
            RuntimeError: `start` was not called.
        """
        if self._sender is None:
            raise RuntimeError("MLflowTracker: start must be called first")
        return self._sender

    @property
    def run(self) -> MLflowRun | None:
        """The open run; None as long as the store of a run that goes on has not answered."""
        return self.sender.run

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
        parent = os.environ.get(PARENT_VARIABLE)
        made_by = _made_by()
        present = made_by | ({"mlflow.parentRunId": parent} if parent else {}) | dict(tags or {})
        resumed = (directory / RUN_FILE).exists() and "run_id" in read_record(directory)
        if not (directory / RUN_FILE).exists():
            uri = absolute_uri(self.tracking_uri)
            intent = {
                "tracking_uri": uri,
                "experiment": self.experiment,
                "run_uuid": uuid.uuid4().hex,
            }
            write_record(directory, intent)
        run, made = None, False
        try:
            run = open_run(directory, tracking_uri=absolute_uri(self.tracking_uri))
        except NoAnswerError:
            if "run_id" not in read_record(directory):
                raise
        if changed := note_session(directory, made_by, params, resumed=resumed):
            present[CHANGED_TAG] = changed
        spool = Spool(directory / SPOOL_FILE)
        # Before the run is made: whoever sends the spool sends the parameters before anything else.
        spool.append(params={key: str(value) for key, value in params.items()})
        if made := run is None and "run_id" not in read_record(directory):
            try:
                run = _create_run(directory, name=name, tags=present)
            except UsageError:
                spool.close()
                raise
        spool.append(tags=present)
        spool.append(status="RUNNING", ms=_now())
        self._sender = Sender(
            spool, lambda: _there(open_run(directory), directory), run=run, pause_s=self.flush_s
        )
        sent = False
        if made:
            with contextlib.suppress(Exception):  # the thread tries again, and tells
                self._sender.send()
                sent = True
        self._thinning = Thinning()
        self._system = SystemMetrics() if self.system_metrics else None
        self._sender.start(at_once=not sent)
        return self

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """See `Tracker.log`."""
        spool = self.sender.spool
        due = time.monotonic() - self._sampled >= self.flush_s
        sampled = self._system.sample() if self._system and due else {}
        self._sampled = time.monotonic() if due else self._sampled
        values = {clean_key(name): float(value) for name, value in {**metrics, **sampled}.items()}
        kept = {key: value for key, value in values.items() if self._thinning.keeps(key, step)}
        if kept:
            spool.append(metrics=kept, step=step, ms=_now())

    def flush(self) -> None:
        """See `Tracker.flush`."""
        self.sender.spool.sync()

    def log_artifact(self, path: Path, *, folder: str | None = None) -> None:
        """See `Tracker.log_artifact`."""
        spool = self.sender.spool
        path, home = Path(path).resolve(), spool.path.parent.resolve()
        condition = f"lie in the run's directory, {home}"
        require("log_artifact", "path", str(path), path.is_relative_to(home), condition)
        spool.append(artifact=str(path.relative_to(home)), folder=folder)

    def log_table(self, name: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """See `Tracker.log_table`."""
        rows = json_safe([list(row) for row in zip(*columns.values(), strict=True)])
        file = f"{name.removesuffix('.json')}.json"
        self.sender.spool.append(table=file, content={"columns": list(columns), "data": rows})

    def log_model(self, folder: Path, make: Callable[[Path], Any], *, step: int) -> None:
        """See `Tracker.log_model`."""
        if self.models:
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            home = self.sender.spool.path.parent.resolve()
            path = str(folder.resolve().relative_to(home))
            self.sender.spool.append(model=path, step=step, mark=uuid.uuid4().hex)

    def pages(self) -> list[str]:
        """See `Tracker.pages`."""
        if self._sender is None or self.run is None:  # a new run may have been refused by the store
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
            self.sender.spool.append(status=run_status(kind), ms=_now())
            self.flush()
        finally:
            self.sender.close(wait_s=self.wait_s)


def send_rest(directory: Path) -> int:
    """Sends what the spool of a run directory still holds, while no run is writing there.

    Returns:
        How many points and other entries were sent.

    Raises:
        UsageError: It is no run's directory, a run is writing there, or MLflow does not take
            everything.
    """
    directory = directory.resolve()
    claimed = RunDirectory.open(directory.parent, directory.name, resume=True)
    try:
        if not (directory / SPOOL_FILE).exists():
            return 0
        spool = Spool(directory / SPOOL_FILE)
        uri = absolute_uri(os.environ.get("MLFLOW_TRACKING_URI") or TRACKING_URI)
        sender = Sender(
            spool,
            lambda: _there(open_run(directory, tracking_uri=uri), directory),
            run=None,
            pause_s=0.0,
        )
        try:
            sender.send()
        except Exception as error:
            raise UsageError(
                f"{directory}: {sender.sent} points are sent, {spool.waiting} wait: {one_line(error)}"
            ) from error
        finally:
            spool.close()
        return sender.sent
    finally:
        claimed.close()


def _there(run: MLflowRun | None, directory: Path) -> MLflowRun:
    if run is None:
        raise UsageError(f"{directory}: there must be a run in MLflow, it died before; resume it")
    return run


def _create_run(directory: Path, *, name: str, tags: Mapping[str, str]) -> MLflowRun:
    """Makes the MLflow run that a run directory intends to have."""
    record = read_record(directory)
    tags = {**tags, RUN_TAG: record["run_uuid"]}
    run = MLflowRun.create(record["tracking_uri"], record["experiment"], name=name, tags=tags)
    write_record(directory, {**record, "run_id": run.run_id})
    return run


def _made_by() -> dict[str, str]:
    """Tags with versions, the kind of machine, and the commit, which outside of a checkout is
    unknown.
    """
    made_by = {f"version.{package}": version for package, version in versions().items()}
    made_by |= {f"machine.{name}": value for name, value in machine().items()}
    return made_by | {"mlflow.source.git.commit": git_revision() or "unknown"}


def _now() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)
