"""Errors of functions of a game, in one line."""

from types import TracebackType
from typing import Any

from yamame.system.user_code import UserCodeError, blame, user_code

from yamame_envs.jax_games.purity import KEPT
from yamame_envs.jax_games.runtime import load_jax

_NO_VALUES = (
    "arrays have no values while a function is traced: use jnp.where or jax.lax.cond in place of "
    "if, and functions of jax.numpy in place of those of Python and NumPy"
)


class GameCode(user_code):
    """Context manager that describes errors of a function of the game in one line.

    Messages of JAX are long, and name the function of this package that was traced.
    """

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        errors = load_jax().errors
        if isinstance(error, errors.UnexpectedTracerError):
            reason = KEPT
        elif isinstance(error, _untraceable(errors)):
            reason = f"{type(error).__name__}: {_NO_VALUES}"
        else:
            return super().__exit__(kind, error, trace)
        found = blame(error)
        place = ("", 0) if found is None else (found.file, found.line)
        raise UserCodeError(self.what, reason, *place) from error


def _untraceable(errors: Any) -> tuple[type[Exception], ...]:
    """Return the errors of JAX for a traced array whose value is asked for."""
    return (
        errors.ConcretizationTypeError,
        errors.TracerArrayConversionError,
        errors.TracerIntegerConversionError,
    )
