"""Reports of errors that end a recipe: a line each, with the traceback for a defect of Yamame."""

import contextlib
from typing import Any, TypeGuard

from omegaconf import OmegaConf

from yamame.checks import UsageError
from yamame.cli.explain import explain_outside, explain_system, lines_of
from yamame.cli.nodes import targets
from yamame.system.messages import OutsideError, described, notes_of, print_stderr
from yamame.system.user_code import (
    HINT,
    Blame,
    UserCodeError,
    blame,
    formatted,
    innermost_module,
    is_failure,
    is_of_part,
    is_raised_by_user_code,
    wants_traceback,
)

_OF_LAUNCHERS = ("hydra", "hydra_plugins", "optuna", "submitit")


def is_reported(error: BaseException) -> bool:
    """Return whether an exception is reported in a line.

    Others are left to Python, which prints a traceback: defects of Yamame, errors in the code of a
    custom recipe itself, and requests to end the process.
    """
    # A guard ends a run by a FloatingPointError.
    if isinstance(error, UsageError | OutsideError | OSError | FloatingPointError):
        return True
    return is_failure(error) and is_of_part(error)


def report(error: BaseException, config: Any = None) -> list[str]:
    """Return the lines about an error that is reported, and print its traceback if it is wanted.

    Args:
        error: The error.
        config: Composed configuration, whose parts are named by their keys.

    Returns:
        One line; for several wrong settings one each.
    """
    if wants_traceback():
        print_stderr(formatted(error).rstrip())
    return lines_of(error) if is_mistake(error) else [_explain(error, config)]


def is_mistake(error: BaseException) -> TypeGuard[UsageError]:
    """Return whether an error is a mistake in the configuration.

    One of a check that user code has failed in a run, with its traceback in a file, is none.
    """
    return isinstance(error, UsageError) and getattr(error, "traceback_file", None) is None


def is_of_launcher(error: Exception) -> bool:
    """Return whether Hydra, or one of its launchers and sweepers, raised an error itself."""
    return blame(error) is None and innermost_module(error) in _OF_LAUNCHERS


def _explain(error: BaseException, config: Any) -> str:
    """Return one line about an error that is no mistake in the configuration."""
    found = blame(error) if is_of_part(error) else None
    if isinstance(error, OutsideError):
        text = explain_outside(error)
    elif isinstance(error, OSError) and not (found and is_raised_by_user_code(error)):
        text = explain_outside(error)
        found = None
    else:
        what = described(error) if found is None else _of_user_code(found, _part(found, config))
        text = "; ".join([str(what), *notes_of(error)])
    has_file = getattr(error, "traceback_file", None) is not None
    is_of_user = found is not None or isinstance(error, UserCodeError)
    needs_hint = is_of_user and not has_file and not wants_traceback()
    return f"{text}; {HINT}" if needs_hint else text


def _of_user_code(found: Blame, what: str) -> UserCodeError:
    reason = described(found.error)
    if isinstance(found.error, OSError):
        reason = f"{type(found.error).__name__}: {explain_system(found.error)}"
    return UserCodeError(what, reason, found.file, found.line)


def _part(found: Blame, config: Any) -> str:
    """Return the name of the part of a configuration that raised an error, and its function."""
    names: dict[str, str] = {}
    with contextlib.suppress(Exception):  # without names the error is reported all the same
        plain = OmegaConf.to_container(config) if OmegaConf.is_config(config) else config
        for key, node in targets(plain):
            names.setdefault(str(node["_target_"]), key)
    candidates = [found.function]
    for frame in reversed(found.frames):  # the innermost part is the one that failed
        candidates += _names_of(type(frame.f_locals.get("self")))
    for name in candidates:
        if name in names:
            return f"{names[name]} ({found.function})"
    return found.function or "user code"


def _names_of(kind: type) -> list[str]:
    """Return the dotted names of a class and its bases."""
    return [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
