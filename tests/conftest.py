"""What all tests share."""

import importlib.util
import os
import re
import warnings

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
    """For tests that compile; skipped where there is no C++ compiler."""
    import torch  # not before OMP_NUM_THREADS is set

    with warnings.catch_warnings():
        # Of the compiler's own modules when they are imported.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            torch.compile(lambda x: x + 1)(torch.zeros(2))
        except RuntimeError as error:
            if "No working C++ compiler" not in str(error):
                raise
            pytest.skip("there is no C++ compiler here")
