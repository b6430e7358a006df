"""Messages of one line, and errors of what is outside of the program."""

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator

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


_LONGEST = 300
"""Length of a message in a line, in characters."""


def one_line(error: BaseException, longest: int = _LONGEST) -> str:
    """Return the message of an error in one line.

    Args:
        error: The error; its type stands for an empty message.
        longest: Number of characters beyond which the middle of the message is left out.

    >>> one_line(KeyError())
    'KeyError'
    >>> one_line(ValueError("first\\n  " + "x" * 30 + " last"), longest=20)
    'first xxxx ... xxxxx last'
    """
    return shortened(text_of(error), longest) or type(error).__name__


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Return a text in one printable line, without its middle if it is long.

    >>> shortened("first\\n  " + "x" * 30 + " last", longest=20)
    'first xxxx ... xxxxx last'
    """
    line = " ".join(text.split())
    # Escapes are longer than their characters, and a message may have megabytes of them.
    for _ in range(2):
        if len(line) > longest:
            # The causes of an error are often at the end of its message.
            half = longest // 2
            line = f"{line[:half]} ... {line[-half:]}"
        line = printable(line)
    return line


def described(error: BaseException) -> str:
    """Return type and message of an error in one line.

    >>> described(KeyError("map")), described(ValueError())
    ("KeyError: 'map'", 'ValueError')
    >>> described(ExceptionGroup("many", [KeyError("map")]))
    "ExceptionGroup: many (1 sub-exception), first KeyError: 'map'"
    """
    name = printable(type(error).__name__)
    text = one_line(error)
    line = name if text == name else f"{name}: {text}"
    first = first_of_group(error)
    return line if first is error else f"{line}, first {described(first)}"


def first_of_group(error: BaseException) -> BaseException:
    """Return the first error of a group of errors; any other error is returned as it is."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def add_note(error: BaseException, text: str) -> None:
    """Add a sentence that follows the message of an error where it is reported in a line.

    It is a note in Python's sense as well where Yamame, or the system, raised the error.
    """
    with contextlib.suppress(Exception):  # of an error that takes no attributes
        error.yamame_notes = [*notes_of(error), text]  # type: ignore[attr-defined]
        if isinstance(error, OSError | OutsideError):
            error.add_note(text)


def notes_of(error: BaseException) -> list[str]:
    """Return the sentences of `add_note`, without notes of libraries.

    >>> error = ValueError()
    >>> add_note(error, "it is in runs/a")
    >>> error.add_note("failed while executing module 1")
    >>> notes_of(error)
    ['it is in runs/a']
    """
    return list(getattr(error, "yamame_notes", ()))


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
    if sys.stderr is None:  # Python would print on the standard output instead
        return
    with contextlib.suppress(OSError, ValueError):
        print(printable(str(line)), file=sys.stderr)


_printed: set[str] | None = None
"""Lines of `print_once` in the present run; None outside of a run."""


def print_once(line: str, *, subject: str | None = None) -> None:
    """Print a line on the standard error, once within a run.

    Environments of training and of the held-out tasks report the same things.

    Args:
        line: The line.
        subject: What it is about, if further lines about that are not printed; None: the line.
    """
    subject = line if subject is None else subject
    if _printed is None:
        print_stderr(line)
    elif subject not in _printed:
        _printed.add(subject)
        print_stderr(line)


def is_in_run() -> bool:
    """Return whether a run has begun and not ended, within which `print_once` prints lines once."""
    return _printed is not None


def begin_lines() -> None:
    """Begin a run: `print_once` prints each line once from here on."""
    global _printed
    _printed = set()


def end_lines() -> None:
    """End a run, see `begin_lines`."""
    global _printed
    _printed = None


@contextlib.contextmanager
def warnings_as_lines(category: type[Warning], *, prints: bool = True) -> Iterator[None]:
    """Print the warnings of a category in the block by `print_once`; others stay as they are.

    Args:
        category: Class of the warnings.
        prints: Whether to print them, or to ignore them.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        if not issubclass(warning.category, category):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        elif prints:
            print_once(str(warning.message))


def print_stdout(*lines: object, escape: bool = True) -> None:
    """Print lines on the standard output.

    One that is closed, as by ``head``, or full is no failure.

    Args:
        lines: The lines.
        escape: Escape control characters: names and messages may be those of a stranger's run.
    """
    try:
        for line in lines:
            print(printable(str(line)) if escape else line)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
    except (OSError, ValueError):
        pass  # a ValueError for a stream that was closed


def discard_stdout() -> None:
    """Let all later output on the standard output vanish: it has no reader any more."""
    # A stream without a file, as in a notebook, is left alone.
    with contextlib.suppress(OSError, ValueError):
        # Python flushes the standard output once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
