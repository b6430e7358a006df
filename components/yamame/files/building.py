"""Objects described by plain data: a mapping with ``_target_`` names a class, its other keys are
arguments.

Errors of constructors get the dotted key of the mapping, so that they name the setting that is
wrong. Neither Hydra nor OmegaConf is needed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from yamame.checks import ArgumentError, BuildError, UsageError
from yamame.files.trusted import OURS, SPECIAL, locate
from yamame.system.messages import OutsideError, described, first_line
from yamame.system.user_code import user_code

_ERRORS = (TypeError, ValueError, OverflowError, MemoryError, RuntimeError)
"""Errors that a constructor raises for wrong arguments. PyTorch raises RuntimeError for sizes that
are negative, overflow or need more memory than there is. An error of another type is a defect of a
class of ours; other libraries raise any type for wrong arguments."""
_SIZE_ERRORS = (OverflowError, MemoryError, RuntimeError)
"""Those of them that may be about a size that is known at run time only."""

_ABSENT = object()


def build_node(
    node: Mapping[str, Any],
    key: str,
    *,
    trust: Sequence[str] = (),
    runtime: Mapping[str, Any] | None = None,
) -> Any:
    """Build the object that a mapping with ``_target_`` describes, and first those inside it.

    Args:
        node: Plain data whose names were checked before (`yamame.files.trusted`). With ``_partial_:
            true`` the result is a function that takes the remaining arguments.
        key: Dotted key of the mapping in the configuration.
        trust: Prefixes of packages outside of Yamame whose classes may be named.
        runtime: Further keyword arguments, which take precedence.

    Raises:
        UsageError: The class does not exist, or its constructor does not accept the arguments. The
            error has the key of the innermost mapping that it is about.
        UserCodeError: User code raised an error in the constructor.
    """
    target = locate(node["_target_"], key, trust)
    settings = {name: value for name, value in node.items() if name not in SPECIAL}
    positional = list(node.get("_args_", []))
    keywords = dict(settings)
    if node.get("_recursive_", True):
        positional = _build_inside(positional, f"{key}._args_", trust)
        keywords = _build_inside(settings, key, trust)
    keywords.update(runtime or {})
    errors = _ERRORS if node["_target_"].startswith(OURS) else (Exception,)

    def call(*args: Any, **rest: Any) -> Any:
        arguments = {**keywords, **rest}
        try:
            # Python raises a TypeError for wrong names of arguments before any user code runs.
            with user_code(f"{key} ({node['_target_']})"):
                return target(*positional, *args, **arguments)
        except OutsideError:
            raise  # a failure of something else, not of the configuration
        except UsageError as error:
            _locate(error, key, settings)
            raise
        except errors as error:
            if isinstance(error, ImportError):
                numbers = {}  # a missing package depends on no argument
            elif isinstance(error, _SIZE_ERRORS):
                numbers = _numbers(arguments)
            else:
                numbers = _numbers(settings)
            reason = first_line(error) if isinstance(error, _ERRORS) else described(error)
            raise BuildError(key, reason, numbers) from error

    return call if node.get("_partial_", False) else call()


def _build_inside(value: Any, key: str, trust: Sequence[str]) -> Any:
    """Copy plain data with all mappings that have a ``_target_`` replaced by what they describe."""
    if isinstance(value, Mapping):
        if "_target_" in value:
            return build_node(value, key, trust=trust)
        return {name: _build_inside(item, f"{key}.{name}", trust) for name, item in value.items()}
    if isinstance(value, list):
        return [_build_inside(item, f"{key}.{place}", trust) for place, item in enumerate(value)]
    return value


def _locate(error: UsageError, key: str, settings: Mapping[str, Any]) -> None:
    """Set the key of an error that a constructor raised, unless an inner one has set it."""
    if error.key is not None:
        return
    error.key = key
    if isinstance(error, ArgumentError):
        # A constructor may check numbers that it has computed, under the name of an argument.
        # Texts are compared, because tensors have no truth value and NaN is not equal to itself.
        value: Any = settings
        for name in error.name.split("."):  # as of a value within a mapping
            value = value.get(name, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        error.is_setting = repr(value) == repr(error.value)


def _numbers(arguments: Mapping[str, Any]) -> dict[str, float]:
    """Return the numeric arguments, without seeds."""
    numbers = {}
    for name, value in arguments.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # No constructor fails because of its seed.
        if is_number and name != "seed":
            numbers[name] = value
    return numbers
