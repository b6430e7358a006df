"""Log of a run: all metrics, as lines of JSON in ``metrics.jsonl`` of the run directory.

A line is ``{"step": 64, "time": 1767225600.5, "metrics": {"train/loss": 0.5}}`` with the time in
seconds since 1970. Lines are only ever appended, so that a run which continues from an earlier
checkpoint logs some steps twice; `read_metrics` drops the repetition.
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from yamame.checks import require
from yamame.files.paths import open_descriptor, open_regular
from yamame.tracking.entries import MetricRecord as MetricRecord
from yamame.tracking.entries import parse_metrics

METRICS_FILE = "metrics.jsonl"
_CHUNK = 2**16
LONGEST_LINE = 2**24
"""Bytes after which a line is cut, see `parts_of`."""


class JsonLines:
    """File of JSON objects, one per line, that only grows.

    A last line without an end, which a killed process left, is removed when the file is opened. Not
    thread-safe: a file must have only one writer.

    Args:
        path: The file; created if missing.

    Raises:
        UnsafePathError: ``path`` is a link or not a regular file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
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
    with open_regular(path) as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _CHUNK)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0


def parts_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file, and longer ones than `LONGEST_LINE` in parts.

    A stranger's file may have a line without an end. Its parts count as damaged lines.
    """
    return iter(lambda: file.readline(LONGEST_LINE), b"")


def read_metrics(directory: Path) -> Iterator[MetricRecord]:
    """Read the log of a run directory, during the run or after it.

    The steps of a metric increase: as in MLflow, the first value of a step is used, and values that
    a run logged again after it continued from an earlier checkpoint are dropped. Damaged lines, and
    a last line that is still being written, are skipped.

    Args:
        directory: Run directory. One without a log yields nothing.

    Raises:
        ArgumentError: There is no such directory.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     log = JsonLines(Path(directory) / METRICS_FILE)
    ...     for step in (1, 2, 1):
    ...         log.append({"step": step, "time": 0.0, "metrics": {"loss": step / 2}})
    ...     log.close()
    ...     [(record.step, record.metrics) for record in read_metrics(Path(directory))]
    [(1, {'loss': 0.5}), (2, {'loss': 1.0})]
    """
    is_directory = Path(directory).is_dir()
    require("read_metrics", "directory", str(directory), is_directory, "be a run directory")
    path = Path(directory) / METRICS_FILE
    if not is_plain_file(path):
        return

    last: dict[str, int] = {}
    with open_regular(path) as file:
        for line in parts_of(file):
            record = parse_metrics(line) if line.endswith(b"\n") else None
            if record is None:
                continue

            new = {}
            for name, value in record.metrics.items():
                if name not in last or record.step > last[name]:
                    new[name] = value
                    last[name] = record.step
            if new:
                yield MetricRecord(record.step, record.time, new)
