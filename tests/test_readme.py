"""What README and the page of use show runs as it stands, and names only what there is."""

import re
import shutil
from pathlib import Path

from yamame import conf_dir

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
USE = (ROOT / "docs" / "use.md").read_text()
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
    quick = script.replace('"budget.minutes=2"', '"debug=tiny"')
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
    script = scripts(USE)[0].replace('"budget.minutes=0.1"', '"debug=tiny"').replace("=64", "=4")
    exec(compile(script, "use.md", "exec"), names)
    assert names["run"].summary["status"] == "FINISHED"
    assert len(list(tmp_path.glob("runs/*/evaluation/*/evaluation.json"))) == 2
    assert names["run"].name in names["page"].read_text()


def test_the_script_that_uses_parts_alone_runs_and_trains():
    names: dict = {}
    exec(compile(scripts(USE)[1], "use.md", "exec"), names)
    assert {"loss_critic", "loss_online", "loss_cloning"} <= set(names["terms"].keys())
    gradients = [p.grad for p in names["context"].parameters()]
    assert all(g is not None and g.abs().sum() > 0 for g in gradients)
    assert "mask" in names["buffer"].sample().keys()
    assert names["rollout"].batch_size == (8, 100)


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
        "callbacks",
        "ablation",
    ):
        rows = [line for line in USE.splitlines() if re.match(rf"\| `\+?{group}`", line)]
        named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[2])]
        assert sorted(named) == sorted(choices(group))


def test_the_page_of_environments_has_a_row_for_each():
    # Tables whose first column is the choice.
    tables = re.findall(r"^\| `env=` .*\n(?:\|.*\n)+", ENVIRONMENTS, re.MULTILINE)
    named = re.findall(r"^\| `(\w+)`", "".join(tables), re.MULTILINE)
    assert sorted(set(named)) == sorted(choices("env"))
