"""What laws on the emulated device share; without it they are no tests."""

import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # where emulated_cuda is


@pytest.fixture(scope="session")
def counts() -> Callable:
    """A context that counts what the host asks of the device."""
    from emulated_cuda.counting import counted

    return counted


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., str]:
    """Runs a recipe that does not train, as the command line does, in a folder of the test: its output."""

    def play(name: str, *arguments: str) -> str:
        from yamame.cli.app import main
        from yamame.runs.api import load_recipe

        module, out = load_recipe(name), io.StringIO()
        argv, sys.argv = sys.argv, [str(module.__file__), *arguments]
        try:
            with contextlib.chdir(tmp_path), contextlib.redirect_stdout(out):
                main(getattr(module, name), config_name=name)
        finally:
            sys.argv = argv
        return out.getvalue()

    return play
