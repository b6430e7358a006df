"""Reading a growing file of JSON lines in batches, from an offset on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yamame.files.paths import open_regular
from yamame.tracking.entries import MetricRecord
from yamame.tracking.log import LONGEST_LINE, is_plain_file, parts_of

POINTS_PER_BATCH = 1000
_MOST_OFFSETS = 20


@dataclass
class Batch:
    """Lines to send in one request: either consecutive metrics, or a single entry of another kind.

    One class for both, because the offset moves over either in the same way. Damaged lines count
    to the batch in which they were found.

    Attributes:
        end: Offset of the first byte after the lines.
        records: Metrics, at most `POINTS_PER_BATCH` points unless a single record has more.
        entry: The entry that is no metrics, None if the lines are metrics.
        damaged: Offsets of the first damaged lines in the batch, at most 20.
        num_damaged: Number of damaged lines.
    """

    end: int
    records: list[MetricRecord] = field(default_factory=list)
    entry: dict[str, Any] | None = None
    damaged: list[int] = field(default_factory=list)
    num_damaged: int = 0

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
        parse: Returns the metrics or the other entry of a line; None if the line is damaged.
        offset: Bytes that were read before. If no line of the file ends there, the file is a
            different one, and is read from its beginning.
    """

    def __init__(
        self,
        path: Path,
        parse: Callable[[bytes], MetricRecord | dict[str, Any] | None],
        offset: int = 0,
    ) -> None:
        self.path = path
        self._parse = parse
        # The file may have been restored from an older copy, or be part of a downloaded run.
        self.offset = offset if _is_line_end(path, offset) else 0

    def read_batch(self) -> Batch | None:
        """Return the lines that follow the offset; None if there is no further line.

        Raises:
            UnsafePathError: The file is no regular one, or pretends to be larger than it is.
        """
        if not is_plain_file(self.path):
            return None

        batch = Batch(self.offset)
        num_points = 0
        with open_regular(self.path) as file:
            file.seek(self.offset)
            for line in parts_of(file):
                is_whole = line.endswith(b"\n")
                if not is_whole and len(line) < LONGEST_LINE:
                    break  # still being written, or cut off by the end of a process
                entry = self._parse(line) if is_whole else None

                if entry is None:
                    batch.num_damaged += 1
                    if len(batch.damaged) < _MOST_OFFSETS:
                        batch.damaged.append(batch.end)
                elif isinstance(entry, MetricRecord):
                    num_points += len(entry.metrics)
                    if batch.records and num_points > POINTS_PER_BATCH:
                        break
                    batch.records.append(entry)
                else:
                    # Another entry is a request of its own, after the metrics before it.
                    if batch.records:
                        break
                    batch.entry = entry

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
        reader = Follower(self.path, self._parse, self.offset)
        waiting = 0
        while (batch := reader.read_batch()) is not None:
            waiting += batch.num_points
            reader.offset = batch.end
        return waiting

    def line_numbers(self, offsets: Sequence[int]) -> list[int]:
        """Return the numbers, from 1, of the lines that hold the bytes at increasing offsets.

        The file is read up to the last of them. Parts of very long lines count as lines.
        """
        numbers = []
        number = 0
        end = 0
        with open_regular(self.path) as file:
            for offset in offsets:
                while end <= offset and (line := file.readline(LONGEST_LINE)):
                    number += 1
                    end += len(line)
                numbers.append(number)
        return numbers


def _is_line_end(path: Path, offset: int) -> bool:
    """Return whether a line of a file ends before an offset, or the file begins there."""
    if offset == 0:
        return True
    if not is_plain_file(path) or not 0 < offset <= path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(offset - 1)
        return file.read(1) == b"\n"
