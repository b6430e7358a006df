"""What a run prints on the screen is true of its environment."""

import re

import pytest
import yamame

TINY = [
    "debug=tiny",
    "logger=none",
    "budget.minutes=null",
    "evaluation.max_steps=10",
    "encoder=gru",
]


@pytest.mark.parametrize(
    ("env", "outcome"),
    [
        (["env=gym"], "return"),
        (["env=mazerunner", "env.num_goals=1", "env.time_limit=20"], "success"),
    ],
    ids=["gym", "mazerunner"],
)
def test_an_offline_run_names_the_outcome_that_its_environment_has(env, outcome, tmp_path, capsys):
    source = yamame.train(*TINY, *env, f"run.root={tmp_path}", "run.name=source")
    capsys.readouterr()
    data = ["data=runs", f"data.path={source.path}", f"run.root={tmp_path}", "run.name=offline"]
    yamame.train(*TINY, *env, *data, recipe="offline")
    printed = capsys.readouterr().out
    assert set(re.findall(r"(success|return) -", printed)) == {outcome}
    # The evaluation counts episodes, and tasks where they are known.
    (line,) = [line for line in printed.splitlines() if "evaluation after" in line][-1:]
    assert re.search(r"\d+ episodes?", line)
    assert ("task" in line.partition("episode")[2].partition(";")[0]) == (outcome == "success")
