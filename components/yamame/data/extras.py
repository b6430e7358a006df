"""Libraries that only some sources need, in the extra ``data``."""

import importlib
from typing import Any

from yamame.checks import UsageError


def import_extra(library: str) -> Any:
    """Import a library of the extra.

    Raises:
        UsageError: It is not installed.
    """
    try:
        return importlib.import_module(library)
    except ImportError as error:
        package = library.partition(".")[0]
        raise UsageError(
            f"data: {package} must be installed, with pip install 'yamame[data]': {error}"
        ) from error
