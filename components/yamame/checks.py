"""Refusing what a user has set wrongly: one way to check arguments, and the error that is shown
without a traceback.

>>> require("Learner", "max_grad_norm", -1.0, False, "be positive")
Traceback (most recent call last):
ValueError: Learner: max_grad_norm must be positive, got -1.0
"""

import math
from typing import Any


class UsageError(ValueError):
    """A mistake made on the command line or in a configuration file.

    `yamame.cli.app.main` prints its message as one line and exits with status 2.
    """


class StateMismatchError(UsageError):
    """A saved state that is intact, and belongs to another network or other settings than it is
    loaded into.
    """


def require(owner: str, name: str, value: Any, holds: bool, condition: str) -> None:
    """Raises unless a condition holds.

    Args:
        owner: The class or function that was called, for the message.
        name: The argument.
        value: What it was.
        holds: Whether it is as it must be.
        condition: What it must do, in words that follow "must".

    Raises:
        ValueError: "<owner>: <name> must <condition>, got <value>".
    """
    if not holds:
        raise ValueError(f"{owner}: {name} must {condition}, got {value!r}")


MOST = {"num_layers": 1_000, "num_blocks": 1_000}
"""Sizes that have a limit: these are built one by one, and a slip of the keyboard would build until
memory is gone.
"""


def require_at_least(owner: str, least: float, **values: float) -> None:
    """Raises unless every value is at least ``least``, and at most what `MOST` says; NaN is not.

    >>> require_at_least("GRUEncoder", 1, hidden_size=8, num_layers=0)
    Traceback (most recent call last):
    ValueError: GRUEncoder: num_layers must be at least 1, got 0
    """
    for name, value in values.items():
        require(owner, name, value, value >= least, f"be at least {least}")
        require(
            owner, name, value, value <= MOST.get(name, math.inf), f"be at most {MOST.get(name)}"
        )


def require_choice(owner: str, name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raises unless a value is one of several."""
    require(owner, name, value, value in choices, f"be one of {choices}")
