"""Libraries of games written in JAX, by the names of ids, and games of users.

An id is ``library:name`` for a library below, or ``module:name`` for a class or function of a
user's module. Ids of libraries only name entries of their registries, so a configuration from a
file may have them; other modules need ``trust`` there (`yamame.files.trusted`).
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import numpy as np
from gymnasium import spaces
from yamame.checks import ArgumentError, UsageError, require
from yamame.system.messages import OutsideError, one_line, print_once
from yamame.system.user_code import user_code

from yamame_envs.adapters.extras import MissingExtra, import_extra
from yamame_envs.jax_games.game import (
    Game,
    default_params,
    field_names,
    game_of,
    gymnax_game,
    replaced,
    time_limit_of,
)
from yamame_envs.jax_games.runtime import load_jax

DrawTask = Callable[[Any], Any]
Settings = Mapping[str, Any]
EXTRAS = {
    "craftax": "craftax",
    "gymnax": "gymnax",
    "popgym_arcade": "arcade",
    "xminigrid": "xland",
}
"""Extras that install the libraries, by the first part of the ids of their games."""
_TILES = 13
"""Tiles and colours of XLand-MiniGrid, which share a vocabulary."""


def library_game(id: str, settings: Settings, draw_task: DrawTask | str | None, owner: str) -> Game:
    """Return a game of a library.

    Args:
        id: ``library:name``.
        settings: Arguments of its constructor, and fields of its parameters.
        draw_task: Function that draws tasks, see `yamame_envs.jax_games.game.game_of`.
        owner: Name of the environment in messages.

    Raises:
        ArgumentError: The library has no such game, or it takes no such settings.
        MissingExtra: The library is not installed.
    """
    library, _, game = id.partition(":")
    load_jax()
    try:
        return LIBRARIES[library](game, dict(settings), draw_task, owner)
    except (MissingExtra, ArgumentError, OutsideError):
        raise
    except (TypeError, ValueError) as error:
        if settings:
            # Raises the error of an unknown id, if it is that.
            library_game(id, {}, draw_task, owner)
            condition = f"hold arguments and values that {id} takes"
            wrong = ArgumentError(
                owner, "settings", dict(settings), condition, remedy=one_line(error)
            )
        else:
            condition = f"name a game of {library}"
            remedy = _suggestion(library, game) or one_line(error)
            wrong = ArgumentError(owner, "id", id, condition, remedy=remedy)
        raise wrong from error


def suggested_id(wrong: str) -> str | None:
    """Return the id of a game that is named without its library, or with one misspelt.

    >>> suggested_id("gymnx:CartPole-v1")
    'gymnax:CartPole-v1'
    """
    library, colon, game = wrong.partition(":")
    if colon:
        close = get_close_matches(library, LIBRARIES, n=1)
        return f"{close[0]}:{game}" if close else None
    for known, registry in _REGISTRIES.items():
        if find_spec(known) is not None and wrong in registry():
            return f"{known}:{wrong}"
    return None


def _suggestion(library: str, wrong: str) -> str | None:
    """Return the names of games that resemble a wrong one, as a question; None without any."""
    names = {name.lower(): name for name in _REGISTRIES[library]()}
    close = get_close_matches(wrong.lower(), names)
    if wrong:
        begun = sorted(name for name in names if name.startswith(wrong.lower()))
        close = close or begun[:3]
    found = [f"{library}:{names[name]}" for name in close]
    return f"did you mean {' or '.join(found)}?" if found else None


def _gymnax(name: str, settings: Settings, draw: DrawTask | str | None, owner: str) -> Game:
    _check_gymnax("gymnax", owner)
    gymnax = import_extra("gymnax", extra=EXTRAS["gymnax"], owner=owner)

    def make(**rest: Any) -> Any:
        try:
            return gymnax.make(name, **rest)
        except OSError as error:  # games of MNIST download its pictures
            raise UsageError(f"{owner}: its data cannot be read: {one_line(error)}") from error

    return configured(make, settings, draw, owner)


def _popgym_arcade(name: str, settings: Settings, draw: DrawTask | str | None, owner: str) -> Game:
    _check_gymnax("stable-gymnax", owner)
    arcade = import_extra("popgym_arcade", extra=EXTRAS["popgym_arcade"], owner=owner)
    game = configured(lambda **rest: arcade.make(name, **rest), settings, draw, owner)
    return replace(game, pixels_as_bytes=True)


def _craftax(name: str, settings: Settings, draw: DrawTask | str | None, owner: str) -> Game:
    craftax = import_extra("craftax.craftax_env", extra=EXTRAS["craftax"], owner=owner)
    env = craftax.make_craftax_env_from_name(name, auto_reset=False)
    # Some games read angles from their parameters that the defaults leave open for the key.
    params = env.default_params
    _check_fields(settings, params, set(), owner)
    params = replaced(params, dict(settings) or None, owner)
    return replace(gymnax_game(env, params, owner, draw), pixels_as_bytes=True)


def _xminigrid(name: str, settings: Settings, draw: DrawTask | str | None, owner: str) -> Game:
    xminigrid = import_extra("xminigrid", extra=EXTRAS["xminigrid"], owner=owner)
    env, params = xminigrid.make(name, **settings)
    has_own = draw != "own"
    require(owner, "tasks", draw, has_own, "be null or a function key -> ruleset")
    ruleset = getattr(params, "ruleset", None)
    if draw is None and ruleset is not None and not np.any(ruleset.goal):
        print_once(f"{owner}: it has no goal and no reward: draw rulesets by env.tasks")

    def with_rules(task: Any) -> Any:
        if task is None:
            return params
        return params.replace(ruleset=replaced(params.ruleset, task, owner))

    def reset(key: Any, task: Any) -> tuple[Any, Any]:
        begun = env.reset(with_rules(task), key)
        return begun.observation, begun

    def step(key: Any, state: Any, action: Any, task: Any) -> Any:
        after = env.step(with_rules(task), state, action)
        terminated = after.discount == 0.0
        truncated = after.last() & ~terminated
        info = {"success": terminated}
        return after.observation, after, after.reward, terminated, truncated, info

    def draw_picture(state: Any, task: Any) -> Any:
        return env.render(with_rules(task), state)

    shape = env.observation_shape(params)
    is_grid = isinstance(shape, tuple)
    return Game(
        reset=reset,
        step=step,
        action_space=spaces.Discrete(env.num_actions(params)),
        observation_space=spaces.Box(0, _TILES - 1, shape, np.int64) if is_grid else None,
        time_limit=time_limit_of(params, owner=owner),
        draw_task=draw if callable(draw) else None,
        tokens=True,
        draw_picture=draw_picture,
    )


LIBRARIES: Mapping[str, Callable[[str, Settings, DrawTask | str | None, str], Game]] = {
    "craftax": _craftax,
    "gymnax": _gymnax,
    "popgym_arcade": _popgym_arcade,
    "xminigrid": _xminigrid,
}
"""Functions that make the games of each library, by the first part of their ids."""


_REGISTRIES: Mapping[str, Callable[[], Iterable[str]]] = {
    "craftax": lambda: [
        f"Craftax-{kind}-v1"
        for kind in ("Symbolic", "Pixels", "Classic-Symbolic", "Classic-Pixels")
    ],
    "gymnax": lambda: import_module("gymnax").registered_envs,
    "popgym_arcade": lambda: import_module("popgym_arcade.registration").REGISTERED_ENVIRONMENTS,
    "xminigrid": lambda: import_module("xminigrid").registered_environments(),
}
"""Functions that return the names of the games of each library, which is installed."""


def configured(
    make: Callable[..., Any], settings: Settings, draw: DrawTask | str | None, owner: str
) -> Game:
    """Make a game with settings: arguments of its constructor, or fields of its parameters.

    Args:
        make: Function that makes the game, or the game with its parameters.
        settings: Arguments of ``make``; those that it does not take are fields of the parameters.
        draw: Function that draws tasks, or ``"own"``.
        owner: Name of the environment in messages.
    """
    fields, arguments = _sorted_settings(make, settings)
    made = make(**arguments)
    if not fields:
        return game_of(made, owner, draw_task=draw)
    env, params = made if isinstance(made, tuple) else (made, default_params(made))
    _check_fields(fields, params, _names_of(make), owner)
    return game_of((env, replaced(params, fields, owner)), owner, draw_task=draw)


def _check_fields(fields: Settings, params: Any, arguments: set[str], owner: str) -> None:
    """Raise for a setting that is no field of the parameters; constructors take ``arguments``."""
    known = field_names(params)
    condition = "be left out: it is no argument of the constructor, and no field of the parameters"
    allowed = ", ".join(sorted(known | arguments))
    if allowed:
        condition += f" ({allowed})"
    for name, value in fields.items():
        require(owner, f"settings.{name}", value, name in known, condition)


def _sorted_settings(
    make: Callable[..., Any], settings: Settings
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the parameters, and those of the constructor."""
    names = _names_of(make)
    takes_any = len(names) < len(inspect.signature(make).parameters)
    if takes_any and settings:
        made = make()
        params = made[1] if isinstance(made, tuple) else default_params(made)
        names = set(settings) - field_names(params)
    arguments = {name: value for name, value in settings.items() if name in names}
    fields = {name: value for name, value in settings.items() if name not in names}
    return fields, arguments


def _names_of(make: Callable[..., Any]) -> set[str]:
    """Return the names of the arguments of a function, without those of ``**kwargs``."""
    parameters = inspect.signature(make).parameters
    return {name for name, one in parameters.items() if one.kind != one.VAR_KEYWORD}


def _check_gymnax(distribution: str, owner: str) -> None:
    """Raise if the module ``gymnax`` is the one of the other distribution.

    Both own the same folder, so the one that was installed last has overwritten the other.
    """
    installed = {}
    for name in ("gymnax", "stable-gymnax"):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    if len(installed) == 2 or (installed and distribution not in installed):
        extra = "gymnax" if distribution == "gymnax" else "arcade"
        found = " and ".join(f"{name} {number}" for name, number in installed.items())
        raise MissingExtra(
            f"{owner}: the module gymnax must be that of {distribution} alone, found {found}, "
            f"which replace each other: in a new environment, run: pip install 'yamame[{extra}]'"
        )


def own_game(
    made: Callable[..., Any] | Game, settings: Settings, draw: DrawTask | str | None, owner: str
) -> Game:
    """Return a game of a user.

    Args:
        made: A `Game`, or a class or function that makes one, see `game_of`.
        settings: Arguments of the class or function, and fields of the parameters.
        draw: Function that draws tasks, or ``"own"``.
        owner: Name of the environment in messages.

    Raises:
        ArgumentError: It makes no game.
        UserCodeError: It has raised an error.
    """
    load_jax()
    if isinstance(made, Game):
        require(owner, "settings", settings, not settings, "be empty for a Game")
        return game_of(made, owner, draw_task=draw)
    try:
        with user_code(f"{owner}: the game failed while it was made"):
            return configured(made, settings, draw, owner)
    except (TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        condition = "be arguments that its class or function takes"
        got = dict(settings)
        raise ArgumentError(owner, "settings", got, condition, remedy=one_line(error)) from error
