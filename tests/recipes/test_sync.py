"""What MLflow did not take while runs went on is sent by a command, once."""

import json
import re
import runpy
import sqlite3
import sys
from pathlib import Path

import pytest
from yamame.files.run_directory import RunDirectory
from yamame.tracking import MLflowTracker

RECIPE = Path(__file__).parents[2] / "recipes" / "sync.py"


@pytest.fixture
def sync(monkeypatch, capsys):
    """Runs the recipe in this process: exit status, output, error output."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", [str(RECIPE), *arguments])
        status = 0
        try:
            runpy.run_path(str(RECIPE), run_name="__main__")
        except SystemExit as exit_:
            status = exit_.code
        output = capsys.readouterr()
        return status, output.out, output.err

    return call


@pytest.fixture
def left(tmp_path, tracking_uri, monkeypatch, capsys):
    """Two runs that ended while their database was locked; gives their ids."""
    monkeypatch.chdir(tmp_path)
    ids = []
    for name in ("a", "b"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / ".lock").touch()
        tracker = MLflowTracker(
            tracking_uri=tracking_uri, system_metrics=False, flush_s=1e6, wait_s=0.2
        )
        with tracker.start(tmp_path / "runs" / name, name=name, params={"seed": 1}):
            ids.append(tracker.run.run_id)
            for step in range(3):
                tracker.log({"loss": 1.0}, step=step)
            database = sqlite3.connect(
                tracking_uri.removeprefix("sqlite:///"), isolation_level=None
            )
            database.execute("begin exclusive")
        database.execute("rollback")
        database.close()
        (told,) = capsys.readouterr().err.splitlines()
        # The run's status may have been stored before the lock.
        assert re.fullmatch(
            r"MLflow does not answer, [34] points wait; send them with: yamame sync "
            rf"run=runs/{name}",
            told,
        )
    return tracker.run.client, ids


def test_empty_variables_of_mlflow_are_none_and_the_run_can_be_resumed(
    play, sync, tmp_path, monkeypatch, without_advice
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "")
    arguments = ["debug=tiny", "encoder=gru", "run.name=a", "logger.models=false"]
    assert play("train", tmp_path, *arguments)[0] == 0
    record = json.loads((tmp_path / "runs/a/mlflow.json").read_text())
    assert (record["tracking_uri"], record["experiment"]) == (
        f"sqlite:///{tmp_path}/mlflow.db",
        "yamame",
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    status, _, errors = play("train", tmp_path, *arguments, "resume=true")
    assert (status, without_advice(errors)) == (0, [])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.chdir(tmp_path)
    assert sync("run=runs/a")[:2] == (0, "runs/a: 0 points sent\n")


def test_several_runs_are_sent_and_the_second_time_nothing_is(left, sync):
    assert sync("run=[runs/a,runs/b]") == (0, "runs/a: 4 points sent\nruns/b: 4 points sent\n", "")
    assert sync("run=runs/a") == (0, "runs/a: 0 points sent\n", "")
    client, ids = left
    for run_id in ids:
        assert client.get_run(run_id).info.status == "FINISHED"
        assert [point.step for point in client.get_metric_history(run_id, "loss")] == [0, 1, 2]


@pytest.mark.usefixtures("left")
def test_what_cannot_be_sent_is_told_in_one_line_after_the_others(sync, tmp_path):
    record = json.loads((tmp_path / "runs/a/mlflow.json").read_text())
    (tmp_path / "runs/a/mlflow.json").write_text(
        json.dumps(record | {"tracking_uri": f"sqlite:///{tmp_path}/gone.db"})
    )
    status, out, err = sync("run=[runs/a,runs/b,runs/c]")
    assert (status, out) == (2, "runs/b: 4 points sent\n")
    (line,) = err.splitlines()
    assert line.startswith("sync: ")
    for part in (
        "runs/a: 0 points are sent, 4 wait: ",
        "found none at",
        "runs/c does not exist",
    ):
        assert part in line
    assert not (tmp_path / "gone.db").exists()
    # A run that is being written to is left alone.
    held = RunDirectory.open(tmp_path / "runs", "a", resume=True)
    status, out, err = sync("run=runs/a")
    held.close()
    assert (status, out) == (2, "")
    assert "runs/a is being written by process" in err
