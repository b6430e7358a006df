"""Examples run, each in an empty folder, and are short."""

import runpy
import shutil
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
RUN = {
    "train_in_python": (["0.01"], "runs/tmaze-gru"),
    "own_encoder": ([], "all laws hold, contexts have shape (2, 32)"),
    "loss_over_own_module": (["21"], "20 "),
    "act_sessions": ([], "3 turned right"),
    "offline_from_npz": (["3"], "success"),
    "relabel_goals": ([], "all "),
    "k_shot": (["0.005"], "wiped"),
    "tmaze_demonstrations": (["demos.npz", "5", "8"], ""),
}
"""Arguments, and a part of the output. The service has its own test."""
LONGEST = 60  # lines


@pytest.mark.parametrize("name", RUN)
def test_an_example_runs(name, empty_store, tmp_path, monkeypatch, capsys):
    arguments, printed = RUN[name]
    shutil.copy(empty_store, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert printed in out
    if name == "relabel_goals":  # it finds goals
        none, some, every = (float(line.split()[1]) for line in out.splitlines())
        assert none < some < every


def test_every_example_is_run_and_short():
    scripts = {path.stem: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert scripts.keys() == RUN.keys() | {"serve"}
    assert {name: size for name, size in scripts.items() if size > LONGEST} == {}
