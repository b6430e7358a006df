"""A batched environment outside of the package, that of the how-to: trained, resumed, evaluated and
played, without pictures.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "own_batched_env.md"
SMALL = [
    "debug=tiny",
    "logger=none",
    "encoder=gru",
    "encoder.hidden_size=8",
    "schedule.learning_starts=64",
    "evaluation.num_episodes=4",
    "evaluation.interval=128",
    "checkpoint.interval=64",
    "budget.updates=null",
    "schedule.anneal_lr=false",
    "exploration.anneal_steps=60000",
    "run.name=a",
]
TRIALS = ["trials=repeated", "trials.num_trials=2"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with the files of the page."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("mylab", None)
    for title, text in re.findall(r'```\w+ title="(.*?)"\n(.*?)```', PAGE.read_text(), re.DOTALL):
        file = tmp_path / title
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    yield tmp_path
    sys.modules.pop("mylab", None)


def summary(folder: Path) -> dict:
    return json.loads((folder / "runs" / "a" / "summary.json").read_text())


@pytest.mark.parametrize(
    ("chosen", "trials"),
    [
        (["--config-dir", "conf", "env=safe"], TRIALS),
        (["env._target_=mylab.Safe", "env.time_limit=8", "relabel=none"], []),
    ],
    ids=["yaml", "target"],
)
def test_it_trains_and_resumes_to_equal_bits(play, folder, chosen, trials, components, differing):
    arguments = [*SMALL, *chosen, *trials, "trust=[mylab.]"]
    status, _, err = play("train", folder, *arguments, "budget.env_steps=256")
    assert status == 0, err
    first = summary(folder)
    assert (first["status"], first["env_steps"]) == ("FINISHED", 256)
    assert first["evaluated_on"] == "new tasks"
    assert "no video: " in err
    # Not at the end of an episode, so the state of the environment matters.
    whole = folder / "whole"
    shutil.copytree(folder, whole, ignore=shutil.ignore_patterns("runs", "whole"))
    status, _, err = play("train", whole, *arguments, "budget.env_steps=384")
    assert status == 0, err
    status, _, err = play("train", folder, *arguments, "budget.env_steps=384", "resume=true")
    assert status == 0, err
    changed = differing(components(whole / "runs" / "a"), components(folder / "runs" / "a"))
    assert not changed


def test_it_is_evaluated_and_played_without_pictures(play, folder):
    arguments = [*SMALL, "--config-dir", "conf", "env=safe", *TRIALS, "trust=[mylab.]"]
    assert play("train", folder, *arguments, "budget.env_steps=128")[0] == 0
    trust = ["run=runs/a", "trust=[mylab.]"]
    status, out, err = play("evaluate", folder, *trust, "control=true", "num_episodes=4")
    assert status == 0, err
    assert "new tasks" in out
    status, out, err = play("play", folder, *trust)
    assert status == 0, err
    assert "action" in out


def test_a_replaced_class_takes_its_settings_with_it_but_none_that_was_given(play, folder):
    chosen = ["env._target_=mylab.Safe", "relabel=none", "trust=[mylab.]", *SMALL]
    status, _, err = play("train", folder, *chosen, "budget.env_steps=128", "+env.num_codes=8")
    assert status == 0, err
    (line,) = [line for line in err.splitlines() if "left out" in line]
    assert "env.num_goals" in line
    assert "env.split," not in line
    cfg = yaml.safe_load((folder / "runs" / "a" / "config.yaml").read_text())
    assert cfg["env"] == {
        "_target_": "mylab.Safe",
        "num_codes": 8,
        "split": "train",
        "time_limit": 100,
    }
    status, _, err = play(
        "train", folder, *chosen, "budget.env_steps=128", "env.size=5", "run.name=b"
    )
    assert (status, err.count("\n")) == (2, 1), err
    assert "env.size: must be an argument of mylab.Safe" in err


def test_an_untrusted_class_is_not_imported(play, folder):
    (folder / "mylab.py").write_text("raise SystemExit('imported')")
    status, _, err = play("train", folder, "env._target_=mylab.Safe", "relabel=none", *SMALL)
    assert status == 2
    assert "a package of trust" in err
    assert "imported" not in err
