import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))


@pytest.fixture
def game(own_module):
    """Writes ``mylab.py`` with a game; skips where JAX is not installed."""
    pytest.importorskip("jax")

    def write(source: str) -> None:
        own_module("mylab", source)

    return write
