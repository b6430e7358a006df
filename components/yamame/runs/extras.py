"""Pictures, tables and copies that accompany results, and that a finished run does without."""

from collections.abc import Iterator
from contextlib import contextmanager

from yamame.system.messages import one_line, print_stderr
from yamame.system.user_code import is_failure


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Print an error of the block in one line instead of raising it.

    Everything that decides or records a result must be complete before the block. Requests to end
    the process (``KeyboardInterrupt``, `yamame.system.signals.Terminated`) are raised.

    Args:
        what: Name of what is made in the block, which begins the line.

    >>> with reported("curve.png"):
    ...     raise OverflowError("too long")
    """
    try:
        yield
    # Libraries that draw, and environments of users, raise errors of any type.
    except BaseException as error:
        if not is_failure(error):
            raise
        print_stderr(f"{what}: left out, {type(error).__name__}: {one_line(error)}")
