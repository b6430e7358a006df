"""Recordings by the structure of their inputs."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

R = TypeVar("R")


class Recordings(Generic[R]):
    """Recordings of one computation, one for each structure of its inputs.

    A structure is recorded after it has been executed ``warmup`` times: the first executions
    initialise libraries and optimizers, which a capture must not do.

    Args:
        warmup: Ordinary executions of a structure before it is recorded.
        limit: Largest number of recordings; the one that was used longest ago is dropped. None:
            there is no limit.
        before_drop: Called before recordings are dropped: the device may still run them.

    >>> recordings = Recordings(warmup=1, limit=1)
    >>> recordings.is_warm("a")
    False
    >>> recordings.count("a")
    >>> recordings.is_warm("a")
    True
    >>> recordings.get("a", record=lambda: "graph of a")
    'graph of a'
    >>> recordings.get("b", record=lambda: "graph of b")
    'graph of b'
    >>> recordings.is_warm("a")
    False
    """

    def __init__(
        self,
        *,
        warmup: int,
        limit: int | None = None,
        before_drop: Callable[[], None] = lambda: None,
    ) -> None:
        self._warmup = warmup
        self._limit = limit
        self._before_drop = before_drop
        self._executed: Counter[Hashable] = Counter()
        # The recording that was used last is the last one.
        self._recordings: OrderedDict[Hashable, R] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recordings)

    def is_warm(self, structure: Hashable) -> bool:
        """Return whether a structure has been executed often enough to be recorded."""
        return self._executed[structure] >= self._warmup

    def count(self, structure: Hashable) -> None:
        """Count an ordinary execution of a structure."""
        self._executed[structure] += 1

    def get(self, structure: Hashable, record: Callable[[], R]) -> R:
        """Return the recording of a structure.

        Args:
            structure: A structure that is warm.
            record: Makes the recording if there is none.
        """
        if structure in self._recordings:
            self._recordings.move_to_end(structure)
            return self._recordings[structure]
        if self._limit is not None:
            # Before the new one is recorded, so that it can use the memory of the old one.
            while len(self._recordings) >= self._limit:
                self._before_drop()
                oldest, _ = self._recordings.popitem(last=False)
                # It is warmed up anew. However many structures there are, at most one execution in
                # ``warmup + 1`` has the cost of a recording.
                del self._executed[oldest]
        recording = record()
        self._recordings[structure] = recording
        return recording

    def clear(self) -> None:
        """Drop all recordings; structures are warmed up anew."""
        if self._recordings:
            self._before_drop()
        self._recordings.clear()
        self._executed.clear()
