"""Reports of errors that end a recipe: a line each, with the traceback for a defect of Yamame."""

import contextlib
from typing import Any

from omegaconf import OmegaConf

from yamame.checks import UsageError
from yamame.cli.explain import explain_outside, lines_of
from yamame.cli.nodes import targets
from yamame.system.messages import OutsideError, described, notes_of, print_stderr
from yamame.system.user_code import (
    HINT,
    Blame,
    UserCodeError,
    blame,
    formatted,
    is_called_by_yamame,
    is_failure,
    is_raised_by_user_code,
    wants_traceback,
)


def ends_recipe(error: BaseException) -> bool:
    """Return whether an exception is to be reported as the failure of a recipe.

    False for requests to end the process, such as ``sys.exit`` in a custom recipe. In a part of a
    run it is a failure.
    """
    if isinstance(error, SystemExit):
        is_of_part = is_raised_by_user_code(error) and is_called_by_yamame(error)
        return is_failure(error) and is_of_part
    return isinstance(error, Exception)


def report(error: BaseException, config: Any = None) -> list[str]:
    """Return the lines about an error, and print its traceback if it is needed or asked for.

    Args:
        error: The error.
        config: Composed configuration, whose parts are named by their keys.

    Returns:
        One line; for several wrong settings one each.
    """
    if isinstance(error, UsageError):
        return lines_of(error)
    lines = [_explain(error, config)]
    if wants_traceback() or _is_defect(error):
        print_stderr(formatted(error).rstrip())
    return lines


def _explain(error: BaseException, config: Any) -> str:
    """Return one line about an error that is no mistake in the configuration."""
    found = blame(error)
    is_of_user = found is not None
    if isinstance(error, OutsideError):
        text = explain_outside(error)
        is_of_user = isinstance(error, UserCodeError)
    elif isinstance(error, OSError) and not is_raised_by_user_code(error):
        text = explain_outside(error)
        is_of_user = False
    else:
        what = described(error) if found is None else UserCodeError.of(_part(found, config), error)
        text = "; ".join([str(what), *notes_of(error)])
    has_file = getattr(error, "traceback_file", None) is not None
    needs_hint = is_of_user and not has_file and not wants_traceback()
    return f"{text}; {HINT}" if needs_hint else text


def _is_defect(error: BaseException) -> bool:
    """Return whether no code of a user and nothing outside of Yamame has caused an error."""
    # A guard ends a run by a FloatingPointError.
    is_known = isinstance(error, OSError | OutsideError | FloatingPointError)
    return not is_known and blame(error) is None


def _part(found: Blame, config: Any) -> str:
    """Return the name of the part of a configuration that raised an error, and its function."""
    names: dict[str, str] = {}
    with contextlib.suppress(Exception):  # without names the error is reported all the same
        plain = OmegaConf.to_container(config) if OmegaConf.is_config(config) else config
        for key, node in targets(plain):
            names.setdefault(str(node["_target_"]), key)
    candidates = [found.function]
    for frame in found.frames:
        candidates += _names_of(type(frame.f_locals.get("self")))
    for name in candidates:
        if name in names:
            return f"{names[name]} ({found.function})"
    return found.function or "user code"


def _names_of(kind: type) -> list[str]:
    """Return the dotted names of a class and its bases."""
    return [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
