"""Learning runs of minutes: what the default settings must reach. Run with ``pytest -m slow``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from yamame import conf_dir
from yamame.report.expected import Expected

RECIPE = Path(__file__).parents[2] / "recipes" / "train.py"
EXPERIMENTS = [
    path.stem
    for path in sorted((conf_dir() / "experiment").glob("cpu_*.yaml"))
    if "expected" in OmegaConf.load(path)
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def summary(directory: Path, *arguments: str) -> dict[str, float]:
    command = [sys.executable, str(RECIPE), "logger=none", "run.name=run", *arguments]
    subprocess.run(command, cwd=directory, check=True)
    return json.loads((directory / "runs/run/summary.json").read_text())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_default_job_completes_nine_in_ten_held_out_instructions(tmp_path, seed):
    assert summary(tmp_path, f"seed={seed}")["success"] >= 0.90


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_for_one_core_comes_out_as_its_settings_say(tmp_path, name):
    settings = OmegaConf.load(conf_dir() / "experiment" / f"{name}.yaml")
    if {"override /env": "popgym"} in settings.get("defaults", []):
        pytest.importorskip("popgym")
    expected = Expected.from_config(OmegaConf.to_container(settings.expected))
    key = {"success_mean": "success", "return_mean": "return_mean"}[expected.metric]
    low, high = expected.interval
    assert low <= summary(tmp_path, f"experiment={name}")[key] <= high


def test_without_memory_the_passive_t_maze_is_a_coin_toss(tmp_path):
    assert summary(tmp_path, "experiment=cpu_tmaze", "encoder=memoryless")["success"] <= 0.6


def test_hindsight_relabelling_matters_where_instructions_are_long(tmp_path):
    scores = {}
    for name, change in {"some": [], "none": ["+ablation=no_relabel"]}.items():
        directory = tmp_path / name
        directory.mkdir()
        scores[name] = summary(directory, "experiment=cpu_mazerunner_k3", *change)["success"]
    assert scores["some"] > scores["none"] + 0.2
