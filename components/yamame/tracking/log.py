"""Log of a run: all metrics, as lines of JSON in ``metrics.jsonl`` of the run directory.

A line is ``{"step": 64, "time": 1767225600.5, "metrics": {"train/loss": 0.5}}`` with the time in
seconds since 1970. Lines are only ever appended, so that a run which continues from an earlier
checkpoint logs some steps twice; `read_metrics` drops the repetition.
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from yamame.checks import UsageError

METRICS_FILE = "metrics.jsonl"
_CHUNK = 2**16


@dataclass(frozen=True)
class MetricRecord:
    """Metrics of one step.

    Attributes:
        step: Position on the axis of the run, mostly environment steps.
        time: Time of the measurement, seconds since 1970.
        metrics: Values by name.
    """

    step: int
    time: float
    metrics: dict[str, float]


class JsonLines:
    """File of JSON objects, one per line, that only grows.

    A last line without an end, which a killed process left, is removed when the file is opened. Not
    thread-safe: a file must have only one writer.

    Args:
        path: The file; created if missing.

    Raises:
        UsageError: ``path`` is a link or not a regular file.
    """

    def __init__(self, path: Path) -> None:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            message = f"{path} must be a file, not a link, pipe or directory"
            raise UsageError(message, remedy="remove it")
        self.path = path
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        # A link that was made since the check makes this fail instead of leading elsewhere.
        flags |= os.O_NOFOLLOW
        self._file = os.open(path, flags, 0o644)
        size = os.fstat(self._file).st_size
        complete = _end_of_last_line(path)
        if complete < size:
            os.truncate(self._file, complete)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append an object. It survives the process, and after `flush` a power failure.

        Raises:
            OSError: The line cannot be written, as on a full disk. The file is unchanged.
        """
        # NaN and infinities become NaN and Infinity: not strict JSON, but Python and pandas read
        # it.
        line = json.dumps(entry).encode() + b"\n"
        size = os.fstat(self._file).st_size
        try:
            # One unbuffered write: when the process is killed, at most this line is incomplete.
            written = os.write(self._file, line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        except OSError as error:
            # Remove the partial line, or the next append would be glued to it.
            os.truncate(self._file, size)
            error.filename = error.filename or str(self.path)
            raise

    def flush(self) -> None:
        """Flush the file to disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file; `append` then raises an ``OSError``."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1  # the number may soon belong to another file


def is_plain_file(path: Path) -> bool:
    """Return whether a path is a regular file and not a symbolic link."""
    # Links are rejected: a downloaded run could point outside of its directory.
    return path.is_file() and not path.is_symlink()


def _end_of_last_line(path: Path) -> int:
    """Return the size of a file without a last line that has no end."""
    # From the end, because the log of a long run has hundreds of megabytes.
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _CHUNK)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line; None if the line is damaged."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):  # a ValueError also for bytes that are not UTF-8
        return None
    if not isinstance(entry, dict):
        return None
    return entry


def as_record(entry: Mapping[str, Any]) -> MetricRecord | None:
    """Return the metrics of a line; None if it holds none or is malformed.

    Earlier versions wrote the time as ``ms``, milliseconds since 1970.
    """
    metrics = entry.get("metrics")
    step = entry.get("step")
    seconds = entry.get("time")
    if "ms" in entry and _is_number(entry["ms"]):
        seconds = entry["ms"] / 1000

    if not isinstance(metrics, dict) or not metrics:
        return None
    # Not by isinstance, for which True is an int.
    if type(step) is not int or not _is_number(seconds):
        return None
    for value in metrics.values():
        if not _is_number(value):
            return None
    return MetricRecord(step, seconds, metrics)


def _is_number(value: object) -> TypeGuard[float]:
    """Return whether a value of JSON is a number; True and False, which Python counts, are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_metrics(directory: Path) -> Iterator[MetricRecord]:
    """Read the log of a run directory, during the run or after it.

    The steps of a metric increase: as in MLflow, the first value of a step is used, and values that
    a run logged again after it continued from an earlier checkpoint are dropped. Damaged lines, and
    a last line that is still being written, are skipped.

    Args:
        directory: The run directory. One without a log yields nothing.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     log = JsonLines(Path(directory) / METRICS_FILE)
    ...     for step in (1, 2, 1):
    ...         log.append({"step": step, "time": 0.0, "metrics": {"loss": step / 2}})
    ...     log.close()
    ...     [(record.step, record.metrics) for record in read_metrics(Path(directory))]
    [(1, {'loss': 0.5}), (2, {'loss': 1.0})]
    """
    path = Path(directory) / METRICS_FILE
    if not is_plain_file(path):
        return

    last: dict[str, int] = {}
    with path.open("rb") as file:
        for line in file:
            entry = parse_line(line) if line.endswith(b"\n") else None
            record = None if entry is None else as_record(entry)
            if record is None:
                continue

            new = {}
            for name, value in record.metrics.items():
                if name not in last or record.step > last[name]:
                    new[name] = value
                    last[name] = record.step
            if new:
                yield MetricRecord(record.step, record.time, new)
