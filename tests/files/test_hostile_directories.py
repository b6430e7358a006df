"""Directories in which a stranger has written every byte: each is refused in one line, and nothing
outside of it is read, written, created, emptied, renamed or deleted.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yamame
from yamame.files.atomic import atomic_writer
from yamame.files.checkpoint import Checkpointer

DRIVER = Path(__file__).with_name("hostile.py")
CARELESS = "a command that follows links"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run, its agent, a bundle of a skipped update, and files of the user's own beside them."""
    home = tmp_path_factory.mktemp("home")
    yamame.train(
        *("env=tmaze", "env.length=2", "encoder=gru", "debug=tiny", "logger=none"),
        *(f"run.root={home / 'runs'}", "run.name=mine"),
    )
    run = home / "runs" / "mine"
    for name in ("mlflow.jsonl", "metrics.jsonl"):
        (run / name).touch()
    bundle = Checkpointer(run / "nonfinite" / "step-000000000001-1", config={})
    bundle.save({"loss": {"w": torch.ones(2)}}, step=1)
    yamame.load(run).save_pretrained(home / "agent")
    (home / "victim" / "folder").mkdir(parents=True)
    (home / "victim" / "thesis.tex").write_text("ten years")
    (home / "victim" / "folder" / "step-000000000001.pt").write_text("mine")
    return home


@pytest.fixture(scope="module")
def results(home, tmp_path_factory):
    work = tmp_path_factory.mktemp("hostile")
    asked = json.dumps({"home": str(home), "work": str(work)})
    done = subprocess.run(
        [sys.executable, str(DRIVER)], input=asked, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def hostile(results):
    """Results of the cases, without the two controls."""
    return {name: results[name] for name in results if name not in ("nothing", CARELESS)}


def test_every_hostile_directory_is_refused_in_one_line(hostile):
    wrong = {}
    for name, result in hostile.items():
        for command, outcome in result["outcomes"].items():
            if not outcome.startswith("refused: "):
                wrong[name, command] = outcome
    assert wrong == {}
    assert len(hostile) > 60


def test_every_file_that_a_command_opens_was_replaced_by_a_link_and_by_a_pipe(results):
    opened = set(results["nothing"]["opened"])
    tried = {name.removeprefix("opened ").rpartition(" is a ")[0] for name in results}
    assert {name for name in opened if name.startswith("runs/mine/")} <= tried
    for name in ("summary.json", ".lock", "config.yaml", "replay/lock", "replay/0.index"):
        assert f"runs/mine/{name}" in opened


def test_nothing_outside_of_a_hostile_directory_is_touched(hostile, results):
    touched = {name: result["outside"] for name, result in hostile.items() if result["outside"]}
    assert touched == {}
    assert [name for name, result in hostile.items() if not result["is_whole"]] == []
    assert len(results[CARELESS]["outside"]) == 1
    assert not results[CARELESS]["is_whole"]


def test_the_same_commands_accept_a_directory_without_anything_hostile(results):
    outcomes = results["nothing"]["outcomes"]
    assert set(outcomes.values()) == {"accepted"}, outcomes


def test_a_planted_link_with_the_name_of_a_temporary_file_is_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("ten years")
    planted = tmp_path / f"summary.json.{os.getpid()}.partial"
    planted.symlink_to(tmp_path / "thesis.tex")
    with atomic_writer(tmp_path / "summary.json") as file:
        file.write(b"{}")
    assert (tmp_path / "thesis.tex").read_text() == "ten years"
    assert (tmp_path / "summary.json").read_bytes() == b"{}"
