"""What laws on the emulated device share; without it they are no tests."""

import contextlib
import importlib.util
import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent
RECIPES = HERE.parents[1] / "recipes"
TASKS = {"evaluate": "score", "play": "play", "doctor": "doctor", "export": "export"}
"""The function of a recipe that does not train."""
sys.path.insert(0, str(HERE))  # where emulated_cuda is

from emulated_cuda.counting import counted


def load(name: str) -> ModuleType:
    """A recipe, freshly loaded from its file."""
    spec = importlib.util.spec_from_file_location(f"{name}_recipe", RECIPES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def counts() -> Callable:
    """A context that counts what the host asks of the device."""
    return counted


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Runs a recipe in this process, in a folder of the test: exit status, output, error output."""

    def run(name: str, *arguments: str) -> tuple[int, str, str]:
        from yamame.cli.app import main

        module, status = load(name), 0
        out, err = io.StringIO(), io.StringIO()
        task = getattr(module, TASKS.get(name, "train"))
        argv, sys.argv = sys.argv, [str(module.__file__), *arguments]
        try:
            with contextlib.chdir(tmp_path), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main(task, config_name=name)
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        finally:
            sys.argv = argv
        return status, out.getvalue(), err.getvalue()

    return run
