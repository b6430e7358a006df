"""Libraries that only some environments need."""

import warnings
from importlib import import_module
from types import ModuleType


class MissingExtra(ImportError, ValueError):  # noqa: N818
    """A library that an environment needs is not installed, or cannot be imported."""


def import_extra(module: str, *, extra: str = "", owner: str, remedy: str = "") -> ModuleType:
    """Imports a library that is not part of the base installation; warnings of its import are not
    shown.

    Args:
        module: Name of the module.
        extra: Extra of this distribution that installs it, if one does.
        owner: Who needs it, for the message.
        remedy: What installs it where no extra can.

    Raises:
        MissingExtra: If it, or something it needs, is not installed or cannot be imported.

    >>> import_extra("math", extra="train", owner="Example").pi > 3
    True
    """
    remedy = f"run: {remedy}" if remedy else f"run: pip install 'yamame[{extra}]'"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        raise MissingExtra(f"{owner}: the package {missing} must be installed, {remedy}") from error
    except ImportError as error:
        raise MissingExtra(f"{owner}: {module} must be importable ({error}), {remedy}") from error
