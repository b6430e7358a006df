import importlib.util
import re

import pytest


def _skip_if_missing(message: str) -> None:
    missing = re.search(r"the package (\w+) must be installed, run: pip install", message)
    if missing and importlib.util.find_spec(missing.group(1)) is None:
        pytest.skip(message)


@pytest.fixture(scope="session")
def skip_if_missing():
    """Skips where an error says that a package is missing, and it is: a wrong message skips nothing."""
    return _skip_if_missing
