"""The report recipe as people use it: from the command line, over a database with runs."""

import runpy
import shutil
import sys
from pathlib import Path

import pytest
import torch
from yamame.tracking.tracker import MLflowTracker

RECIPE = Path(__file__).parents[2] / "recipes" / "report.py"
EXPECTED = {"expected.metric": "success_mean", "expected.interval": [0.8, 1.0]}


@pytest.fixture(scope="module")
def database(empty_store, tmp_path_factory):
    """A folder with ``mlflow.db``: two seeds that reach 0.7 and 1.0, a memoryless one, a failed
    one.
    """
    folder = tmp_path_factory.mktemp("database")
    shutil.copy(empty_store, folder)
    params = {
        "env._target_": "yamame_envs.MazeRunner",
        "encoder._target_": "yamame.trajectory.GRUEncoder",
    }
    memoryless = {"encoder._target_": "yamame.trajectory.MemorylessEncoder"}
    for name, value, changed in [
        ("gru-0", 0.7, {"seed": 0}),
        ("gru-1", 1.0, {"seed": 1}),
        ("memoryless-0", 0.1, {"seed": 0, **memoryless}),
        ("broken", 0.0, {"seed": 2}),
    ]:
        run = folder / name
        run.mkdir()
        tracker = MLflowTracker(
            tracking_uri=f"sqlite:///{folder}/mlflow.db", system_metrics=False, flush_s=0.0
        )
        with tracker.start(run, name=name, params=params | EXPECTED | changed):
            for step in (1000, 2000):
                tracker.log(
                    {"eval/success_mean": value * step / 2000, "cost/cpu_s": step / 100}, step=step
                )
        if name == "broken":
            tracker.run.set_status("FAILED")
    return folder


@pytest.fixture
def report(monkeypatch, tmp_path, capsys, database):
    """Runs the recipe in this process in an empty directory: exit status, output, error output."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, uri=f"sqlite:///{database}/mlflow.db"):
        monkeypatch.setattr(sys, "argv", [str(RECIPE), f"store.tracking_uri={uri}", *arguments])
        status = 0
        try:
            runpy.run_path(str(RECIPE), run_name="__main__")
        except SystemExit as exit_:
            status = exit_.code
        output = capsys.readouterr()
        return status, output.out, output.err

    return call


def test_the_report_tells_the_verdict_the_runs_left_out_and_the_path_last(report, tmp_path):
    status, out, err = report("resampling.num_resamples=50", "strict=true")
    assert (status, err) == (0, "")
    first, second, last = out.splitlines()
    assert (
        first
        == "MazeRunner: reached (success_mean 0.85 [0, 1] Student, 2 seeds; expected 0.8 to 1)"
    )
    assert second.startswith("not counted: broken")
    assert last == "report/index.html"
    page = (tmp_path / last).read_text()
    assert "0.850" in page
    assert "encoder: gru → memoryless" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report"]


def test_tables_are_filled_from_evidence_which_needs_no_store_later(report, database, tmp_path):
    uri = f"sqlite:///{database}/mlflow.db"
    tracker = MLflowTracker(tracking_uri=uri, experiment="marked", system_metrics=False)
    for seed, value in enumerate((0.7, 1.0)):
        folder = database / f"marked-{seed}"
        folder.mkdir()
        tags = {"command": f"python recipes/train.py experiment=cpu_mazerunner seed={seed}"}
        with tracker.start(folder, name=folder.name, params={"seed": seed}, tags=tags):
            tracker.log({"eval/success_mean": value}, step=1)
    page, folder = tmp_path / "page=1.md", tmp_path / "evidence"
    head = "| task | `python recipes/train.py ...` | at the end |\n|---|---|---|\n"
    rows = [
        "| two goals | `experiment=cpu_mazerunner` | 0.99 |",
        "| three | `experiment=other` | 0.99 |",
    ]
    before = f"<!-- runs: -->\n{head}" + "\n".join(rows) + "\n<!-- end of runs -->\n"
    page.write_text(before)
    options = ("resampling.num_resamples=50", f"evidence={folder}", f"tables={page}")
    status, out, err = report(*options, "store.experiment=marked", "strict=true")
    assert (status, err) == (1, "")
    assert out.splitlines()[-2] == f"{page}: to be measured: yamame train experiment=other"
    filled = page.read_text()
    assert "| two goals | `experiment=cpu_mazerunner` | 0.700, 1.000 |" in filled
    assert "| three | `experiment=other` | to be measured |" in filled
    machine = (folder / "runs.csv").read_text().splitlines()[1].split(",")
    assert f"torch {torch.__version__}" in machine[-1]
    page.write_text(before)
    status, out, err = report(*options, uri="null")
    assert (status, err, out.splitlines()[-1]) == (0, "", str(folder))
    assert page.read_text() == filled


def test_pages_without_tables_are_told_apart_before_anything_is_written(report, tmp_path):
    begin, end = "<!-- runs: seeds=0 -->", "<!-- end of runs -->"
    pages = {
        "plain": "no table",
        "open": f"{begin}\n",
        "closed": f"{end}\n",
        "crossed": f"{end}\n{begin}\n",
    }
    for name, text in pages.items():
        (tmp_path / f"{name}.md").write_text(text)
    (tmp_path / "bytes.md").write_bytes(b"\xff\xfe")
    (tmp_path / "table.md").write_text(f"{begin}\n\n| task |\n|---|\n\n{end}\n")
    before, folder = sorted(tmp_path.rglob("*")), tmp_path / "evidence"
    messages = set()
    for name in (*pages, "bytes", "table", "missing", "."):
        page = tmp_path / (f"{name}.md" if name != "." else name)
        status, _, error = report(f"evidence={folder}", f"tables=[{page}]")
        assert status == 2
        assert f"{page}" in error
        messages.add(error.replace(f"{page}", "").replace(str(tmp_path), ""))
        assert sorted(tmp_path.rglob("*")) == before
    assert len(messages) == 7  # a folder is as good as a missing page


def test_strict_ends_with_status_one_where_less_came_out_than_expected(report):
    arguments = ("runs=[memoryless-*]", "resampling.num_resamples=50")
    status, out, _ = report(*arguments, "strict=true")
    assert status == 1
    assert (
        out.splitlines()[0]
        == "MazeRunner: below (success_mean 0.1, 1 seed, no interval; expected 0.8 to 1)"
    )
    assert report(*arguments)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs=[nobody]"], "runs: must match a run by name or id, got 'nobody'"),
        (["runs=[]"], "runs: must name at least one run, or be null for all, got []"),
        (["runs=grown-0"], "runs: must match a run by name or id, got 'grown-0'"),
        (["metric=succes_mean"], "metric: must be one of success_mean, got 'succes_mean'"),
        (["store.experiment=other"], "store.experiment: must be one of"),
        (["base=nobody"], "base: must match the name of a run that counts, got 'nobody'"),
        (
            ["thresholds=[0.5,-1]"],
            "thresholds: must be a list of at least one, all different, each above 0, got [0.5, -1",
        ),
        (
            ["resampling.confidence=2"],
            "resampling.confidence: must be a number above 0 and below 1, got 2",
        ),
        (["bogus=1"], "bogus"),
        (["tables=[page.md]"], "tables: must be null without evidence, got ['page.md']"),
        (["evidence=none", "store.tracking_uri=null"], "evidence: must be a folder with runs.csv"),
        (
            ["store.tracking_uri=null"],
            "store.tracking_uri: must be a store where there is no evidence",
        ),
    ],
)
def test_a_mistake_ends_with_one_line_and_nothing_written(report, tmp_path, arguments, message):
    status, _, err = report(*arguments)
    assert status == 2
    assert len(err.strip().splitlines()) == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_is_not_there_is_named_and_not_made(report, tmp_path):
    status, _, err = report(uri="sqlite:///none.db")
    assert (status, err) == (
        2,
        "report: store.tracking_uri: must be a database that exists, got sqlite:///none.db\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_strict_ends_with_status_one_where_every_run_of_an_experiment_failed(report):
    status, out, _ = report("runs=[broken]", "strict=true")
    assert status == 1
    assert (
        out.splitlines()[0] == "MazeRunner: unknown (success_mean not measured; expected 0.8 to 1)"
    )


@pytest.mark.parametrize("chosen", ["runs=gru-seed=1", "runs=[gru-seed=1]"])
def test_names_of_runs_may_have_signs_of_hydra_in_them(report, database, tmp_path, chosen):
    folder = database / "odd"
    if not folder.exists():
        folder.mkdir()
        tracker = MLflowTracker(
            tracking_uri=f"sqlite:///{database}/mlflow.db", experiment="odd", system_metrics=False
        )
        with tracker.start(folder, name="gru-seed=1", params={"seed": 1}):
            tracker.log({"eval/success_mean": 0.5}, step=1)
    status, out, err = report(chosen, "base=gru-seed=1", "store.experiment=odd", "directory=a=b")
    assert (status, err, out) == (0, "", "a=b/index.html\n")
