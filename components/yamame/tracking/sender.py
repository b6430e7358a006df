"""Sending a run to MLflow: a thread follows the files of the run directory.

Metrics are read from ``metrics.jsonl``. Everything else that MLflow stores (parameters, tags,
files, tables, models, status) is in ``mlflow.jsonl``, an entry per line. Both files only grow;
``mlflow.sent.json`` holds how far they were sent. Whatever is sent twice is stored once, so an
offset may be older than the truth, and never newer.
"""

import contextlib
import json
import os
import shlex
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from yamame.checks import UsageError
from yamame.files.atomic import TEMPORARY_SUFFIX, read_json
from yamame.system.installed import recipe_command
from yamame.system.messages import one_line, print_stderr
from yamame.tracking.entries import parse_entry, parse_metrics
from yamame.tracking.follower import Batch, Follower
from yamame.tracking.log import METRICS_FILE
from yamame.tracking.mlflow_store import MLflowRun, database_of
from yamame.tracking.record import RUN_FILE, read_record
from yamame.tracking.refusals import Refusals
from yamame.tracking.thinning import Thinning

ENTRIES_FILE = "mlflow.jsonl"
OFFSETS_FILE = "mlflow.sent.json"
_SHORTEST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
_SILENT_FAILURE_S = 1.0


class Sender:
    """Sends the files of a run directory to MLflow, in a thread once `start` was called.

    The thread is the only part of a run that waits for MLflow. It sends lines in their order and
    repeats each request until the store has taken it, or has refused it for good
    (`yamame.tracking.refusals`).

    Create it before anything is appended to the files: offsets that are older or newer than the
    files, as in a restored copy, are recognised by the sizes of the files.

    Args:
        directory: The run directory.
        connect: Opens the MLflow run.
        run: The MLflow run, if it is open already.
        pause_s: Seconds for which lines are gathered before they are sent together.

    Attributes:
        sent: Number of points of metrics, and other entries, that this sender has sent.
        stopped: Whether `stop` was called.
    """

    def __init__(
        self,
        directory: Path,
        connect: Callable[[], MLflowRun],
        *,
        run: MLflowRun | None,
        pause_s: float,
    ) -> None:
        self.directory = directory
        self.run = run
        self.sent = 0
        self.stopped = False
        self._connect = connect
        self._pause_s = max(pause_s, _SHORTEST_PAUSE_S)
        self._run_uuid, offsets = _read_offsets(directory)
        metrics_offset = offsets.get(METRICS_FILE, 0)
        entries_offset = offsets.get(ENTRIES_FILE, 0)
        self._metrics = Follower(directory / METRICS_FILE, parse_metrics, metrics_offset)
        self._entries = Follower(directory / ENTRIES_FILE, parse_entry, entries_offset)
        self._refusals = Refusals(directory)
        self._thinning: Thinning | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._pauses_first = False
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        if (self._metrics.offset, self._entries.offset) != (metrics_offset, entries_offset):
            # At once: the files may have grown past a wrong offset when the next process reads it.
            self._write_offsets()

    def start(self, *, at_once: bool = True) -> None:
        """Start the thread, which pauses before its first request unless ``at_once``."""
        self._pauses_first = not at_once
        self._thread.start()

    def count_waiting(self) -> int:
        """Count points of metrics and other entries that were not sent yet."""
        return self._metrics.count_waiting() + self._entries.count_waiting()

    def send(self) -> None:
        """Send everything that waits.

        Raises:
            Exception: Any error of MLflow. What was not sent still waits.
        """
        while not self.stopped:
            batch = self._entries.read_batch()
            # The status that ends a run is sent last, the parameters of a new run first.
            if batch is None or _is_status(batch):
                self._send_metrics()
            if batch is None:
                return
            self._send(self._entries, batch)

    def close(self, *, wait_s: float) -> None:
        """Wait until everything is sent, then stop.

        Args:
            wait_s: Seconds without a successful request after which the rest is left for later;
                the command that sends it is printed.
        """
        self._closing.set()
        sent_before = -1
        while self._thread.is_alive() and self.sent != sent_before:
            sent_before = self.sent
            self._thread.join(wait_s)
        self.stop()

        waiting = self.count_waiting()
        if waiting:
            command = _sync_command(self.directory)
            print_stderr(
                f"MLflow does not answer, {waiting} points wait; send them with: {command}"
            )

    def stop(self) -> None:
        """Send no more. A request that is under way changes no file."""
        with self._lock:
            self.stopped = True

    def _work(self) -> None:
        if self._pauses_first:
            self._closing.wait(self._pause_s)

        failures = 0
        warned = False
        failing_since = time.monotonic()
        while not self.stopped:
            closing = self._closing.is_set()
            if failures == 0:
                failing_since = time.monotonic()

            try:
                self.send()
            except Exception as error:  # MLflow raises errors of databases, drivers and servers
                failures += 1
                failing_s = time.monotonic() - failing_since
                # A single quick failure is often a connection that was idle for too long.
                if failing_s > _SILENT_FAILURE_S and not warned and not self.stopped:
                    waiting = self.count_waiting()
                    print_stderr(
                        f"MLflow does not answer, {waiting} points wait: {one_line(error)}"
                    )
                    warned = True
            else:
                failures = 0
                if warned and not self.stopped:
                    print_stderr("MLflow answers again, all points are sent")
                warned = False
                if closing:
                    return

            if failures == 0:
                self._closing.wait(self._pause_s)
            elif self._closing.wait(min(2.0 ** (failures - 1), _LONGEST_PAUSE_S)):
                time.sleep(_SHORTEST_PAUSE_S)

    def _send_metrics(self) -> None:
        while not self.stopped:
            batch = self._metrics.read_batch()
            if batch is None:
                return
            self._send(self._metrics, batch)

    def _send(self, follower: Follower, batch: Batch) -> None:
        """Send a batch and move the offset of its file past it."""
        if batch.num_points:
            # Only now, so that a run without anything to send needs no store.
            if self.run is None:
                self.run = self._connect()
            if batch.entry is not None:
                self._send_entry(self.run, batch.entry)
            else:
                self._send_points(self.run, batch)

        with self._lock:
            # Another process may send the rest already, from the offsets in the file.
            if self.stopped:
                return
            if batch.damaged:
                _report_damage(follower, batch)
            follower.advance(batch)
            self.sent += batch.num_points
            self._write_offsets()

    def _send_points(self, run: MLflowRun, batch: Batch) -> None:
        # The store knows best what it has: offsets may be old, and an answer may have been lost.
        if self._thinning is None:
            self._thinning = Thinning(run.last_steps())

        points = []
        for record in batch.records:
            milliseconds = round(record.time * 1000)
            for name, value in record.metrics.items():
                if self._thinning.accept(name, record.step):
                    points.append((name, value, milliseconds, record.step))
        try:
            self._refusals.store(run, points, run.log_metrics, _describe_point)
        except BaseException:
            # The store may have accepted some points before it failed, so its last steps are read
            # again.
            self._thinning = None
            raise

    def _send_entry(self, run: MLflowRun, entry: Mapping[str, Any]) -> None:
        """Store an entry that is no metrics, as `parse_entry` returned it."""
        match entry:
            case {"params": values}:
                self._send_values(run, "params", values, run.log_params)
            case {"tags": values}:
                self._send_values(run, "tags", values, run.log_tags)
            case _:
                kind = next(iter(entry))
                name = f"the {kind} {entry[kind]}"
                self._refusals.store(
                    run,
                    [entry],
                    lambda entries: _store_entry(run, entries[0], self.directory),
                    lambda entry: (name, entry),
                )

    def _send_values(
        self,
        run: MLflowRun,
        kind: str,
        values: Mapping[str, Any],
        store: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """Store parameters or tags."""
        self._refusals.store(
            run,
            list(values.items()),
            lambda items: store(dict(items)),
            lambda item: (f"the {kind[:-1]} {item[0]!r}", {kind: dict([item])}),
        )

    def _write_offsets(self) -> None:
        offsets: dict[str, Any] = {
            "run_uuid": self._run_uuid,
            METRICS_FILE: self._metrics.offset,
            ENTRIES_FILE: self._entries.offset,
        }
        path = self.directory / OFFSETS_FILE
        temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
        # Not flushed to disk, and no failure: with an older offset some lines are sent again.
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(offsets) + "\n")
            temporary.rename(path)


def _read_offsets(directory: Path) -> tuple[str | None, dict[str, int]]:
    """Return the ``run_uuid`` of the MLflow run, and how far each file was sent to it."""
    run_uuid = None
    try:
        run_uuid = read_json(directory / RUN_FILE).get("run_uuid")
        noted = read_json(directory / OFFSETS_FILE)
    except (OSError, UsageError):
        # A new run, one of an earlier version, or one without a record: everything waits.
        return run_uuid, {}
    if noted.get("run_uuid") != run_uuid:
        # The user deleted the record to continue in a new MLflow run, which gets everything.
        return run_uuid, {}
    offsets = {name: value for name, value in noted.items() if isinstance(value, int)}
    return run_uuid, offsets


def _report_damage(follower: Follower, batch: Batch) -> None:
    """Print the numbers of the damaged lines in a batch."""
    # Counted only now and not while reading, because damage is rare.
    numbers = follower.line_numbers(batch.damaged)
    shown = ", ".join(map(str, numbers))
    num_hidden = batch.num_damaged - len(numbers)
    if num_hidden > 0:
        shown += f" and {num_hidden} more"
    print_stderr(f"{follower.path}: damaged, and not sent: line {shown}")


def _is_status(batch: Batch) -> bool:
    return batch.entry is not None and "status" in batch.entry


def _describe_point(point: tuple[str, float, int, int]) -> tuple[str, dict[str, Any]]:
    """Return the name of a point of a metric, and the point as a line of ``metrics.jsonl``."""
    name, value, milliseconds, step = point
    entry = {"step": step, "time": milliseconds / 1000, "metrics": {name: value}}
    return f"the metric {name!r}", entry


def _store_entry(run: MLflowRun, entry: Mapping[str, Any], home: Path) -> None:
    """Store a status, file, model or table."""
    match entry:
        case {"status": status, "ms": milliseconds}:
            run.set_status(status, milliseconds)
        case {"artifact": path, "folder": folder}:
            run.log_artifact(home / path, folder, home=home)
        case {"model": path, "step": step, "mark": mark}:
            run.log_model(home / path, step=step, mark=mark, home=home)
        case {"table": file, "content": content}:
            run.log_table(file, content)


def _sync_command(directory: Path) -> str:
    """Return the command that sends the rest of a run."""
    run = shlex.quote(f"run={os.path.relpath(directory)}")
    command = f"{recipe_command('sync')} {run}"
    try:
        tracking_uri = read_record(directory)["tracking_uri"]
    except UsageError:
        return command  # the command reports the damaged record
    is_database = database_of(tracking_uri) is not None
    if is_database or tracking_uri == os.environ.get("MLFLOW_TRACKING_URI"):
        return command
    # A server that only the run directory names may be a stranger's: the user has to name it.
    return f"MLFLOW_TRACKING_URI={tracking_uri} {command}"
