"""The package trains and acts with its base dependencies alone: other packages are hidden while a
program runs.

``nox -s base`` runs the same where nothing else is installed.
"""

import subprocess
import sys
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from yamame.system.messages import TRAIN_PACKAGES, explain_missing

PROGRAMS = [Path(__file__).with_name(name) for name in ("program.py", "acting.py")]
HIDING = """
import sys
from importlib.machinery import PathFinder

hidden, arguments = set(sys.argv[1].split(",")), sys.argv[2:]

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in hidden else super().find_spec(name, path, target)

sys.meta_path = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]
"""


def required(distributions: list[str]) -> set[str]:
    """Distributions and all that they need."""
    known: set[str] = set()
    waiting = [canonicalize_name(name) for name in distributions]
    while waiting:
        name = waiting.pop()
        known.add(name)
        needed = [Requirement(text) for text in requires(name) or ()]
        names = [
            need.name
            for need in needed
            if need.marker is None or need.marker.evaluate({"extra": ""})
        ]
        waiting += {canonicalize_name(name) for name in names} - known
    return known


@cache
def hidden() -> str:
    """Modules that are installed here and that nothing of the base needs."""
    base = required(["torch", "torchrl", "tensordict", "numpy", "safetensors"])
    modules = packages_distributions().items()
    others = [
        name
        for name, owners in modules
        if not base & {canonicalize_name(owner) for owner in owners}
    ]
    return ",".join(name for name in others if not name.startswith(("yamame", "_")))


def run(statement: str, *arguments: str) -> subprocess.CompletedProcess:
    """A statement in a process that finds nothing but the base."""
    command = [sys.executable, "-c", HIDING + statement, hidden(), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_whole_program_trains_and_another_acts_with_the_base_alone():
    both = "import runpy\nfor program in arguments: runpy.run_path(program, run_name='__main__')"
    done = run(both, *map(str, PROGRAMS))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "parameters moved" in done.stdout
    assert "actions from" in done.stdout


@pytest.mark.parametrize("statement", ["import gymnasium", "from yamame.cli import app"])
def test_what_is_hidden_cannot_be_imported(statement):
    done = run(statement)
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr


COMMAND = "from yamame.cli.console import main; sys.argv[1:] = arguments; main()"
REMEDY = "training needs the package hydra, run: pip install 'yamame[train]'"


def test_the_base_alone_names_the_extra_that_training_needs():
    done = run(COMMAND, "train")
    assert (done.returncode, done.stderr) == (1, f"yamame train: {REMEDY}\n")
    assert run(COMMAND, "--help").returncode == 0
    done = run("import yamame; yamame.train('env=tmaze')")
    assert done.returncode == 1
    assert done.stderr.endswith(f"ModuleNotFoundError: yamame.train: {REMEDY}\n")
    assert "During handling" not in done.stderr


def test_a_module_that_no_extra_installs_is_not_named_as_one():
    assert explain_missing(ModuleNotFoundError(name="my_own_module")) is None


def test_the_modules_that_the_extra_installs_are_known():
    names = {Requirement(text).name for text in requires("yamame") or () if "'train'" in text}
    owners = packages_distributions()
    owned = {canonicalize_name(owner) for module in TRAIN_PACKAGES for owner in owners[module]}
    assert {canonicalize_name(name) for name in names} <= owned
