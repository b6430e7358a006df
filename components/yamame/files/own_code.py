"""Digests of the modules of a user that a run uses, to see whether they have changed."""

import hashlib
import sys
from collections.abc import Mapping
from typing import Any

from yamame.checks import UsageError
from yamame.files.untrusted import needs_of


def own_code(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of the file of each loaded module of the packages that a run names.

    Args:
        config: Configuration of the run. Packages that need no trust are left out.

    Returns:
        Digests by name of the module.
    """
    try:
        prefixes = tuple(need.prefix for need in needs_of(config) if need.prefix is not None)
    except UsageError:
        return {}
    digests = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or not f"{name}.".startswith(prefixes):
            continue
        try:
            with open(file, "rb") as source:
                digests[name] = hashlib.sha256(source.read()).hexdigest()
        except OSError:
            continue
    return digests


def changed_modules(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the modules whose files have changed; those that are new or gone do not count.

    >>> changed_modules({"mylab": "a", "tools": "b"}, {"mylab": "c", "tools": "b", "new": "d"})
    ['mylab']
    """
    return [name for name in now if before.get(name, now[name]) != now[name]]
