"""Programs of games that a process keeps, so that it compiles a game once."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from yamame_envs.jax_games.game import Game
from yamame_envs.jax_games.programs import Hook, Programs
from yamame_envs.jax_games.runtime import is_key, load_jax

_MOST_PROGRAMS = 16
"""Games whose programs a process keeps; the oldest are compiled again."""
_programs: dict[Hashable, Programs] = {}


def programs_of(
    key: Hashable,
    make: Callable[[], Game],
    *,
    success: str | None,
    owner: str,
    checked: Iterable[Hook] = (),
    is_remade: bool = False,
) -> Programs:
    """Return the programs of a game, which a process compiles once for each number of envs.

    Args:
        key: Everything that decides what the game is, and ``success``. What cannot be hashed is
            compiled for each environment.
        make: Makes the game.
        success: As for `Programs`.
        owner: Name of the environment in messages.
        checked: Functions of users, which must be pure.
        is_remade: Whether ``make`` calls a constructor of a user, which must be repeatable.
    """

    def made() -> Programs:
        programs = Programs(make(), success=success, owner=owner)
        programs.check_pure(checked, make if is_remade else None)
        return programs

    try:
        hash(key)
    except TypeError:
        return made()
    if key not in _programs:
        if len(_programs) >= _MOST_PROGRAMS:
            del _programs[next(iter(_programs))]
        _programs[key] = made()
    return _programs[key]


def exact_key(value: Any) -> Hashable:
    """Return a key that two values share only if they are equal in type and content.

    Numbers, texts, arrays, and mappings and sequences of these have one; other objects are their
    own keys.

    >>> exact_key([1, 2.0]) == exact_key([1, 2.0]), exact_key([1]) == exact_key((True,))
    (True, False)
    """
    if isinstance(value, Mapping):
        items = [(exact_key(name), exact_key(item)) for name, item in value.items()]
        return type(value), frozenset(items)
    if isinstance(value, list | tuple):
        return type(value), tuple(map(exact_key, value))
    if type(value) in (bool, int, float, complex, str, bytes):
        return type(value), repr(value)  # which tells -0.0 and 0.0 apart
    is_array = isinstance(value, np.ndarray | np.generic | load_jax().Array)
    if is_array and value.dtype != object and not is_key(value):
        return type(value), str(value.dtype), value.shape, np.asarray(value).tobytes()
    return value
