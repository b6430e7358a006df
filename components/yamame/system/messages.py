"""Messages of one line, and errors of what is outside of the program."""

import contextlib
import os
import sys

from yamame.checks import format_value as format_value


class OutsideError(RuntimeError):
    """Failure outside of the program: of a disk, or of an environment of another library.

    `yamame.cli.app.main` prints the message in one line, as of an ``OSError``, and exits with
    status 1.
    """


TRAIN_PACKAGES = frozenset(
    (
        "hydra",
        "omegaconf",
        "pydantic",
        "mlflow",
        "gymnasium",
        "matplotlib",
        "PIL",
        "psutil",
        "packaging",
        "jinja2",
        "scipy",
        "rich",
        "pandas",
    )
)
"""Modules that the extra ``train`` installs."""


def explain_missing(error: ModuleNotFoundError) -> str | None:
    """Return a remedy for a missing package that training needs; None for any other module.

    >>> explain_missing(ModuleNotFoundError(name="hydra.errors"))
    "training needs the package hydra, run: pip install 'yamame[train]'"
    """
    name = str(error.name).partition(".")[0]
    if name not in TRAIN_PACKAGES:
        return None
    return f"training needs the package {name}, run: pip install 'yamame[train]'"


def one_line(error: BaseException, longest: int = 300) -> str:
    """Return the message of an error in one line.

    Args:
        error: The error; its type stands for an empty message.
        longest: Number of characters beyond which the middle of the message is left out.

    >>> one_line(KeyError())
    'KeyError'
    >>> one_line(ValueError("first\\n  " + "x" * 30 + " last"), longest=20)
    'first xxxx ... xxxxx last'
    """
    text = " ".join(text_of(error).split()) or type(error).__name__
    text = printable(text)
    if len(text) <= longest:
        return text
    # The causes of an error are often at the end of its message.
    half = longest // 2
    return f"{text[:half]} ... {text[-half:]}"


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an error; its type stands for an empty message.

    The further lines of PyTorch's errors are a trace of C++ code, OmegaConf's repeat the key.
    """
    lines = text_of(error).splitlines()
    return lines[0] if lines else type(error).__name__


def text_of(error: BaseException) -> str:
    """Return the message of an error, even if its ``__str__`` fails."""
    try:
        return str(error)
    except Exception as failure:  # of user code, of any type
        return f"(its message cannot be formatted: {type(failure).__name__})"


def printable(text: str) -> str:
    """Return a text whose control characters and lone surrogates are written as escapes.

    A terminal would obey the control characters of a stranger's text, and a lone surrogate, as in
    a path that is not UTF-8, cannot be encoded. New lines and tabs stay.

    >>> print(printable("run \\x1b[2J \\udcff \\u202e"))
    run \\x1b[2J \\udcff \\u202e
    """
    if text.isprintable():
        return text
    characters = []
    for character in text:
        if character.isprintable() or character in "\n\t" or character == "\N{NO-BREAK SPACE}":
            characters.append(character)
        else:
            characters.append(character.encode("unicode_escape").decode("ascii"))
    return "".join(characters)


def print_stderr(line: object) -> None:
    """Print a line on the standard error, apart from results.

    Control characters are escaped. A standard error that is closed or full is no failure.
    """
    with contextlib.suppress(OSError, ValueError):
        print(printable(str(line)), file=sys.stderr)


def print_stdout(*lines: object) -> None:
    """Print lines on the standard output.

    Control characters are escaped: names and messages may be those of a stranger's run. A closed
    pipe, as of ``head``, is no failure.
    """
    try:
        for line in lines:
            print(printable(str(line)))
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes the standard output once more when it exits.
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
