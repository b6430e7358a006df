"""Games and functions of users, by names such as ``mylab:Safe``."""

from difflib import get_close_matches
from importlib import import_module
from typing import Any

from yamame.checks import ArgumentError, require
from yamame.system.messages import one_line
from yamame.system.user_code import is_of_package, user_code

from yamame_envs.adapters.extras import missing_extra
from yamame_envs.jax_games.game import Game
from yamame_envs.jax_games.libraries import LIBRARIES, suggested_id

_NOT_OWN = ("popgym", "yamame", "yamame_envs")
"""Packages in which no game of a user is found: ids may name some of them without trust."""


def located(text: str, owner: str, name: str) -> Any:
    """Import what ``module:name`` names.

    A name that the module has imported from another package does not count, as ``mylab:os.system``,
    and nothing is found in modules that an id may name without trust, as ``popgym:core.os.system``.

    Raises:
        ArgumentError: There is no such module or name, or it is of another package.
        MissingExtra: The module needs a package that is not installed.
        UserCodeError: The module has raised an error.
    """
    module, _, attribute = text.partition(":")
    known = ", ".join(f"{library}:..." for library in LIBRARIES)
    condition = f"be {known}, or module:name of a class or function of yours"
    if name == "tasks":
        condition = "be null, own, or module:name of a function of yours"
    package = module.partition(".")[0]
    can_be_own = bool(attribute) and package not in ("", *_NOT_OWN, *LIBRARIES)
    home, _, last = text.rpartition(".")
    meant = f"{home}:{last}" if home and ":" not in text else None
    if name == "id" and not can_be_own:
        meant = suggested_id(text) or meant
    remedy = f"did you mean {meant}?" if meant else None
    require(owner, name, text, can_be_own, condition, remedy=remedy)
    try:
        with user_code(f"{owner}: {name} failed while it was imported", passes=(ImportError,)):
            found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        missing = missing_extra(error, owner)
        if missing is not None:
            raise missing from error
        reason = one_line(error)
        meant = suggested_id(text) if isinstance(error, ImportError) and name == "id" else None
        reason += f", did you mean {meant}?" if meant else ""
        if isinstance(error, AttributeError):
            close = get_close_matches(str(error.name), dir(error.obj), n=1)
            reason += "".join(f", did you mean {each}?" for each in close)
        raise ArgumentError(owner, name, text, condition, remedy=reason) from error
    is_own = isinstance(found, Game) or is_of_package(found, package)
    require(owner, name, text, is_own, f"name a class or function of {package}")
    return found
