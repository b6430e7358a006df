"""Counter of the failures of an environment."""

from collections.abc import Callable, Mapping

from yamame_envs.adapters.in_process import Failure
from yamame_envs.adapters.workers import Workers


class FailureCount:
    """Counts the failures of an environment, and raises when there are too many.

    Args:
        workers: Number of failures that are tolerated.

    Attributes:
        raises: True if the first failure is an error.
        count: Failures so far. The failure of a worker process counts once for all its envs.
        aborted: Episodes that they ended.
    """

    def __init__(self, workers: Workers) -> None:
        self.raises = workers.on_error == "raise"
        self.count = 0
        self.aborted = 0
        self._max_errors = workers.max_errors

    def add(self, label: str, failures: Mapping[int, Failure], place: Callable[[int], str]) -> None:
        """Count failures that happened at the same time.

        Args:
            label: Name of the environment in messages.
            failures: Failure of each env that failed. Envs may share one.
            place: Maps an env to where and when it failed, in words.

        Raises:
            OutsideError: There are too many; a `UserCodeError` if code raised the last one.
        """
        first_envs: dict[int, tuple[int, Failure]] = {}
        for env_id in sorted(failures):
            failure = failures[env_id]
            # All envs of a worker process share its failure, which is one object.
            first_envs.setdefault(id(failure), (env_id, failure))

        for env_id, failure in first_envs.values():
            self.count += 1
            what = f"{label}: the environment failed"
            if self.raises:
                raise failure.describe(f"{what} {place(env_id)}") from failure.error()
            if self.count > self._max_errors:
                what += f" more often than max_errors={self._max_errors} allows, at last"
                raise failure.describe(f"{what} {place(env_id)}") from failure.error()
