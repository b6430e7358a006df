"""A suite of tasks: what is missing is run, what is done is not run again, and the table has both
sides.
"""

import json
import re
import sys

import pytest
import yamame
from yamame.checks import UsageError
from yamame.cli.nodes import plain
from yamame.cli.settings import CONFIGS
from yamame.cli.validation import validated
from yamame.report.scores import read_scores
from yamame.runs import api, suites
from yamame.system.installed import recipe_command
from yamame.tracking.history import RunReader

SUITE = """# A suite of corridors
title: Corridors
tiers:
  short: {{overrides: [experiment=cpu_tmaze], tasks: [{tasks}]}}
  long: {{}}
random_source: a coin
tasks:
  zero: {{overrides: [env.length=0]}}
  three:
    overrides: [env.length=3]
    metric: return_mean
    random: -1.0
    best: 1.0
    best_source: a bound
  four: {{overrides: [env.length=4]}}
  wrong: {{overrides: [env.length=x]}}
against: theirs
published:
  theirs: {{source: a paper, changed: [four], values: {{three: [-2.0, 0.1], four: 0.5}}}}
  others: {{source: unknown, changed: [], values: {{}}}}
"""
TINY = "overrides=[debug=tiny,encoder=gru,logger.models=false,logger.system_metrics=false]"
PAGE = "corridors-short-debug=tiny-encoder=gru"


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
        page = tmp_path / "leaderboard" / f"{PAGE}.md"
        table = page.read_text().partition("<!-- end of runs -->")[0] if page.exists() else ""
        rows = [
            [cell.strip() for cell in line.split("|")[1:-1]]
            for line in table.splitlines()
            if line.startswith("| ")
        ]
        return *told, [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]

    return board


def runs_of(folder):
    return [run.run_id for run in RunReader.open(f"sqlite:///{folder}/mlflow.db", "yamame").read()]


def test_a_table_is_not_made_of_nothing_but_failures(board):
    status, _, errors, rows = board("zero")
    assert (status, rows) == (1, [])
    assert "length: must be at least 1, got 0" in errors


def test_what_is_missing_is_run_what_failed_is_told_and_what_is_done_stays(board, tmp_path):
    status, out, errors, rows = board("zero, three")
    assert status == 1
    assert "length: must be at least 1, got 0" in errors
    assert "to be measured: yamame train experiment=cpu_tmaze env.length=0 debug=tiny" in out
    assert [row["at the end"] == "to be measured" for row in rows] == [True, False]
    first = rows[1]
    assert (first["theirs"], first["verdict"]) == ("-2.000 ± 0.100", "above (one seed)")
    assert re.fullmatch(r".?\d\.\d{3}", first["best"])
    assert float(first["CPU-s"]) > 0
    board_folder = tmp_path / "leaderboard"
    (run,) = read_scores(board_folder / f"{PAGE}.csv")
    assert (run.task, run.seed, run.budget, run.metric) == ("three", 0, None, "return_mean")
    assert run.score == pytest.approx((run.value + 1) / 2, abs=1e-6)
    assert first["score"] == f"{run.score:.3f}"
    assert (run.updates, run.cpu_s > 0) == (2, True)

    ids = runs_of(tmp_path)
    (board_folder / f"{PAGE}.csv").rename(tmp_path / "before.csv")
    status, out, errors, rows = board("three, four", "baseline=before.csv")
    assert (status, out.splitlines()[-1]) == (0, f"leaderboard/{PAGE}.md"), errors
    assert rows[0] == first
    assert (rows[1]["task"], rows[1]["theirs"], rows[1]["verdict"]) == ("four", "(0.500)", "")
    assert rows[1]["score"] == ""
    assert runs_of(tmp_path)[:1] == ids
    assert len(runs_of(tmp_path)) == 2
    page = (board_folder / f"{PAGE}.md").read_text()
    assert "- *theirs*: a paper" in page
    assert "- *best known*, three: a bound" in page
    # The same run is no better than itself.
    assert re.search(r"\| three \| .?0\.000 \|", page)
    assert page.count("<!-- scores -->") == 1


CHOOSER = """
import torch


class Chooser:
    \"\"\"Draws actions, and walks right where it is evaluated greedily.\"\"\"

    def __init__(self, *, num_envs=2, stops_early=False):
        self.num_envs = num_envs
        self.stops_early = stops_early
        torch.rand(1)  # generators of runs are not disturbed by this

    def learn(self, task):
        env = task.build_env(self.num_envs)
        env.reset()
        steps = 0
        while task.goes_on(self.act, env_steps=steps, updates=steps) and not self.stops_early:
            steps += self.num_envs

    def act(self, timestep):
        return timestep.set("action", torch.zeros(len(timestep), dtype=torch.long))
"""


@pytest.fixture
def chooser(tmp_path, monkeypatch):
    """Overrides that compare with a learner from outside of the package."""
    folder = tmp_path.parent / f"{tmp_path.name}-lab"
    folder.mkdir()
    (folder / "chooserlab.py").write_text(CHOOSER)
    monkeypatch.syspath_prepend(folder)
    return ["+compare.chooser._target_=chooserlab.Chooser", "trust=[chooserlab.]"]


def test_a_learner_from_outside_has_the_same_tasks_a_column_and_rows_and_is_not_repeated(
    board, chooser, tmp_path
):
    status, out, errors, rows = board("three", *chooser, "seeds=[0,1]")
    assert status == 0, errors
    assert re.fullmatch(r"-?\d\.\d{3} ± \d\.\d{3}", rows[0]["chooser"])
    assert rows[0]["verdict"] in ("above", "within", "below")
    assert "difference to chooser" in out
    page = (tmp_path / "leaderboard" / f"{PAGE}.md").read_text()
    assert "against=chooser" in page
    assert "- *chooser*: Chooser" in page
    theirs = read_scores(tmp_path / "leaderboard" / f"{PAGE}-chooser.csv")
    ours = read_scores(tmp_path / "leaderboard" / f"{PAGE}.csv")
    # It never turns at the junction.
    assert [(run.seed, run.value, run.updates) for run in theirs] == [(0, 0.0, 2), (1, 0.0, 2)]
    assert [run.best >= run.value for run in ours] == [True, True]
    assert all(run.cpu_s > 0 for run in theirs)

    files = sorted((tmp_path / "runs").glob("chooser-*/comparison.json"))
    before = [file.stat().st_mtime_ns for file in files]
    assert len(files) == 2
    report = json.loads(files[0].read_text())
    num_episodes = report["settings"]["evaluation"]["num_episodes"]
    assert num_episodes == 4
    assert len(report["curve"]) >= 1
    assert board("three", *chooser, "seeds=[0,1]")[0] == 0
    assert [file.stat().st_mtime_ns for file in files] == before
    # Another setting of the learner is another run.
    assert board("three", *chooser, "+compare.chooser.num_envs=1")[0] == 0
    assert len(list((tmp_path / "runs").glob("chooser-*"))) == 3


def test_a_learner_that_ends_before_its_budget_has_no_result(board, chooser, tmp_path):
    status, _, errors, rows = board("three", *chooser, "+compare.chooser.stops_early=true")
    assert status == 1
    assert "until goes_on() returns False" in errors
    assert rows[0]["chooser"] == ""
    assert not list((tmp_path / "runs").glob("chooser-*/comparison.json"))


def test_a_missing_library_is_told_before_anything_is_trained(board, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    status, _, errors, _ = board("three", "compare=[recurrent_ppo]")
    assert status == 2
    assert errors.count("\n") == 1
    assert "compare.recurrent_ppo: the package sb3_contrib must be installed" in errors
    assert "pip install 'yamame[compare]'" in errors
    assert not (tmp_path / "runs").exists()


def test_a_run_that_is_asked_to_end_ends_the_recipe_which_goes_on_later(board, monkeypatch):
    seen = []

    def interrupted(*overrides, **options):
        seen.append(overrides)
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "train", interrupted)
    assert board("three, four")[0] == 75
    assert len(seen) == 1
    assert "resume=auto" in seen[0]


@pytest.mark.parametrize(
    ("tasks", "arguments", "message"),
    [
        ("three", ["tier=medium"], "tier: must be one of short, long, got 'medium'"),
        ("wrong", [], "env.length: must be an integer or a list, each an integer, got 'x'"),
        ("three", ["overrides=[encodr=gru]"], "encodr: no such key"),
        ("five", [], "suite.tiers.short.tasks: must be some of zero, three"),
        ("three, four", ["tasks=[zero]"], "tasks: must be some of three, four"),
        ("three, four", ["tasks=[]"], "tasks: must be different names"),
        ("three", ["cpu_s=[]"], "cpu_s: must have at least one limit"),
        ("three", ["cpu_s=[0]"], "cpu_s: must be"),
        ("three", ["+suite.tasks.three.wrist=1"], "suite.tasks.three: wrist: must be a setting"),
        ("three", ["suite.tasks.three.best=-1"], "suite.tasks.three.best: must differ"),
        ("three", ["suite.tasks.three.random=null"], "suite.tasks.three.random: must be given"),
        ("three", ["baseline=none.csv"], "baseline: none.csv does not exist"),
        ("three", ["baseline=./mine.csv", "page=mine.md"], "that this command does not write"),
        (
            "three",
            ["baseline=mine-recurrent_ppo.csv", "page=mine.md", "compare=[recurrent_ppo]"],
            "that this command does not write",
        ),
        ("three", ["overrides=[seed=3]"], "overrides: must leave out seed and budget"),
        ("three", ["cpu_s=[5]", "overrides=[budget.updates=3]"], "overrides: must leave out seed"),
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
    two = "tasks=[RepeatFirstEasy,LabyrinthExploreHard]"
    status, out, errors = play(
        "leaderboard", tmp_path, "popgym", "tier=gpu", "only_check=true", two
    )
    assert status == 0, errors
    monkeypatch.chdir(tmp_path)
    assert out.splitlines() == [
        f"{recipe_command('train')} experiment=popgym env.id={task} seed=0"
        for task in ("RepeatFirstEasy", "LabyrinthExploreHard")
    ]
    one = ("popgym", "tier=gpu", "only_check=true", "tasks=[RepeatFirstEasy]", "seeds=[3,4]")
    _, out, _ = play("leaderboard", tmp_path, *one)
    command = f"{recipe_command('train')} -m experiment=popgym env.id=RepeatFirstEasy seed=3,4"
    assert out.splitlines() == [command]
    suite = yamame.compose(recipe="leaderboard").suite
    assert len(suite.tiers.cpu.tasks) >= 14
    tasks = set(suite.tasks)
    assert len(tasks) == 48
    assert set(suite.tiers.cpu.tasks) < tasks
    for column in suite.published.values():
        assert set(column["values"]) <= tasks
        assert len(column["source"]) > 10
    limits = yamame.compose(*suite.tiers.cpu.overrides).budget
    assert (limits.cpu_s, limits.minutes, limits.env_steps) == (150.0, None, None)
    assert suite.tiers.cpu_30min.tasks == suite.tiers.cpu.tasks
    longer = yamame.compose(*suite.tiers.cpu_30min.overrides)
    assert (longer.budget.cpu_s, longer.evaluation.in_budget) == (1800.0, False)


def settings(*overrides):
    """Settings of the recipe."""
    composed = plain(yamame.compose(*overrides, recipe="leaderboard"))
    return validated(CONFIGS["leaderboard"], composed)


@pytest.mark.parametrize("name", ["dev", "reported"])
def test_every_task_with_a_score_has_settings_that_are_accepted_and_sources(name):
    planned = suites.plan(settings(f"suite={name}", "cpu_s=null"))
    assert {runs.budget for runs in planned} == {60.0, 300.0}
    tasks = {runs.name: runs.task for runs in planned}
    assert len(tasks) >= 12
    for task in tasks.values():
        yamame.compose(*task.overrides)
        assert task.metric in ("success_mean", "return_mean")
        assert task.random < task.best
        assert len(task.best_source) > 10
    assert all(runs.anchors is not None for runs in planned)


def test_no_task_is_both_chosen_on_and_reported():
    names = [settings(f"suite={name}").suite.tasks for name in ("dev", "reported")]
    overrides = [{tuple(task.overrides) for task in tasks.values()} for tasks in names]
    assert not set(names[0]) & set(names[1])
    assert not overrides[0] & overrides[1]


def test_each_limit_is_a_run_of_its_own_and_the_only_limit():
    limited = settings(
        "suite=dev", "cpu_s=[60,2.5]", "tasks=[tmaze_100]", "overrides=[encoder=gru]"
    )
    planned = suites.plan(limited)
    assert [runs.budget for runs in planned] == [60.0, 2.5]
    assert planned[1].overrides == (
        "env=tmaze", "env.length=100", "budget.cpu_s=2.5", *suites.NO_OTHER_LIMIT, "encoder=gru",
    )  # fmt: skip
    names = {runs.run_name(seed) for runs in planned for seed in (0, 1)}
    other = suites.plan(settings("suite=dev", "cpu_s=[60]", "tasks=[tmaze_100]"))
    assert len(names | {other[0].run_name(0)}) == 5
    # Without a limit, runs keep the name that `train` gives them.
    assert suites.plan(settings("suite=popgym"))[0].run_name(0) is None


def test_the_same_failure_of_every_task_is_one_line(capsys, monkeypatch):
    def fail(*_):
        raise UsageError("encoder.size: must be even, got 3")

    monkeypatch.setattr(suites, "train_or_resume", fail)
    cfg = settings("suite=popgym")
    reported = set()
    for runs in suites.plan(cfg)[:3]:
        assert suites.train_planned(cfg, runs, 0, reported) is None
    err = capsys.readouterr().err
    assert err.count("\n") == err.count("encoder.size") == 1
    assert "env.id=RepeatFirstEasy" in err
