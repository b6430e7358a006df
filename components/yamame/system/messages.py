"""Failures of what is outside of the program, and how they, and values, are told in one line."""

import os
import sys

from yamame.checks import format_value as format_value


class OutsideError(RuntimeError):
    """Something outside of the program failed: a disk, an environment of another library.

    `yamame.cli.app.main` prints its message as one line, as that of an ``OSError``, and exits with
    status 1.
    """


TRAIN_PACKAGES = frozenset(
    (
        "hydra",
        "omegaconf",
        "mlflow",
        "gymnasium",
        "matplotlib",
        "PIL",
        "psutil",
        "packaging",
        "jinja2",
        "scipy",
        "rich",
    )
)
"""Modules that the extra ``train`` installs."""


def explain_missing(error: ModuleNotFoundError) -> str | None:
    """One line for a package that training needs and the base installation lacks; None for any
    other module.

    >>> explain_missing(ModuleNotFoundError(name="hydra.errors"))
    "training needs the package hydra, run: pip install 'yamame[train]'"
    """
    name = str(error.name).partition(".")[0]
    reason = f"training needs the package {name}, run: pip install 'yamame[train]'"
    return reason if name in TRAIN_PACKAGES else None


def one_line(error: BaseException, longest: int = 300) -> str:
    """What an error says in one line; of a long one its beginning and its end, where causes stand.

    >>> one_line(KeyError())
    'KeyError'
    >>> one_line(ValueError("first\\n  " + "x" * 30 + " last"), longest=20)
    'first xxxx ... xxxxx last'
    """
    text = " ".join(str(error).split()) or type(error).__name__
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"


def print_stderr(line: object) -> None:
    """Says something on the standard error, where results do not go."""
    print(line, file=sys.stderr)


def print_stdout(text: str) -> None:
    """Prints on the standard output; a reader that has seen enough, as ``head``, is no failure."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # Python writes there once more at the end
