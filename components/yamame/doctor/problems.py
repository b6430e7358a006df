"""Problems that the doctor finds, each in one line."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from yamame.checks import UsageError
from yamame.cli.explain import explain_outside
from yamame.system.messages import OutsideError, one_line
from yamame.system.signals import Terminated
from yamame.system.user_code import UserCodeError


@contextmanager
def collecting(problems: list[str]) -> Iterator[None]:
    """Turn an exception of the block into a line of ``problems``.

    Raises:
        KeyboardInterrupt: The process has received a signal to end.
    """
    try:
        yield
    except Terminated:
        raise KeyboardInterrupt from None
    except (UsageError, FloatingPointError) as error:
        problems.append(one_line(error))
    except OSError as error:
        problems.append(explain_outside(error))
    except UserCodeError as error:
        problems.append(str(error))
    except OutsideError as error:
        # The cause was raised by the user's environment, for example.
        problems.append(f"{one_line(error)}{_place(error.__cause__)}")
    except Exception as error:
        problems.append(f"{type(error).__name__}: {one_line(error)}{_place(error)}")


def _place(error: BaseException | None) -> str:
    """Return the file and line that raised an error, preferably outside of installed packages."""
    if error is None:
        return ""
    frames = list(traceback.extract_tb(error.__traceback__))
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    frames = own or frames
    if not frames:  # an error that was never raised
        return ""
    innermost = frames[-1]
    return f" (at {innermost.filename}:{innermost.lineno})"
