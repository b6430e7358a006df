"""What all tests share."""

import importlib.util
import os
import re
import shlex
import shutil

import pytest

# Before anything imports torch: tests are small, and threads that wait for each other take longer than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _skip_if_missing(message: str) -> None:
    missing = re.search(r"the package (\w+) must be installed, run: pip install", message)
    if missing and importlib.util.find_spec(missing.group(1)) is None:
        pytest.skip(message)


@pytest.fixture(scope="session")
def skip_if_missing():
    """Skips where an error says that a package is missing, and it is: a wrong message skips nothing."""
    return _skip_if_missing


@pytest.fixture(scope="session")
def compiler() -> None:
    """For tests that compile; skipped where there is no C compiler."""
    if shutil.which(shlex.split(os.environ.get("CC", "cc"))[0]) is None:
        pytest.skip("there is no C compiler here")
