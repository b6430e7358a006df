"""Failures of what is outside of the program, and how an error is told in one line."""


class OutsideError(RuntimeError):
    """Something outside of the program failed: a disk, an environment of another library.

    `yamame.cli.app.main` prints its message as one line, as that of an ``OSError``, and exits with status 1.
    """


def one_line(error: BaseException, longest: int = 300) -> str:
    """What an error says, in one line; its type where it says nothing.

    >>> one_line(KeyError())
    'KeyError'
    """
    return " ".join(str(error).split())[:longest] or type(error).__name__
