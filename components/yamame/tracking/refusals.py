"""Entries that MLflow refuses for good, unlike those that wait for a store that is away.

A refused entry must not block all entries after it. It is reported, kept in
``mlflow.refused.jsonl`` of the run directory, and passed over.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from yamame.system.messages import one_line, print_stderr
from yamame.tracking.log import JsonLines
from yamame.tracking.mlflow_store import MLflowRun

REFUSED_FILE = "mlflow.refused.jsonl"
_CODES = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST", "RESOURCE_ALREADY_EXISTS")
# Errors of the store's own code; that of a store which is away for a moment as well.
_UNCLEAR_CODES = ("INTERNAL_ERROR",)
_STATUSES = (400, 405, 411, 413, 414, 415, 422)

Item = TypeVar("Item")


def is_refusal(error: BaseException) -> bool:
    """Return whether a store answered that it does not take what was sent."""
    code = getattr(error, "error_code", None)
    if code in _CODES:
        return True
    if code in _UNCLEAR_CODES:
        return not _is_unanswered(error)
    # The storage of files answers with a status alone.
    response = getattr(error, "response", None)
    return getattr(response, "status_code", None) in _STATUSES


def _is_unanswered(error: BaseException) -> bool:
    """Return whether a request ended without an answer of a server, which may have done it.

    MLflow raises an error of its own while it handles that of the connection.
    """
    context = error.__cause__ or error.__context__
    # Errors of connections are ``OSError``s, in the library of requests as well.
    return isinstance(context, OSError) and getattr(context, "response", None) is None


class Refusals:
    """Entries of a run that MLflow refused.

    Args:
        directory: The run directory.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / REFUSED_FILE
        self._reported: set[str] = set()

    def store(
        self,
        run: MLflowRun,
        items: Sequence[Item],
        store: Callable[[Sequence[Item]], None],
        describe: Callable[[Item], tuple[str, Mapping[str, Any]]],
    ) -> None:
        """Store items together; if they are refused, the two halves of them, and so on.

        Args:
            run: The MLflow run.
            items: Items that the store takes in one request.
            store: Sends items. It may send some of them before it fails.
            describe: Returns the name of an item, and the item as an object of JSON.

        Raises:
            Exception: The store is away, or takes nothing at all for this run.
        """
        try:
            store(items)
            return
        except Exception as error:
            if not is_refusal(error):
                raise
            # A store that refuses harmless entries as well, as for a run that was deleted, has
            # another problem: nothing is given up.
            if len(items) == 1 and not run.takes_entries():
                raise

        if len(items) > 1:
            half = len(items) // 2
            self.store(run, items[:half], store, describe)
            self.store(run, items[half:], store, describe)
            return
        try:
            # Once more, as the store has just answered.
            store(items)
        except Exception as error:
            if not is_refusal(error):
                raise
            self._keep(*describe(items[0]), error)

    def _keep(self, name: str, entry: Mapping[str, Any], error: Exception) -> None:
        reason = one_line(error)
        file = JsonLines(self._path)
        try:
            file.append({"reason": reason, **entry})
        finally:
            file.close()
        # A metric is refused at each of its steps.
        if name not in self._reported:
            self._reported.add(name)
            print_stderr(f"MLflow rejects {name}, it is kept in {self._path}: {reason}")
