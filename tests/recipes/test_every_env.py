"""Two updates of a tiny agent on every environment of ``conf/env``, from the command line to the summary."""

import json
import sys

import pytest
from yamame import conf_dir
from yamame.runs.hydra import main

CHOICES = sorted(path.stem for path in (conf_dir() / "env").glob("*.yaml"))
SHORT = {
    "atari": ["env.time_limit=40"],
    "half_cheetah_vel": ["env.time_limit=40"],
    "metaworld": ["env.time_limit=20"],
}
"""Settings that end episodes soon, where the usual ones do not."""


@pytest.mark.parametrize("choice", CHOICES)
def test_two_updates_of_a_tiny_agent(choice, monkeypatch, tmp_path, capsys, recipe, skip_if_missing):
    monkeypatch.chdir(tmp_path)
    arguments = [f"env={choice}", "debug=tiny", "logger=none", "run.name=tiny", *SHORT.get(choice, [])]
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    try:
        main(recipe.train, config_name="train")
    except SystemExit:
        message = capsys.readouterr().err.strip()
        assert len(message.splitlines()) == 1
        skip_if_missing(message)
        pytest.fail(message)
    summary = json.loads((tmp_path / "runs/tiny/summary.json").read_text())
    assert summary["status"] == "FINISHED"
    assert summary["updates"] == 2
    assert summary["return_mean"] is not None
