"""README and the pages of commands and Python: their scripts run, their tables are complete."""

import re
import shutil
from pathlib import Path

from yamame import conf_dir, recipes_dir

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = (ROOT / "docs" / "commands.md").read_text()
PYTHON = (ROOT / "docs" / "python.md").read_text()
ENVIRONMENTS = (ROOT / "docs" / "environments.md").read_text()


def scripts(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120


def test_the_script_of_the_readme_runs(empty_store, tmp_path, monkeypatch):
    shutil.copy(empty_store, tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    script, component = scripts(README)
    quick = script.replace('"budget.minutes=3"', '"debug=tiny"')
    assert quick != script
    exec(compile(quick, "README.md", "exec"), names)
    assert names["run"].summary["status"] == "FINISHED"
    assert names["done"]
    exec(compile(component, "README.md", "exec"), names)


def test_the_readme_shows_a_training_a_sweep_and_the_tests():
    for command in (
        "python recipes/train.py encoder=gru env=mazerunner ",
        "python recipes/train.py -m ",
        "nox -s tests ",
    ):
        assert f"\n{command}" in README


def test_the_script_that_trains_from_python_runs(empty_store, tmp_path, monkeypatch):
    shutil.copy(empty_store, tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    train, act = scripts(PYTHON)
    train = train.replace('"budget.minutes=0.1"', '"debug=tiny"').replace("=64", "=4")
    exec(compile(train, "python.md", "exec"), names)
    assert names["run"].summary["status"] == "FINISHED"
    assert len(list(tmp_path.glob("runs/*/evaluation/*/evaluation.json"))) == 2
    assert names["run"].name in names["page"].read_text()
    exec(compile(act, "python.md", "exec"), names)
    assert names["agent"].action_spec.is_in(names["action"])


def choices(group: str) -> set[str]:
    return {path.stem for path in (conf_dir() / group).glob("*.yaml")}


def test_the_table_of_choices_is_complete():
    for group in (
        "env",
        "trials",
        "encoder",
        "agent",
        "agent/returns",
        "relabel",
        "exploration",
        "data",
        "curriculum",
        "callbacks",
        "ablation",
    ):
        rows = [line for line in COMMANDS.splitlines() if re.match(rf"\| `\+?{group}`", line)]
        named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[2])]
        assert sorted(named) == sorted(choices(group))


def test_the_table_of_commands_is_complete():
    table = re.search(r"^\| to \| use \|\n(?:\|.*\n)+", COMMANDS, re.MULTILINE)[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(path.stem for path in recipes_dir().glob("*.py"))


def test_the_page_of_environments_has_a_row_for_each():
    # Tables whose first column is the choice.
    tables = re.findall(r"^\| `env=` .*\n(?:\|.*\n)+", ENVIRONMENTS, re.MULTILINE)
    named = re.findall(r"^\| `(\w+)`", "".join(tables), re.MULTILINE)
    assert sorted(set(named)) == sorted(choices("env"))
