"""Learning runs of minutes: what the default settings must reach. Run with ``pytest -m slow``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "train.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def success(directory: Path, *arguments: str) -> float:
    command = [sys.executable, str(RECIPE), "logger=none", "run.name=run", *arguments]
    subprocess.run(command, cwd=directory, check=True)
    return json.loads((directory / "runs/run/summary.json").read_text())["success"]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_default_job_completes_nine_in_ten_held_out_instructions(tmp_path, seed):
    assert success(tmp_path, f"seed={seed}") >= 0.90


@pytest.mark.parametrize("encoder", ["transformer", "gru"])
def test_memory_solves_the_passive_t_maze(tmp_path, encoder):
    assert success(tmp_path, "env=tmaze", "env.length=32", f"encoder={encoder}") == 1.0


def test_without_memory_the_passive_t_maze_is_a_coin_toss(tmp_path):
    assert success(tmp_path, "env=tmaze", "env.length=32", "encoder=memoryless") <= 0.6


def test_hindsight_relabelling_matters_where_instructions_are_long(tmp_path):
    task = [
        "env.size=11",
        "env.num_goals=3",
        "env.time_limit=150",
        "budget.env_steps=100000",
        "budget.minutes=null",
    ]
    scores = {}
    for strategy in ("some", "none"):
        directory = tmp_path / strategy
        directory.mkdir()
        scores[strategy] = success(directory, *task, f"relabel={strategy}")
    assert scores["some"] > scores["none"] + 0.2
