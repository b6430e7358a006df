"""Reading a growing file of JSON lines in batches, from an offset on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yamame.tracking.log import MetricRecord, as_record, is_plain_file, parse_line

POINTS_PER_BATCH = 1000


@dataclass
class Batch:
    """Lines to send in one request: either consecutive metrics, or a single entry of another kind.

    One class for both, because the offset moves over either in the same way. Damaged lines count
    to the batch in which they were found.

    Attributes:
        end: Offset of the first byte after the lines.
        records: Metrics, at most `POINTS_PER_BATCH` points unless a single record has more.
        entry: The entry that is no metrics, None if the lines are metrics.
        damaged: Offsets of damaged lines in the batch.
    """

    end: int
    records: list[MetricRecord] = field(default_factory=list)
    entry: dict[str, Any] | None = None
    damaged: list[int] = field(default_factory=list)

    @property
    def num_points(self) -> int:
        """Number of points of metrics and other entries."""
        points = sum(len(record.metrics) for record in self.records)
        return points + (self.entry is not None)


class Follower:
    """Position of a reader in a file of JSON lines to which another part of the program appends.

    A last line without an end is not read: it is still being written, or never will be.

    Args:
        path: The file; it may not exist yet.
        offset: Bytes that were read before. A shorter file is a different one and is read from its
            beginning.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        # The file may have been restored from an older copy, or be part of a downloaded run.
        size = path.stat().st_size if is_plain_file(path) else 0
        self.offset = offset if 0 <= offset <= size else 0

    def read_batch(self) -> Batch | None:
        """Return the lines that follow the offset; None if there is no further line."""
        if not is_plain_file(self.path):
            return None

        batch = Batch(self.offset)
        num_points = 0
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # still being written, or cut off by the end of a process
                entry = parse_line(line)
                record = None if entry is None else as_record(entry)

                if entry is None or (record is None and "metrics" in entry):
                    batch.damaged.append(batch.end)
                elif record is None:
                    # Another entry is a request of its own, after the metrics before it.
                    if batch.records:
                        break
                    batch.entry = entry
                else:
                    num_points += len(record.metrics)
                    if batch.records and num_points > POINTS_PER_BATCH:
                        break
                    batch.records.append(record)

                batch.end += len(line)
                if batch.entry is not None:
                    break

        if batch.end == self.offset:
            return None
        return batch

    def advance(self, batch: Batch) -> None:
        """Move the offset past a batch."""
        self.offset = batch.end

    def count_waiting(self) -> int:
        """Count points of metrics and other entries after the offset.

        The rest of the file is read and parsed.
        """
        reader = Follower(self.path, self.offset)
        waiting = 0
        while (batch := reader.read_batch()) is not None:
            waiting += batch.num_points
            reader.offset = batch.end
        return waiting

    def line_numbers(self, offsets: Sequence[int]) -> list[int]:
        """Return the numbers, from 1, of the lines at increasing offsets.

        The file is read up to the last of them.
        """
        wanted = set(offsets)
        numbers = []
        with self.path.open("rb") as file:
            position = 0
            for number, line in enumerate(file, 1):
                if position in wanted:
                    numbers.append(number)
                position += len(line)
                if position > offsets[-1]:
                    break
        return numbers
