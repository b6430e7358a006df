"""What a run has to say to MLflow, first on disk, then in the store: a file of JSON lines and a
thread that sends it.

The thread is the only one that waits for MLflow. It sends entries in their order, each until the
store has taken it; one that the store already holds changes nothing, so that a spool may be sent
again from anywhere.
"""

import errno
import json
import os
import shlex
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from yamame.system.installed import recipe_command
from yamame.system.messages import one_line, print_stderr
from yamame.tracking.mlflow_store import METRICS_PER_BATCH, MLflowRun, database_of
from yamame.tracking.record import read_record

SPOOL_FILE = "mlflow.jsonl"
_KEPT_WHOLE = ("eval/", "cost/")
_BUCKETS_PER_OCTAVE = 256
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0
_open: "weakref.WeakValueDictionary[Path, Spool]" = weakref.WeakValueDictionary()
_UNTOLD_S = 1.0  # a single quick failure is often a connection that was idle for too long


def bucket(step: int) -> int:
    """Which of the intervals that get longer with the step one lies in; the first step in each is
    kept.

    Up to 512 each step is one of its own, from then on 256 share every doubling: 5,000 up to 10^8.

    >>> [bucket(step) for step in (-1, 0, 511, 512, 513, 514, 1024, 10**8)]
    [-1, 0, 511, 512, 512, 513, 768, 4989]
    """
    shift = max(0, step.bit_length() - _BUCKETS_PER_OCTAVE.bit_length())
    return shift * _BUCKETS_PER_OCTAVE + (step >> shift)


class Thinning:
    """Which points are kept: evaluations and costs all, of other metrics one per `bucket`, and no
    step twice.

    It depends on steps alone, so that a run that goes back to a checkpoint keeps the same points.

    Args:
        last: The last step that was kept, by key.
    """

    def __init__(self, last: Mapping[str, int] | None = None) -> None:
        self._last = dict(last or {})

    def keeps(self, key: str, step: int) -> bool:
        """Whether a point is kept; if so, it becomes the last of its key."""
        last = self._last.get(key, -1)
        kept = step > last if key.startswith(_KEPT_WHOLE) else bucket(step) > bucket(last)
        if kept:
            self._last[key] = step
        return kept


class Spool:
    """The entries of a run that wait for MLflow, a JSON object in a line each; empty when the store
    has them all.

    One process at a time may have it open, and once: opening it again closes the former one.

    Args:
        path: The file; made when missing. A last line that was cut off by the end of a process is
            dropped; a damaged line before it is told, and passed over.

    Attributes:
        waiting: How many points, and other entries, wait.
        closed: Whether it was left to others.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waiting = 0
        self.closed = False
        self._lock = threading.Lock()
        self._sent = 0  # bytes
        if path in _open:
            _open[path].close()
        _open[path] = self
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        lines = path.read_bytes().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            os.truncate(self._file, sum(map(len, lines)) - len(lines.pop()))
        entries = [_read(line) for line in lines]
        if damaged := [str(number) for number, entry in enumerate(entries, 1) if entry is None]:
            print_stderr(f"{path}: damaged, and not sent: line {', '.join(damaged)[:100]}")
        self.waiting = sum(_num_points(entry) for entry in entries if entry is not None)

    def append(self, **entry: Any) -> None:
        """Adds an entry; it outlives the process, and after `sync` the machine.

        Raises:
            OSError: The disk does not take it; the file is as before.
        """
        line = json.dumps(entry).encode() + b"\n"
        with self._lock:
            size = os.fstat(self._file).st_size
            try:
                written = os.write(self._file, line)
                if written != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            except OSError:
                os.truncate(self._file, size)
                raise
            self.waiting += _num_points(entry)

    def sync(self) -> None:
        """Makes what was added outlive the machine."""
        os.fsync(self._file)

    def peek(self) -> tuple[list[dict[str, Any]], int]:
        """The oldest entries that wait, metrics for one request or a single other one, and their
        size in bytes.
        """
        entries: list[dict[str, Any]] = []
        size = points = 0
        with self.path.open("rb") as file:
            file.seek(self._sent)
            for line in file:
                entry = _read(line)
                if entry is None:  # damaged
                    size += len(line)
                    continue
                points += _num_points(entry)
                if entries and (points > METRICS_PER_BATCH or "metrics" not in entry):
                    break
                entries.append(entry)
                size += len(line)
                if "metrics" not in entry:
                    break
        return entries, size

    def drop(self, entries: list[dict[str, Any]], size: int) -> None:
        """Forgets the oldest entries, which the store has; the file is emptied when nothing waits
        any more.
        """
        with self._lock:
            if self.closed:
                return
            self._sent += size
            self.waiting -= sum(map(_num_points, entries))
            if self._sent == os.fstat(self._file).st_size:
                os.truncate(self._file, 0)
                self._sent = 0

    def close(self) -> None:
        """Leaves the file to others; a request that is still under way changes nothing in it."""
        with self._lock:
            if not self.closed:
                self.closed = True
                os.close(self._file)


class Sender:
    """Sends a spool to MLflow, in a thread of its own from `start` on; nothing of it raises or
    waits but `send`.

    Args:
        spool: What is sent.
        connect: Opens the MLflow run.
        run: The run, if it is open already.
        pause_s: Seconds for which entries are gathered before they are sent together.
    """

    def __init__(
        self,
        spool: Spool,
        connect: Callable[[], MLflowRun],
        *,
        run: MLflowRun | None,
        pause_s: float,
    ) -> None:
        self.spool, self.run = spool, run
        self.sent = 0
        self._connect = connect
        self._pause_s = max(pause_s, _SHORTEST_PAUSE_S)
        self._thinning: Thinning | None = None
        self._closing, self._at_once = threading.Event(), True
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)

    def start(self, *, at_once: bool = True) -> None:
        """Starts the thread; unless ``at_once``, with a pause."""
        self._at_once = at_once
        self._thread.start()

    def send(self) -> None:
        """Sends all that waits.

        Raises:
            Exception: Whatever MLflow raises; what was not sent still waits.
        """
        while not self.spool.closed:
            entries, size = self.spool.peek()
            if not size:
                return
            if not entries:
                self.spool.drop(entries, size)
                return
            self.run = self.run or self._connect()
            # After a failure nobody knows what the store has taken, so it is asked.
            self._thinning = self._thinning or Thinning(self.run.last_steps())
            try:
                self._deliver(self.run, self._thinning, entries)
            except BaseException:
                self._thinning = None
                raise
            self.spool.drop(entries, size)
            self.sent += sum(map(_num_points, entries))

    def close(self, *, wait_s: float) -> None:
        """Waits for what is left, as long as the store takes something every so many seconds, then
        closes the spool.
        """
        self._closing.set()
        before = -1
        while self._thread.is_alive() and self.sent != before:
            before = self.sent
            self._thread.join(wait_s)
        self.spool.close()
        if self.spool.waiting:
            home = self.spool.path.parent
            server, run = (
                read_record(home)["tracking_uri"],
                shlex.quote(f"run={os.path.relpath(home)}"),
            )
            known = database_of(server) is not None or server == os.environ.get(
                "MLFLOW_TRACKING_URI"
            )
            command = (
                f"{'' if known else f'MLFLOW_TRACKING_URI={server} '}{recipe_command('sync')} {run}"
            )
            print_stderr(
                f"MLflow does not answer, {self.spool.waiting} points wait; send them with: {command}"
            )

    def _work(self) -> None:
        failures, warned, since = 0, False, time.monotonic()
        if not self._at_once:
            self._closing.wait(self._pause_s)
        while not self.spool.closed and not (self._closing.is_set() and not self.spool.waiting):
            since = since if failures else time.monotonic()
            try:
                self.send()
                if warned and not self.spool.closed:
                    print_stderr("MLflow answers again, all points are sent")
                failures, warned = 0, False
            except (
                Exception
            ) as error:  # databases, drivers and servers make MLflow raise almost anything
                failures += 1
                if not (warned or self.spool.closed) and time.monotonic() - since > _UNTOLD_S:
                    print_stderr(
                        f"MLflow does not answer, {self.spool.waiting} points wait: {one_line(error)}"
                    )
                    warned = True
            pause = min(2.0 ** (failures - 1), _LONGEST_PAUSE_S) if failures else self._pause_s
            if self._closing.wait(pause) and failures:
                time.sleep(_SHORTEST_PAUSE_S)

    def _deliver(self, run: MLflowRun, thinning: Thinning, entries: list[dict[str, Any]]) -> None:
        """Hands the entries of `Spool.peek` to the store."""
        match entries[0]:
            case {"params": params}:
                run.log_params(params)
            case {"tags": tags}:
                run.log_tags(tags)
            case {"status": status, "ms": ms}:
                run.set_status(status, ms)
            case {"artifact": path, "folder": folder}:
                run.log_artifact(self.spool.path.parent / path, folder, home=self.spool.path.parent)
            case {"model": path, "step": step, "mark": mark}:
                run.log_model(
                    self.spool.path.parent / path, step=step, mark=mark, home=self.spool.path.parent
                )
            case {"table": file, "content": content}:
                run.log_table(file, content)
            case _:
                run.log_metrics(
                    [
                        (key, value, entry["ms"], entry["step"])
                        for entry in entries
                        for key, value in entry["metrics"].items()
                        if thinning.keeps(key, entry["step"])
                    ]
                )


def _read(line: bytes) -> dict[str, Any] | None:
    """The entry of a line; None where it is damaged."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and len(entry.get("metrics", "m")) else None


def _num_points(entry: Mapping[str, Any]) -> int:
    return len(entry.get("metrics", (None,)))
