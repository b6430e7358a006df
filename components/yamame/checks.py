"""Checks of arguments, and the errors that they raise.

The bounds of an argument stand in the signature, where both the constructor and the command line
read them::

    class GRUEncoder(TrajectoryEncoder):
        @check_bounds
        def __init__(self, in_features: PositiveInt, *, dropout: UnitInterval = 0.0): ...

Conditions that involve several arguments are checked in the body with `require`:

>>> require("Learner", "max_grad_norm", -1.0, False, "be positive")
Traceback (most recent call last):
yamame.checks.ArgumentError: Learner: max_grad_norm must be positive, got -1.0
"""

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, TypeVar

_LONGEST_VALUE = 200


class UsageError(ValueError):
    """A mistake in a command line, a configuration file or an argument.

    `yamame.cli.app.main` prints its message as one line and exits with status 2.
    """


class StateMismatchError(UsageError):
    """An intact saved state that belongs to another network or to other settings."""


class ArgumentError(UsageError):
    """An argument that does not meet a condition.

    The message is formatted here and nowhere else. Code that knows more about the argument, such as
    its key in the configuration, sets the attributes and raises the error again.

    Args:
        owner: Class or function that was called.
        name: Argument.
        value: Value of the argument.
        condition: Condition that the value does not meet, in words that follow "must".
        remedy: What the user can do, if the condition alone does not say it.

    Attributes:
        key: Dotted key of ``owner`` in the configuration; None outside of one.

    >>> error = ArgumentError("AdamW", "lr", -1.0, "be positive", remedy="try 1e-4")
    >>> print(error)
    AdamW: lr must be positive, got -1.0; try 1e-4
    >>> error.key = "optimizer"
    >>> print(error)
    optimizer.lr: must be positive, got -1.0; try 1e-4
    """

    def __init__(
        self, owner: str, name: str, value: Any, condition: str, *, remedy: str | None = None
    ) -> None:
        super().__init__(owner, name, value, condition)
        self.owner = owner
        self.name = name
        self.value = value
        self.condition = condition
        self.remedy = remedy
        self.key: str | None = None

    def __str__(self) -> str:
        if self.key is None:
            argument = f"{self.owner}: {self.name}"
        else:
            argument = f"{self.key}.{self.name}:"
        value = repr(self.value)
        if len(value) > _LONGEST_VALUE:
            value = f"{value[:_LONGEST_VALUE]}..."
        message = f"{argument} must {self.condition}, got {value}"
        return message if self.remedy is None else f"{message}; {self.remedy}"

    def __reduce__(self) -> tuple[Any, ...]:
        # The arguments of BaseException alone would lose the remedy and the key.
        arguments = (self.owner, self.name, self.value, self.condition)
        return type(self), arguments, {"remedy": self.remedy, "key": self.key}


def require(
    owner: str, name: str, value: Any, holds: bool, condition: str, *, remedy: str | None = None
) -> None:
    """Raise unless a condition holds.

    Args:
        owner: Class or function that was called.
        name: Argument.
        value: Value of the argument.
        holds: Result of the check.
        condition: Condition, in words that follow "must".
        remedy: What the user can do, if the condition alone does not say it.

    Raises:
        ArgumentError: "<owner>: <name> must <condition>, got <value>".
    """
    if not holds:
        raise ArgumentError(owner, name, value, condition, remedy=remedy)


def require_choice(owner: str, name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise unless a value is one of several."""
    require(owner, name, value, value in choices, f"be one of {choices}")


MOST = {"num_layers": 1_000, "num_blocks": 1_000}
"""Largest sizes of what is built one by one: a typing error would build until memory is gone."""


def require_at_least(owner: str, least: float, **values: float) -> None:
    """Raise unless every value is at least ``least``, and at most what `MOST` allows; NaN fails.

    >>> require_at_least("GRUEncoder", 1, hidden_size=8, num_layers=0)
    Traceback (most recent call last):
    yamame.checks.ArgumentError: GRUEncoder: num_layers must be at least 1, got 0
    """
    for name, value in values.items():
        require(owner, name, value, value >= least, f"be at least {least}")
        require(
            owner, name, value, value <= MOST.get(name, math.inf), f"be at most {MOST.get(name)}"
        )


@dataclass(frozen=True)
class Bounds:
    """Range of a number, as metadata of ``typing.Annotated``; NaN is outside of every range.

    Args:
        least: Smallest allowed value.
        most: Largest allowed value.
        above: Value that must be exceeded.
        below: Value that must not be reached.

    >>> Bounds(least=1).condition, Bounds(above=0, most=1).condition
    ('be at least 1', 'be in (0, 1]')
    >>> Bounds(above=0).contain(0), Bounds(least=0).contain(0)
    (False, True)
    """

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def contain(self, value: float) -> bool:
        """Return whether a number lies in the range."""
        return (
            value == value  # NaN is not
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    @property
    def condition(self) -> str:
        """The range in words that follow "must"."""
        low = self.least if self.above is None else self.above
        high = self.most if self.below is None else self.below
        if low is not None and high is not None:
            opening = "[" if self.above is None else "("
            closing = "]" if self.below is None else ")"
            return f"be in {opening}{low:,}, {high:,}{closing}"
        if self.above is not None:
            return "be positive" if self.above == 0 else f"be above {self.above:,}"
        if self.least is not None:
            return f"be at least {self.least:,}"
        return f"be at most {self.most:,}" if self.below is None else f"be below {self.below:,}"


PositiveInt = Annotated[int, Bounds(least=1)]
NonNegativeInt = Annotated[int, Bounds(least=0)]
PositiveFloat = Annotated[float, Bounds(above=0)]
NonNegativeFloat = Annotated[float, Bounds(least=0)]
UnitInterval = Annotated[float, Bounds(least=0, most=1)]
"""A number in [0, 1]: a probability, a rate, a share."""
DropoutRate = Annotated[float, Bounds(least=0, below=1)]
"""Probability of dropping a unit; with 1 nothing would be left."""
NumLayers = Annotated[int, Bounds(least=1, most=1_000)]
"""Number of layers. The upper limit catches typing errors: layers are built one by one."""

Function = TypeVar("Function", bound=Callable[..., Any])


def bounds_of(function: Callable[..., Any]) -> dict[str, Bounds]:
    """Return the bounds in the annotations of a function or of a class's constructor.

    Args:
        function: Function or class.

    Returns:
        Bounds by name of the parameter. ``Annotated`` may stand inside of a union, as in
        ``PositiveInt | None``.

    >>> def train(steps: PositiveInt, decay: UnitInterval | None = None, name: str = ""): ...
    >>> bounds_of(train)
    {'steps': Bounds(least=1, ...), 'decay': Bounds(least=0, most=1, ...)}
    """
    target = function.__init__ if inspect.isclass(function) else function
    hints = typing.get_type_hints(target, include_extras=True)
    found = {}
    for name, hint in hints.items():
        for bounds in _bounds_in(hint):
            found[name] = bounds
    return found


def _bounds_in(hint: Any) -> Iterator[Bounds]:
    origin = typing.get_origin(hint)
    if origin is Annotated:
        yield from (data for data in hint.__metadata__ if isinstance(data, Bounds))
    elif origin in (typing.Union, types.UnionType):
        for member in typing.get_args(hint):
            yield from _bounds_in(member)


def check_bounds(function: Function) -> Function:
    """Decorate a function or constructor so that it raises for numbers outside of their bounds.

    None is not checked: the annotation says whether it is allowed.

    Raises:
        ArgumentError: When called, and a number is outside of the bounds of its annotation, or a
            value that has bounds is not a number.

    >>> @check_bounds
    ... def train(steps: PositiveInt): ...
    >>> train(0)
    Traceback (most recent call last):
    yamame.checks.ArgumentError: train: steps must be at least 1, got 0
    """
    signature = inspect.signature(function)
    is_constructor = function.__name__ == "__init__"
    bounds: dict[str, Bounds] = {}
    is_read = False

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        nonlocal bounds, is_read
        if not is_read:
            # Annotations are resolved at the first call: they may name classes defined later.
            bounds = bounds_of(function)
            is_read = True
        try:
            arguments = signature.bind(*args, **kwargs).arguments
        except TypeError:
            # Python's own message about missing or unknown arguments is the better one.
            return function(*args, **kwargs)
        for name, value in arguments.items():
            if value is None or name not in bounds:
                continue
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if not is_number or not bounds[name].contain(value):
                # A subclass that inherits the constructor is what the user named.
                owner = type(args[0]).__name__ if is_constructor else function.__name__
                raise ArgumentError(owner, name, value, bounds[name].condition)
        return function(*args, **kwargs)

    return typing.cast(Function, checked)
