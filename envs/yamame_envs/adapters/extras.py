"""Import of libraries that only some environments need."""

import warnings
from importlib import import_module
from types import ModuleType

_EXTRAS = {
    "ale_py": "atari",
    "craftax": "craftax",
    "crafter": "crafter",
    "gymnax": "gymnax",
    "gymnasium_robotics": "robotics",
    "jax": "jax",
    "metaworld": "metaworld",
    "minigrid": "minigrid",
    "mujoco": "mujoco",
    "popgym": "popgym",
    "popgym_arcade": "arcade",
    "xminigrid": "xland",
    "xenoverse": "anymdp",
}
"""Extras of this distribution by the module that they install."""


class MissingExtra(ImportError, ValueError):  # noqa: N818
    """A library that an environment needs is not installed, or cannot be imported."""


def missing_extra(error: Exception, owner: str) -> MissingExtra | None:
    """Return the error of a library that an extra installs; None for any other module.

    Args:
        error: Error of the import, or one that it caused.
        owner: Name of the environment in messages.

    >>> print(missing_extra(ModuleNotFoundError(name="mujoco.viewer"), "Example"))
    Example: the package mujoco must be installed, run: pip install 'yamame[mujoco]'
    """
    cause = error if isinstance(error, ImportError) else error.__cause__ or error.__context__
    name = getattr(cause, "name", None)
    missing = str(name).partition(".")[0]
    if missing not in _EXTRAS:
        return None
    command = f"pip install 'yamame[{_EXTRAS[missing]}]'"
    return MissingExtra(f"{owner}: the package {missing} must be installed, run: {command}")


def import_extra(module: str, *, extra: str = "", owner: str, remedy: str = "") -> ModuleType:
    """Import a library that is not part of the base installation, without its warnings.

    Args:
        module: Name of the module.
        extra: Extra of this distribution that installs it.
        owner: Name of the environment in messages.
        remedy: Command that installs the library if no extra does.

    Raises:
        MissingExtra: The library, or one of its dependencies, is not installed or cannot be
            imported.

    >>> import_extra("math", extra="train", owner="Example").pi > 3
    True
    """
    command = remedy or f"pip install 'yamame[{extra}]'"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return import_module(module)
    except ModuleNotFoundError as error:
        # The missing package may be a dependency of the module, and is then the one to install.
        missing = (error.name or module).partition(".")[0]
        message = f"{owner}: the package {missing} must be installed, run: {command}"
        raise MissingExtra(message) from error
    except ImportError as error:
        message = f"{owner}: {module} must be importable ({error}), run: {command}"
        raise MissingExtra(message) from error
