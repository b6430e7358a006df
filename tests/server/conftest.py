"""A server of a team starts where its marker is named: `nox -s server`, `pytest -m server`."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from team import PACKAGES, find_program, team_server


def pytest_collection_modifyitems(config, items):
    """Deselect the tests unless the marker is named: they take minutes."""
    if "server" in (config.option.markexpr or "").replace("not server", ""):
        return
    here = Path(__file__).parent
    own = [item for item in items if here in item.path.parents]
    if own:
        config.hook.pytest_deselected(items=own)
        items[:] = [item for item in items if item not in own]


@pytest.fixture(scope="session")
def server():
    """A running `TeamServer`."""
    missing = [name for name in ("initdb", "postgres", "pg_isready") if find_program(name) is None]
    if missing:
        pytest.fail(f"PostgreSQL is missing ({', '.join(missing)}): apt-get install {PACKAGES}")
    if find_spec("psycopg2") is None:
        pytest.fail("the package psycopg2-binary is missing, use: nox -s server")
    with team_server() as running:
        yield running
