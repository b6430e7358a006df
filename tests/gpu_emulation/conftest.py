"""What laws on the emulated device share; without it they are no tests."""

import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import yamame
from yamame.checks import UsageError

sys.path.insert(0, str(Path(__file__).parent))  # where emulated_cuda is


@pytest.fixture(scope="session")
def counts() -> Callable:
    """A context that counts what the host asks of the device."""
    from emulated_cuda.counting import counted

    return counted


@pytest.fixture(autouse=True)
def declared(monkeypatch) -> None:
    """Lets every capture fail that reads a tensor which is not declared."""
    from emulated_cuda.counting import watched as seen
    from yamame.execution.recorder import CudaRecorder
    from yamame.testing import DeclaredReads

    record = CudaRecorder.record

    def checked(self, function, *, reads):
        def watched():
            with DeclaredReads(reads):
                return function()

        # Around all of it: each graph of a divided capture would end another mode than its own.
        with seen():
            return record(self, watched, reads=reads)

    monkeypatch.setattr(CudaRecorder, "record", checked)


class Ended(NamedTuple):
    """What a run has learned, and in which files graphs were launched."""

    weights: dict[str, torch.Tensor]
    launches: set[str]


@pytest.fixture
def train(tmp_path, monkeypatch, skip_if_missing) -> Callable[..., Ended]:
    """Trains without pictures, in a folder of the test."""
    from emulated_cuda.counting import where

    launches, replay = set(), torch.cuda.CUDAGraph.replay

    def replay_noted(graph) -> None:
        launches.add(where().split(":")[0])
        replay(graph)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("yamame.runs.results.log_artifacts", lambda run: None)
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", replay_noted)

    def train(*overrides: str, recipe: str = "train") -> Ended:
        launches.clear()
        try:
            run = yamame.train(*overrides, recipe=recipe)
        except UsageError as error:
            skip_if_missing(str(error))
            raise
        weights = run.components["agent"].state_dict()
        return Ended({name: value.cpu() for name, value in weights.items()}, set(launches))

    return train


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., str]:
    """Runs a recipe that does not train, as the command line does, in a folder of the test: its
    output.
    """

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
