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

An error is an object with fields. Code that builds an object from the configuration knows the key
of the argument and sets it (`yamame.files.building`, `at_key`); code that loads a run or a file
knows that (`at_source`). No code reads or edits the text of another error.
"""

import functools
import inspect
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, Literal, TypeVar


class UsageError(ValueError):
    """A mistake in a command line, a configuration file or an argument.

    `yamame.cli.app.main` prints its message as one line and exits with status 2.

    The message is formatted here and in subclasses, and nowhere else. Code that knows where the
    mistake is sets the attributes, and raises the same error again (`at_key`, `at_source`).

    Args:
        message: Text of the message.
        key: Dotted key of the configuration that the mistake is about; None outside of one.
        remedy: What the user can do, if the message alone does not say it.

    Attributes:
        source: Run, file or function in which the mistake is; None unless a caller has set it.

    >>> error = UsageError("minigrid must be installed", key="env")
    >>> error.source = "run=runs/mine"
    >>> print(error)
    run=runs/mine: env: minigrid must be installed
    """

    source: str | None = None

    def __init__(self, *message: object, key: str | None = None, remedy: str | None = None) -> None:
        super().__init__(*message)
        self.key = key
        self.remedy = remedy

    def describe(self) -> str:
        """Return the message without source and remedy."""
        message = super().__str__()
        return message if self.key is None else f"{self.key}: {message}"

    def __str__(self) -> str:
        message = self.describe()
        if self.source is not None:
            message = f"{self.source}: {message}"
        if self.remedy is not None:
            message = f"{message}; {self.remedy}"
        # Names of files may hold line feeds and control characters.
        return "".join(part if part.isprintable() else repr(part)[1:-1] for part in message)


class StateMismatchError(UsageError):
    """An intact saved state that belongs to another network or to other settings."""


class ArgumentError(UsageError):
    """An argument that does not meet a condition.

    Args:
        owner: Class or function that was called.
        name: Argument.
        value: Value of the argument.
        condition: Condition that the value does not meet, in words that follow "must".
        remedy: What the user can do, if the condition alone does not say it.

    Attributes:
        key: Dotted key of ``owner`` in the configuration; None outside of one.
        is_setting: Whether ``name`` is a key below ``key``. False for values known at run time.

    >>> error = ArgumentError("AdamW", "lr", -1.0, "be positive", remedy="try 1e-4")
    >>> print(error)
    AdamW: lr must be positive, got -1.0; try 1e-4
    >>> error.key = "optimizer"
    >>> print(error)
    optimizer.lr: must be positive, got -1.0; try 1e-4
    >>> error.is_setting = False
    >>> print(error)
    optimizer (AdamW): lr must be positive, got -1.0; try 1e-4
    """

    is_setting = True

    def __init__(
        self, owner: str, name: str, value: Any, condition: str, *, remedy: str | None = None
    ) -> None:
        super().__init__(owner, name, value, condition, remedy=remedy)
        self.owner = owner
        self.name = name
        self.value = value
        self.condition = condition

    def describe(self) -> str:
        """Return the message without source and remedy."""
        value = format_value(self.value)
        if self.key is None:
            value = _shorten(repr(self.value))  # as in Python, not as in YAML
            argument = f"{self.owner}: {self.name}"
        elif self.is_setting:
            argument = f"{self.key}.{self.name}:" if self.key else f"{self.name}:"
        else:
            argument = f"{self.key} ({self.owner}): {self.name}"
        return f"{argument} must {self.condition}, got {value}"


class SettingError(UsageError):
    """A value in the configuration that does not meet a condition.

    Args:
        key: Dotted key of the value.
        value: Value in the configuration.
        condition: Condition that the value does not meet, in words that follow "must".
        remedy: What the user can do, if the condition alone does not say it.

    >>> print(SettingError("run.resume", None, "be true, false or auto"))
    run.resume: must be true, false or auto, got null
    """

    def __init__(self, key: str, value: Any, condition: str, *, remedy: str | None = None) -> None:
        super().__init__(key, value, condition, key=key, remedy=remedy)
        self.value = value
        self.condition = condition

    def describe(self) -> str:
        """Return the message without source and remedy."""
        return f"{self.key}: must {self.condition}, got {format_value(self.value)}"


class BuildError(UsageError):
    """A part of a configuration whose constructor raised an error of another library.

    Args:
        key: Dotted key of the part.
        reason: First line of the error, as the library wrote it.
        numbers: Numeric arguments of the part that may be wrong, listed because such errors seldom
            name the argument.

    >>> print(BuildError("encoder", "not enough memory", {"num_layers": 2, "d_model": 10**9}))
    encoder: not enough memory; got d_model=1000000000, num_layers=2
    """

    def __init__(self, key: str, reason: str, numbers: Mapping[str, float]) -> None:
        super().__init__(key, reason, numbers, key=key)
        self.reason = reason
        self.numbers = numbers

    def describe(self) -> str:
        """Return the message without source and remedy."""
        message = f"{self.key}: {self.reason}"
        if not self.numbers:
            return message
        # Largest first: most of these errors are about a size.
        names = sorted(self.numbers, key=lambda name: abs(self.numbers[name]), reverse=True)
        listed = [f"{name}={format_value(self.numbers[name])}" for name in names]
        return f"{message}; got {', '.join(listed)}"


def format_value(value: Any) -> str:
    """Format a value as in YAML; a long one is cut off.

    >>> format_value(None), format_value(True), format_value("a")
    ('null', 'true', "'a'")
    """
    is_yaml_word = value is None or isinstance(value, bool)
    return json.dumps(value) if is_yaml_word else _shorten(repr(value))


def _shorten(text: str, longest: int = 200) -> str:
    """Cut off a text that is too long for a message."""
    return text if len(text) <= longest else f"{text[:longest]}..."


@contextmanager
def at_key(key: str, names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Within the block, give argument errors the key of their owner in the configuration.

    Args:
        key: Dotted key below which the arguments stand under their own names.
        names: Dotted keys of arguments that stand elsewhere, or under another name.

    >>> with at_key("schedule", {"decay": "schedule.average_decay"}):
    ...     require("AveragedWeights", "decay", 2.0, False, "be in [0, 1)")
    Traceback (most recent call last):
    yamame.checks.ArgumentError: schedule.average_decay: must be in [0, 1), got 2.0
    """
    try:
        yield
    except ArgumentError as error:
        if error.key is None:  # the innermost owner knows its key best
            dotted = (names or {}).get(error.name, f"{key}.{error.name}")
            error.key, _, error.name = dotted.rpartition(".")
        raise


@contextmanager
def at_source(source: str) -> Iterator[None]:
    """Within the block, give usage errors the run or file in which the mistake is.

    >>> with at_source("run=runs/mine"):
    ...     raise UsageError("the weights must be finite")
    Traceback (most recent call last):
    yamame.checks.UsageError: run=runs/mine: the weights must be finite
    """
    try:
        yield
    except UsageError as error:
        # The outermost source is the one in the user's own words.
        error.source = source
        raise


def require(
    owner: str, name: str, value: Any, holds: bool, condition: str, *, remedy: str | None = None
) -> None:
    """Raise unless a condition holds.

    Args:
        owner, name, value, condition, remedy: As for `ArgumentError`.
        holds: Result of the check.

    Raises:
        ArgumentError: "<owner>: <name> must <condition>, got <value>".
    """
    if not holds:
        raise ArgumentError(owner, name, value, condition, remedy=remedy)


def require_tensordict(owner: str, given: object) -> None:
    """Raise unless a module was given a TensorDict.

    Args:
        owner: Class of the module.
        given: Argument of its call.

    Raises:
        ArgumentError: It is something else, such as a tensor.
    """
    from tensordict import TensorDictBase  # which the command line does without

    if isinstance(given, TensorDictBase):
        return
    remedy = "put the tensors into a tensordict.TensorDict under the module's in_keys"
    raise ArgumentError(owner, "tensordict", type(given), "be a TensorDict", remedy=remedy)


def require_setting(
    key: str, value: Any, holds: bool, condition: str, *, remedy: str | None = None
) -> None:
    """Raise unless a value of the configuration meets a condition.

    Args:
        key, value, condition, remedy: As for `SettingError`.
        holds: Result of the check.

    Raises:
        SettingError: "<key>: must <condition>, got <value>".

    >>> require_setting("budget.updates", 0, False, "be positive", remedy="use null for no limit")
    Traceback (most recent call last):
    yamame.checks.SettingError: budget.updates: must be positive, got 0; use null for no limit
    """
    if not holds:
        raise SettingError(key, value, condition, remedy=remedy)


def require_choice(owner: str, name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise unless a value is one of several."""
    require(owner, name, value, value in choices, f"be one of {choices}")


def require_activation(owner: str, name: Any) -> str:
    """Return the name of an activation's class in `torch.nn`; raise for one that is unknown."""
    require_choice(owner, "activation", name, tuple(_ACTIVATIONS))
    return _ACTIVATIONS[name]


def require_at_least(owner: str, least: float, **values: float) -> None:
    """Raise unless every value is at least ``least``; NaN fails.

    >>> require_at_least("GRUEncoder", 1, hidden_size=8, num_layers=0)
    Traceback (most recent call last):
    yamame.checks.ArgumentError: GRUEncoder: num_layers must be at least 1, got 0
    """
    for name, value in values.items():
        require(owner, name, value, value >= least, f"be at least {least}")


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
        if value != value:  # only NaN is not equal to itself
            return False
        if self.least is not None and value < self.least:
            return False
        if self.most is not None and value > self.most:
            return False
        if self.above is not None and value <= self.above:
            return False
        return self.below is None or value < self.below

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

    def check(self, value: float) -> float:
        """Return a number that lies in the range.

        Raises:
            ValueError: The number is outside of the range.
        """
        if not self.contain(value):
            raise ValueError(self.condition)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Let pydantic check the range of annotated fields.

        Pydantic looks this method up by its name, and takes schemas as dictionaries, so that
        neither needs an import here.
        """
        function = {"type": "no-info", "function": self.check}
        return {"type": "function-after", "function": function, "schema": handler(source)}


PositiveInt = Annotated[int, Bounds(least=1)]
NonNegativeInt = Annotated[int, Bounds(least=0)]
PositiveFloat = Annotated[float, Bounds(above=0)]
NonNegativeFloat = Annotated[float, Bounds(least=0)]
UnitInterval = Annotated[float, Bounds(least=0, most=1)]
"""A number in [0, 1]: a probability, a rate, a share."""
DropoutRate = Annotated[float, Bounds(least=0, below=1)]
"""Probability of dropping a unit; with 1 nothing would be left."""
Activation = Literal["leaky_relu", "gelu", "relu", "mish"]
"""Name of an activation, as of its function in `torch.nn.functional`."""
_ACTIVATIONS = {"leaky_relu": "LeakyReLU", "gelu": "GELU", "relu": "ReLU", "mish": "Mish"}
NumLayers = Annotated[int, Bounds(least=1, most=1_000)]
"""Number of layers. The upper limit catches typing errors: layers are built one by one."""

Function = TypeVar("Function", bound=Callable[..., Any])
# Type, bounds, and whether None is allowed.
_Checked = tuple[type, Bounds | None, bool]


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
    arguments = _checked_arguments(function)
    return {name: bounds for name, (_, bounds, _) in arguments.items() if bounds is not None}


def _checked_arguments(function: Callable[..., Any]) -> dict[str, _Checked]:
    """Return what is known of arguments with bounds, and of flags, which have none."""
    target = function.__init__ if inspect.isclass(function) else function
    hints = typing.get_type_hints(target, include_extras=True)
    found: dict[str, _Checked] = {}
    for name, parameter in inspect.signature(target).parameters.items():
        is_single = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        hint = hints.get(name) if is_single else None
        is_optional = parameter.default is None or type(None) in typing.get_args(hint)
        if hint in (bool, bool | None):
            found[name] = (bool, None, is_optional)
        for kind, bounds in _bounds_in(hint):
            found[name] = (kind, bounds, is_optional)
    return found


def _bounds_in(hint: Any) -> Iterator[tuple[type, Bounds]]:
    origin = typing.get_origin(hint)
    if origin is Annotated:
        for data in hint.__metadata__:
            if isinstance(data, Bounds):
                yield hint.__origin__, data
    elif origin in (typing.Union, types.UnionType):
        for member in typing.get_args(hint):
            yield from _bounds_in(member)


def _is_flag(value: Any) -> bool:
    """Return whether a value is a bool, or a scalar bool of NumPy, torch or JAX."""
    # By the name of the dtype: the command line does without these libraries.
    dtype = str(getattr(value, "dtype", None)).removeprefix("torch.")
    return isinstance(value, bool) or (dtype == "bool" and tuple(value.shape) == ())


def check_bounds(function: Function) -> Function:
    """Decorate a function or constructor so that it raises for numbers outside of their bounds.

    Whole floats and NumPy's integers become those of Python. Arguments annotated as ``bool`` must
    be flags: a text such as ``"no"`` would count as true. None must be allowed by the annotation.

    Raises:
        ArgumentError: A number is outside of the bounds of its annotation, a value that has bounds
            is not a number, or a flag is not a bool.

    >>> @check_bounds
    ... def train(steps: PositiveInt): ...
    >>> train(0)
    Traceback (most recent call last):
    yamame.checks.ArgumentError: train: steps must be at least 1, got 0
    """
    signature = inspect.signature(function)
    is_constructor = function.__name__ == "__init__"
    # Annotations are resolved at the first call: they may name classes defined later.
    bounded = functools.cache(functools.partial(_checked_arguments, function))

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            # Python's own message about missing or unknown arguments is the better one.
            return function(*args, **kwargs)
        # A subclass that inherits the constructor is what the user named.
        owner = type(args[0]).__name__ if is_constructor else function.__name__
        for name, (kind, bounds, is_optional) in bounded().items():
            value: Any = bound.arguments.get(name)
            if name not in bound.arguments or (value is None and is_optional):
                continue
            if bounds is None:
                require(owner, name, value, _is_flag(value), "be true or false")
                continue
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if not is_number:
                noun = "whole number" if kind is int else "number"
                condition = f"be a {noun} and {bounds.condition}"
                raise ArgumentError(owner, name, value, condition)
            require(owner, name, value, bounds.contain(value), bounds.condition)
            if kind is int:
                require(owner, name, value, value % 1 == 0, "be an integer")
                require(owner, name, value, abs(value) < 2**63, "be below 2**63")
                bound.arguments[name] = int(value)  # integers of NumPy would overflow
        return function(*bound.args, **bound.kwargs)

    return typing.cast(Function, checked)
