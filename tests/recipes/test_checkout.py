"""Recipes run from a checkout that is not installed, and without MLflow where nothing is logged
there.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yamame

ROOT = Path(__file__).parents[2]
HIDING = '''
"""Hides every installed yamame, and MLflow."""

import os
import sys
from importlib import metadata
from importlib.abc import MetaPathFinder
from pathlib import Path

given = os.environ["PYTHONPATH"].split(os.pathsep)
sys.path[:] = [
    place
    for place in sys.path
    if place in given
    or not any((Path(place) / name).is_dir() for name in ("yamame", "yamame_envs"))
]
find = metadata.Distribution.from_name.__func__


def from_name(cls, name):
    if name == "yamame":
        raise metadata.PackageNotFoundError(name)
    return find(cls, name)


class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "mlflow":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


metadata.Distribution.from_name = classmethod(from_name)
sys.meta_path.insert(0, Missing())
'''
SMALL = (
    "env=tmaze",
    "env.length=8",
    "encoder=memoryless",
    "debug=tiny",
    "logger=none",
    "run.name=a",
)
NAMED, BARE = [str(ROOT / "components"), str(ROOT / "envs")], []


@pytest.fixture
def run(tmp_path):
    """Runs a recipe in a process in which yamame is on the path at most, and nothing of it is
    installed.
    """

    def run(places, recipe, *arguments):
        hiding = tmp_path / "hiding"
        hiding.mkdir(exist_ok=True)
        (hiding / "sitecustomize.py").write_text(HIDING)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(hiding), *places])}
        program = [sys.executable, str(ROOT / "recipes" / f"{recipe}.py"), *arguments]
        return subprocess.run(
            program, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
        )

    return run


def test_what_is_hidden_is_not_there(tmp_path, run):
    """The other tests would show nothing otherwise."""
    (tmp_path / "recipe.py").write_text("import yamame")
    done = run(BARE, tmp_path / "recipe")
    assert "No module named 'yamame'" in done.stderr
    (tmp_path / "recipe.py").write_text("from importlib.metadata import version\nversion('yamame')")
    assert "PackageNotFoundError" in run(NAMED, tmp_path / "recipe").stderr
    (tmp_path / "recipe.py").write_text("import mlflow")
    assert "No module named 'mlflow'" in run(NAMED, tmp_path / "recipe").stderr


@pytest.mark.parametrize("places", [NAMED, BARE], ids=["PYTHONPATH", "nothing"])
def test_a_run_is_trained_and_exported_from_a_checkout(places, run, tmp_path):
    done = run(places, "train", *SMALL)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "runs/a/summary.json").read_text())
    assert summary["versions"]["yamame"] == yamame.__version__
    if places == BARE:
        return
    done = run(places, "export", "run=runs/a", "path=agent")
    assert done.returncode == 0, done.stderr
    assert (
        json.loads((tmp_path / "agent/config.json").read_text())["yamame_version"]
        == yamame.__version__
    )


def test_commands_that_are_proposed_name_files_of_the_checkout(run):
    done = run(NAMED, "train", *SMALL)
    assert done.returncode == 0, done.stderr
    commands = [line.split() for line in done.stdout.partition("next:\n")[2].splitlines()[:-1]]
    assert [Path(words[1]) for words in commands] == [
        ROOT / "recipes/play.py",
        ROOT / "recipes/evaluate.py",
        ROOT / "recipes/train.py",
    ]
    assert {words[0] for words in commands} == {"python"}


def test_processes_that_a_recipe_starts_find_the_checkout(run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").write_text(
        "import subprocess, sys\n"
        "from yamame import Callback\n\n\n"
        "class Starting(Callback):\n"
        "    def on_begin(self, run):\n"
        "        program = [sys.executable, '-c', 'import yamame, yamame_envs']\n"
        "        subprocess.run(program, check=True)\n"
    )
    done = run(BARE, "train", *SMALL, "trust=[mine.]", "+callbacks.mine={_target_: mine.Starting}")
    assert done.returncode == 0, done.stderr


def test_the_doctor_compares_what_a_checkout_needs(run):
    done = run(NAMED, "doctor", *SMALL, "measure.seconds=1")
    problems = [line for line in done.stdout.splitlines() if line.startswith("problem")]
    assert f"yamame {yamame.__version__}" in done.stdout
    assert not [line for line in problems if "yamame" in line.split(":")[1]], problems


def test_every_recipe_finds_the_checkout_before_it_imports_the_package():
    for path in (ROOT / "recipes").glob("*.py"):
        text = path.read_text()
        first_import = re.search(r"^ *(from|import) yamame", text, re.MULTILINE)
        assert text.index("/../components") < first_import.start(), path.name
