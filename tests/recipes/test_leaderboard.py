"""A suite of tasks: what is missing is run, what is done is not run again, and the table has both
sides.
"""

import re

import pytest
import yamame
from yamame.checks import UsageError
from yamame.cli.nodes import plain
from yamame.cli.settings import CONFIGS
from yamame.cli.validation import validated
from yamame.runs import api
from yamame.system.installed import recipe_command
from yamame.tracking.history import RunReader

SUITE = """# A suite of three corridors
title: Corridors
key: env.length
tiers:
  short: {{experiment: cpu_tmaze, tasks: [{tasks}]}}
against: theirs
published:
  theirs: {{source: a paper, changed: ["4"], values: {{"3": [-2.0, 0.1], "4": 0.5}}}}
  others: {{source: nobody, changed: [], values: {{}}}}
"""
TINY = "overrides=[debug=tiny,encoder=gru,logger.models=false,logger.system_metrics=false]"


@pytest.fixture
def board(play, tmp_path):
    """Runs the recipe on a suite of one's own: exit status, output, error output, and the cells of
    the table.
    """
    own = tmp_path.parent / f"{tmp_path.name}-own"
    (own / "suite").mkdir(parents=True)

    def board(tasks, *arguments):
        (own / "suite" / "corridors.yaml").write_text(SUITE.format(tasks=tasks))
        told = play(
            "leaderboard",
            tmp_path,
            "corridors",
            f"--config-dir={own}",
            "tier=short",
            TINY,
            *arguments,
        )
        page = tmp_path / "leaderboard" / "corridors-short.md"
        lines = page.read_text().splitlines() if page.exists() else []
        rows = [
            [cell.strip() for cell in line.split("|")[1:-1]]
            for line in lines
            if line.startswith("| ")
        ]
        return *told, [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]

    return board


def runs_of(folder):
    return [run.run_id for run in RunReader.open(f"sqlite:///{folder}/mlflow.db", "yamame").read()]


def test_a_table_is_not_made_of_nothing_but_failures(board):
    status, _, errors, rows = board("0")
    assert (status, rows) == (1, [])
    assert "length: must be at least 1, got 0" in errors


def test_what_is_missing_is_run_what_failed_is_told_and_what_is_done_stays(board, tmp_path):
    status, out, errors, rows = board("0, 3")
    assert status == 1
    assert "length: must be at least 1, got 0" in errors
    assert (
        "to be measured: python recipes/train.py experiment=cpu_tmaze env.length=0 debug=tiny"
        in out
    )
    assert [row["at the end"] == "to be measured" for row in rows] == [True, False]
    first = rows[1]
    assert (first["theirs"], first["verdict"]) == ("-2.000 ± 0.100", "above (one seed)")
    assert re.fullmatch(r"\d\.\d{3}", first["best"])
    assert float(first["CPU-s"]) > 0
    ids = runs_of(tmp_path)
    status, out, errors, rows = board("3, 4")
    assert (status, out.splitlines()[-1]) == (0, "leaderboard/corridors-short.md"), errors
    assert rows[0] == first
    assert (rows[1]["task"], rows[1]["theirs"], rows[1]["verdict"]) == ("4", "(0.500)", "")
    assert runs_of(tmp_path)[:1] == ids
    assert len(runs_of(tmp_path)) == 2
    assert "- *theirs*: a paper" in (tmp_path / "leaderboard" / "corridors-short.md").read_text()


def test_a_run_that_is_asked_to_end_ends_the_recipe_which_goes_on_later(board, monkeypatch):
    seen = []

    def interrupted(*overrides, **options):
        seen.append(overrides)
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "train", interrupted)
    assert board("3, 4")[0] == 75
    assert len(seen) == 1
    assert "resume=auto" in seen[0]


@pytest.mark.parametrize(
    ("tasks", "arguments", "message"),
    [
        ("3", ["tier=long"], "tier: must be one of short, got 'long'"),
        ("x", [], "env.length: must be an integer or a list, each an integer, got 'x'"),
        ("3", ["overrides=[encodr=gru]"], "encodr: no such key"),
    ],
)
def test_all_runs_are_checked_before_the_first_one(board, tmp_path, tasks, arguments, message):
    status, _, errors, _ = board(tasks, *arguments)
    assert status == 2
    assert message in errors
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


def test_the_suite_of_popgym_names_its_tasks_and_what_is_limited_by_cost(
    play, tmp_path, monkeypatch
):
    two = "suite.tiers.gpu.tasks=[RepeatFirstEasy,LabyrinthExploreHard]"
    status, out, errors = play(
        "leaderboard", tmp_path, "popgym", "tier=gpu", "only_check=true", two
    )
    assert status == 0, errors
    monkeypatch.chdir(tmp_path)
    assert out.splitlines() == [
        f"{recipe_command('train')} experiment=popgym env.id={task} seed=0"
        for task in ("RepeatFirstEasy", "LabyrinthExploreHard")
    ]
    suite = yamame.compose(recipe="leaderboard").suite
    assert len(suite.tiers.cpu.tasks) >= 14
    tasks = set(suite.tiers.gpu.tasks)
    assert len(suite.tiers.gpu.tasks) == len(tasks) == 48
    assert set(suite.tiers.cpu.tasks) < tasks
    for column in suite.published.values():
        assert set(column["values"]) <= tasks
        assert len(column["source"]) > 10
    assert yamame.compose(f"experiment={suite.tiers.cpu.experiment}").budget.cpu_s == 150.0


def test_the_same_failure_of_every_task_is_one_line(capsys, monkeypatch):
    module = api.load_recipe("leaderboard")

    def fail(*_):
        raise UsageError("encoder.size: must be even, got 3")

    monkeypatch.setattr(module, "train_or_resume", fail)
    composed = plain(yamame.compose("suite=popgym", recipe="leaderboard"))
    cfg = validated(CONFIGS["leaderboard"], composed)
    reported = set()
    for task in ("a", "b", "c"):
        assert not module.trained(cfg, [f"env.id={task}"], 0, reported)
    err = capsys.readouterr().err
    assert err.count("\n") == err.count("encoder.size") == 1
    assert "env.id=a" in err
