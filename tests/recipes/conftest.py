"""What tests of recipes share: recipes run in this process, and checkpoints are compared bit for
bit.
"""

import contextlib
import importlib.util
import io
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import yamame
from yamame.checks import UsageError
from yamame.cli.app import main

RECIPES = Path(__file__).parents[2] / "recipes"


def load(name: str) -> ModuleType:
    """A recipe, freshly loaded from its file."""
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def play_recipe(which: str | ModuleType, folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Runs a recipe in this process, in a folder: exit status, output, error output."""
    module = load(which) if isinstance(which, str) else which
    out, err, status = io.StringIO(), io.StringIO(), 0
    argv, sys.argv = sys.argv, [module.__file__, *arguments]
    try:
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            task = next(
                getattr(module, name)
                for name in (
                    "train",
                    "replay",
                    "export",
                    "import_agent",
                    "doctor",
                    "leaderboard",
                    "reproduce",
                    "probe",
                    "score",
                    "play",
                )
                if hasattr(module, name)
            )
            name = Path(module.__file__).stem
            main(task, config_name=name, needs_store=name != "doctor")  # as the files call it
    except SystemExit as exit_:
        status = exit_.code
    finally:
        sys.argv = argv
    return status, out.getvalue(), err.getvalue()


def lines_without_advice(text: str) -> list[str]:
    """The lines of an output without the advice that ends a run too short to learn."""
    is_advice = re.compile(r".* has hardly learned:|  .*").fullmatch
    return [line for line in text.splitlines() if not is_advice(line)]


@pytest.fixture(scope="session")
def play(empty_store) -> Callable[..., tuple[int, str, str]]:
    """`play_recipe`; an empty folder gets a database."""

    def play(which: str | ModuleType, folder: Path, *arguments: str) -> tuple[int, str, str]:
        if "logger=none" not in arguments and not any(folder.iterdir()):
            shutil.copy(empty_store, folder)
        return play_recipe(which, folder, *arguments)

    return play


@pytest.fixture
def recipe() -> ModuleType:
    """The training recipe."""
    return load("train")


@pytest.fixture
def runner(monkeypatch, tmp_path) -> Callable[[str | ModuleType], Callable]:
    """Makes a function that runs a recipe with arguments, in an empty directory, where the test is
    as well.
    """
    monkeypatch.chdir(tmp_path)

    def make(which: str | ModuleType) -> Callable:
        module = load(which) if isinstance(which, str) else which
        return lambda *arguments: play_recipe(module, tmp_path, *arguments)

    return make


@pytest.fixture
def refusal(monkeypatch, tmp_path) -> Callable[..., str]:
    """Makes a mistake in the test's directory, and gives the line that tells it: nothing may be
    written.
    """
    monkeypatch.chdir(tmp_path)

    def make(recipe: str, *arguments: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(UsageError) as raised:
            yamame.train(*arguments, recipe=recipe)
        assert sorted(tmp_path.rglob("*")) == before
        assert len(str(raised.value).splitlines()) == 1
        return str(raised.value)

    return make


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All entries of nested containers, by name."""
    if isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(value, f"{prefix}/{key}")
    else:
        yield prefix, tree


@pytest.fixture(scope="session")
def components() -> Callable[[Path | str], dict]:
    """What the newest checkpoint of a run directory holds."""

    def newest(directory: Path | str) -> dict:
        file = max((Path(directory) / "checkpoints").glob("step-*.pt"))
        return torch.load(file, weights_only=True)["components"]

    return newest


@pytest.fixture(scope="session")
def differing() -> Callable[..., list[str]]:
    """Names of the entries of two checkpoints that are not the same, bit for bit; clocks do not
    count.
    """
    identity = tuple(f"/replay/_storage/{name}" for name in ("owner", "parts"))

    def compare(first: dict, second: dict, *, skip: tuple[str, ...] = ()) -> list[str]:
        skipped = ("/budget", "/costs", *identity, *skip)
        a, b = (
            {k: v for k, v in leaves(tree) if not k.startswith(skipped)} for tree in (first, second)
        )
        assert a.keys() == b.keys()
        same = {
            k: torch.equal(v, b[k]) if isinstance(v, torch.Tensor) else v == b[k]
            for k, v in a.items()
        }
        return [key for key, equal in same.items() if not equal]

    return compare


SMALL = [
    "debug=tiny",
    "logger=none",
    "run.name=a",
    "encoder.d_model=16",
    "encoder.num_layers=1",
    "encoder.num_heads=2",
    "env.size=7",
    "env.split_by=walls_and_goals",
    "env.time_limit=20",
    "schedule.learning_starts=64",
    "evaluation.num_episodes=2",
    "evaluation.interval=128",
    "evaluation.video_frames=1",
    "checkpoint.interval=64",
    "replay.capacity=300",
    "budget.updates=null",
    # A run that is extended equals a longer one only without schedules over the budget.
    "schedule.anneal_lr=false",
    "exploration.anneal_steps=60000",
]


@pytest.fixture(scope="session")
def finished(play, tmp_path_factory, components) -> SimpleNamespace:
    """A small finished run: its ``folder``, the arguments with which it ``goes_on``, and what is
    ``expected`` then.
    """
    folder, goes_on = (
        tmp_path_factory.mktemp("finished"),
        [*SMALL, "budget.env_steps=640", "resume=true"],
    )
    assert play("train", folder, *SMALL, "budget.env_steps=512")[0] == 0
    later = tmp_path_factory.mktemp("later") / "copy"
    shutil.copytree(folder, later)
    assert play("train", later, *goes_on)[0] == 0
    return SimpleNamespace(
        folder=folder,
        goes_on=goes_on,
        expected=components(later / "runs/a"),
        without_advice=lines_without_advice,
    )


@pytest.fixture
def without_advice() -> Callable[[str], list[str]]:
    """`lines_without_advice`."""
    return lines_without_advice
