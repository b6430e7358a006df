"""Evidence keeps what tables need: the same numbers come out of its files as out of the runs
themselves.
"""

import csv
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from yamame.checks import UsageError
from yamame.report import Resampling, make_sections, read_evidence, write_evidence, write_tables
from yamame.report.tables import COLUMNS
from yamame.tracking.history import MetricHistory

RESAMPLING = Resampling(num_resamples=50)
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MACHINE = {
    "machine.processor": "EPYC 1",
    "machine.cores": "2",
    "machine.threads": "1",
    "version.cpu": "AVX512 with bfloat16",
    "version.torch": "2.13.0",
}


@pytest.fixture
def trained(make_run):
    """Makes a run of an experiment that expects a return of at least two."""

    def make(
        seed, value, arguments="", *, axis="env_steps", experiment="experiment=dark", **options
    ):
        curve = {100: value / 3, 200: value}
        metrics = {
            "eval/return_mean": curve,
            "eval/success_mean": {k: v / 9 for k, v in curve.items()},
        }
        for end, by in (("low", -0.1), ("high", 0.1)):
            metrics[f"eval/return_{end}"] = {k: v + by for k, v in curve.items()}
        metrics |= {
            "eval/num_episodes": {100: 256, 200: 256},
            "cost/cpu_s": {100: 10 + seed, 200: 20.25 + seed},
        }
        metrics |= {
            "cost/wall_s": {200: 44.0},
            "cost/updates": {100: 1, 200: 2},
            "cost/env_steps": {100: 7, 200: 9},
        }
        metrics |= {f"eval/return_mean_trial_{i}": {200: value / 2 + i} for i in (0, 1)}
        tags = {
            "command": f"python recipes/train.py {experiment} {arguments} seed={seed} "
            f"run.name=a{seed}"
        }
        tags |= {
            "mlflow.source.git.commit": COMMIT,
            "axis": axis,
            "evaluated_on": "new rooms",
        } | MACHINE
        settings = {
            "budget__env_steps": 200,
            "schedule__autocast": "auto",
            "evaluation__env__split": "test",
        }
        expected = {"expected__metric": "return_mean", "expected__interval": "[2.0, None]"}
        return make_run(seed, metrics, tags=tags, **(settings | expected | options))

    return make


@pytest.fixture
def runs(trained):
    full = [trained(seed, value) for seed, value in enumerate((2.4, 2.7, 1.5))]
    no_memory = [
        trained(seed, value, "+ablation=no_memory agent.gammas=[0.9,0.99]", lr=2)
        for seed, value in enumerate((1.1, 0.0, 3 / 7))
    ]
    return [*full, *no_memory]


def page_of(tmp_path):
    """A page that has every column, for all tasks of `runs`."""
    path = tmp_path / "page.md"
    rows = [
        f"| {name} | `{command}` | 2.2 {'| ' * len(COLUMNS)}| 2.0 ± 0.1 |"
        for name, command in (
            ("full", "experiment=dark"),
            ("less", "experiment=dark agent.gammas=[0.9,0.99] +ablation=no_memory"),
        )
    ]
    head = f"| task | `python recipes/train.py ...` | mark | {' | '.join(COLUMNS)} | theirs |"
    marker = "<!-- runs: seeds=0,1,2; typed=theirs; against=theirs -->"
    rule = "|---" * (4 + len(COLUMNS)) + "|"
    path.write_text("\n".join([marker, "", head, rule, *rows, "", "<!-- end of runs -->", ""]))
    return path


def filled(tmp_path, runs):
    page = page_of(tmp_path)
    write_tables([page], make_sections(runs)[0], RESAMPLING)
    return page.read_text()


def rows_of(folder, name="runs.csv"):
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def keep(folder, runs):
    write_evidence(folder, make_sections(runs)[0])
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_tables_are_the_same_from_evidence_as_from_the_runs(tmp_path, runs):
    keep(tmp_path / "kept", runs)
    page = filled(tmp_path, runs)
    assert filled(tmp_path, read_evidence(tmp_path / "kept")) == page
    assert "2.400, 2.700, 1.500" in page
    assert "never" in page
    assert "| 1.100, 2.100 |" in page  # the mean over seeds of two attempts
    changed = (tmp_path / "kept" / "evaluations.csv").read_text().replace("2.7,", "2.6,")
    (tmp_path / "kept" / "evaluations.csv").write_text(changed)
    assert filled(tmp_path, read_evidence(tmp_path / "kept")) != page


def test_a_row_says_how_a_run_was_made_and_where_it_ended(tmp_path, runs):
    keep(tmp_path, runs)
    row = next(
        row
        for row in rows_of(tmp_path)
        if row["seed"] == "1" and "no_memory" not in row["overrides"]
    )
    assert (row["recipe"], row["overrides"], row["task"]) == (
        "train",
        "experiment=dark",
        "dark (Maze)",
    )
    assert (row["metric"], row["value"], row["low"], row["high"]) == (
        "return_mean",
        "2.7",
        "2.6",
        "2.8",
    )
    assert [
        row[key] for key in ("episodes", "evaluated_on", "env_steps", "updates", "cpu_s", "wall_s")
    ] == [*("256", "new rooms", "200", "2", "21.25", "44")]
    # From 0.9 to 2.7 within 100 steps and 10.25 s.
    assert float(row["mark"]) == 2.0
    assert float(row["mark_env_steps"]) == pytest.approx(100 + 100 * 1.1 / 1.8)
    assert float(row["mark_cpu_s"]) == pytest.approx(11 + 10.25 * 1.1 / 1.8)
    assert (row["revision"], row["date"]) == (COMMIT, "2023-11-14T22:14:20Z")
    assert (row["processor"], row["cores"], row["device"], row["precision"]) == (
        "EPYC 1",
        "2",
        "cpu",
        "bfloat16",
    )
    assert row["versions"] == "torch 2.13.0"
    other = next(row for row in rows_of(tmp_path) if "no_memory" in row["overrides"])
    assert other["overrides"] == "experiment=dark +ablation=no_memory agent.gammas=[0.9,0.99]"


def test_changed_experiments_are_judged_by_the_metric_that_they_declare(
    tmp_path, trained, make_run
):
    """Nothing is expected of an ablation, but it is measured as the experiment is."""
    keep(tmp_path, [trained(0, 1.1, "+ablation=no_memory", lr=2)])
    assert rows_of(tmp_path)[0]["metric"] == "return_mean"
    metrics = {"eval/success_mean": {1: 0.5}, "eval/return_mean": {1: 2.0}}
    keep(tmp_path / "other", [make_run(0, metrics)])
    assert rows_of(tmp_path / "other")[0]["metric"] == "success_mean"


def test_runs_are_added_in_any_order_and_none_is_ever_deleted(tmp_path, runs):
    whole = keep(tmp_path / "whole", runs)
    for index, order in enumerate(itertools.permutations([runs[:2], runs[2:4], runs[4:]])):
        for part in order:
            kept = keep(tmp_path / str(index), part)
        assert kept == whole
    assert keep(tmp_path / "whole", runs[:1]) == whole
    assert len(rows_of(tmp_path / "whole")) == len(runs)


def test_a_run_that_went_on_replaces_its_rows(tmp_path, runs):
    keep(tmp_path, runs)
    first = runs[0]
    longer = MetricHistory(np.array([100.0, 200.0, 300.0]), np.array([0.8, 2.4, 2.9]))
    keep(tmp_path, [replace(first, metrics=first.metrics | {"eval/return_mean": longer})])
    own = [row for row in rows_of(tmp_path) if row["run"] == first.run_id]
    assert [row["value"] for row in own] == ["2.9"]
    evaluations = [
        row for row in rows_of(tmp_path, "evaluations.csv") if row["run"] == first.run_id
    ]
    assert [row["env_steps"] for row in evaluations] == ["100", "200", "300"]
    assert len(rows_of(tmp_path)) == len(runs)


def test_runs_of_one_command_with_other_settings_are_not_mixed(tmp_path, trained):
    """A preset may change: its earlier seeds are no seeds of the present one."""
    keep(tmp_path, [trained(seed, 1.25) for seed in (0, 1, 2)] + [trained(0, 2.0, lr=2)])
    page = page_of(tmp_path)
    lines = write_tables([page], make_sections(read_evidence(tmp_path))[0], RESAMPLING)
    assert "seed=1,2" in lines[0]
    assert "| 2.000 |" in page.read_text()
    assert "1.250" not in page.read_text()


def test_runs_that_count_updates_keep_their_axis(tmp_path, trained):
    keep(tmp_path, [trained(0, 2.4, axis="updates")])
    (run,) = read_evidence(tmp_path)
    series = run.metrics["eval/return_mean"]
    assert run.axis == "updates"
    assert (series.steps.tolist(), series.values.tolist()) == ([100, 200], [0.8, 2.4])
    assert rows_of(tmp_path)[0]["env_steps"] == "9"


def test_what_was_never_logged_is_an_empty_cell(tmp_path, make_run):
    keep(tmp_path, [make_run(0, {"eval/success_mean": {1: 0.5, 2: math.nan}})])
    (row,) = rows_of(tmp_path)
    assert (row["value"], row["cpu_s"], row["mark"], row["overrides"]) == ("", "", "", "")
    (run,) = read_evidence(tmp_path)
    assert run.metrics["eval/success_mean"].values.tolist() == [
        0.5
    ]  # the last one that is a number


def test_no_text_is_a_formula_and_comes_back_as_it_was(tmp_path, trained):
    run = trained(0, 1.0, "+ablation=no_memory", experiment="", name="=1+1")
    keep(tmp_path, [run])
    (row,) = rows_of(tmp_path)
    assert (row["name"], row["overrides"]) == ("'=1+1", "'+ablation=no_memory")
    (again,) = read_evidence(tmp_path)
    assert again.name == "=1+1"
    assert again.tags["command"] == "python recipes/train.py +ablation=no_memory seed=0"


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("runs.csv", ("run,name", "id,name"), "must have the columns run, name"),
        ("runs.csv", (",env_steps,", ",parsecs,"), "must have the columns"),
        ("runs.csv", ("2023-11-14T", "yesterday "), "yesterday"),
        ("evaluations.csv", (",2.4,", ",much,"), "much"),
        ("evaluations.csv", (",2.4,", ",2.4,9,"), "evaluations.csv, line 3, must have"),
    ],
)
def test_files_that_cannot_be_read_are_named_and_nothing_is_written(
    tmp_path, trained, name, change, problem
):
    keep(tmp_path, [trained(0, 2.4)])
    path = tmp_path / name
    path.write_text(path.read_text().replace(*change, 1))
    with pytest.raises(UsageError, match=problem):
        read_evidence(tmp_path)
    if "columns" in problem or "line" in problem:
        before = {file: file.read_bytes() for file in tmp_path.iterdir()}
        with pytest.raises(UsageError, match=problem):
            keep(tmp_path, [trained(1, 2.4)])
        assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_folder_without_evidence_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"must be a folder with runs.csv and evaluations.csv"):
        read_evidence(tmp_path)


def test_a_strangers_folder_is_read_without_links_and_control_characters(tmp_path, trained):
    folder = tmp_path / "evidence"
    keep(folder, [trained(0, 2.4)])
    table = folder / "runs.csv"
    text = table.read_text()
    name = text.splitlines()[1].split(",")[1]
    table.write_text(text.replace(f",{name},", f",{name}\x1b[2J\u202e,", 1))
    names = [run.name for run in read_evidence(folder)]
    assert f"{name}\\x1b[2J\\u202e" in names
    for content in (b"\xff", b"x" * 2**18):
        table.write_bytes(content)
        with pytest.raises(UsageError, match=r"runs\.csv must be"):
            read_evidence(folder)
    table.unlink()
    (tmp_path / "private.csv").write_text(text)
    table.symlink_to(tmp_path / "private.csv")
    with pytest.raises(UsageError, match="a link"):
        read_evidence(folder)
