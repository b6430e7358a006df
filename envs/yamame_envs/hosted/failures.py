"""Counting failures, and when they are too many."""

from collections.abc import Callable, Mapping

from yamame_envs.hosted.rows import Fault
from yamame_envs.hosted.workers import Workers


class Failures:
    """Counts the failures of an environment.

    Args:
        workers: How many are allowed.

    Attributes:
        count: Failures so far; a worker process that fails is one, however many rows it played.
        aborted: Episodes that they ended.
    """

    def __init__(self, workers: Workers) -> None:
        self._raises, self._most = workers.on_error == "raise", workers.max_errors
        self.count = self.aborted = 0

    @property
    def raises(self) -> bool:
        """Whether the first one is an error."""
        return self._raises

    def add(self, label: str, faults: Mapping[int, Fault], place: Callable[[int], str]) -> None:
        """Counts what happened at the same time.

        Args:
            label: The environment.
            faults: By row; rows may share one.
            place: Tells where and when a row failed.

        Raises:
            RuntimeError: If they are too many.
        """
        first: dict[int, tuple[int, Fault]] = {}
        for row, fault in sorted(faults.items(), key=lambda item: item[0]):
            first.setdefault(id(fault), (row, fault))
        for row, fault in first.values():
            self.count += 1
            what = f"{place(row)}: {fault.summary}"
            if self._raises:
                raise RuntimeError(f"{label}: the environment failed {what}") from fault.error()
            if self.count > self._most:
                raise RuntimeError(
                    f"{label}: the environment failed more often than max_errors={self._most} allows, at last {what}"
                ) from fault.error()
