"""Counting failures, and when they are too many."""

from collections.abc import Callable, Mapping

from yamame.system.messages import OutsideError

from yamame_envs.adapters.in_process import Failure
from yamame_envs.adapters.workers import Workers


class FailureCount:
    """Counts the failures of an environment.

    Args:
        workers: How many are allowed.

    Attributes:
        count: Failures so far; a worker process that fails is one, however many envs it played.
        aborted: Episodes that they ended.
    """

    def __init__(self, workers: Workers) -> None:
        self._raises, self._most = workers.on_error == "raise", workers.max_errors
        self.count = self.aborted = 0

    @property
    def raises(self) -> bool:
        """Whether the first one is an error."""
        return self._raises

    def add(self, label: str, failures: Mapping[int, Failure], place: Callable[[int], str]) -> None:
        """Counts what happened at the same time.

        Args:
            label: The environment.
            failures: By env; envs may share one.
            place: Tells where and when an env failed.

        Raises:
            OutsideError: If they are too many.
        """
        first: dict[int, tuple[int, Failure]] = {}
        for env_id, failure in sorted(failures.items(), key=lambda item: item[0]):
            first.setdefault(id(failure), (env_id, failure))
        for env_id, failure in first.values():
            self.count += 1
            what = f"{place(env_id)}: {failure.summary}"
            if self._raises:
                raise OutsideError(f"{label}: the environment failed {what}") from failure.error()
            if self.count > self._most:
                raise OutsideError(
                    f"{label}: the environment failed more often than max_errors={self._most} allows, at last {what}"
                ) from failure.error()
