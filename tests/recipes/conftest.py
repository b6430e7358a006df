"""What tests of recipes share."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from yamame.runs.hydra import main

RECIPES = Path(__file__).parents[2] / "recipes"


def load(name: str) -> ModuleType:
    """A recipe, freshly loaded from its file."""
    spec = importlib.util.spec_from_file_location(f"{name}_recipe", RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def recipe() -> ModuleType:
    """The training recipe."""
    return load("train")


@pytest.fixture
def runner(monkeypatch, tmp_path, capsys) -> Callable[[str | ModuleType], Callable]:
    """Makes a function that runs a recipe in this process, in an empty directory: exit status, output, error output."""
    monkeypatch.chdir(tmp_path)

    def make(which: str | ModuleType) -> Callable:
        module = load(which) if isinstance(which, str) else which
        name = Path(module.__file__).stem

        def call(*arguments: str):
            monkeypatch.setattr(sys, "argv", [module.__file__, *arguments])
            status = 0
            try:
                main(module.train, config_name=name)
            except SystemExit as exit_:
                status = exit_.code
            output = capsys.readouterr()
            return status, output.out, output.err

        return call

    return make
