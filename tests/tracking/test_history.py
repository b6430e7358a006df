"""Runs as MLflow holds them, read back."""

import math
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import yamame.tracking.history
from yamame.checks import UsageError
from yamame.tracking.history import RunReader
from yamame.tracking.mlflow_store import MLflowRun
from yamame.tracking.tracker import MLflowTracker


@pytest.fixture(scope="module")
def filled(tracking_uri, tmp_path_factory):
    """An experiment with a good run, a failed one and the parent of a sweep; gives the good run's
    id.
    """
    folder = tmp_path_factory.mktemp("runs")
    options = {
        "tracking_uri": tracking_uri,
        "experiment": "history",
        "system_metrics": False,
        "flush_s": 0.0,
    }
    with MLflowTracker(**options).start(
        folder, name="good", params={"seed": 3, "lr": 0.1}
    ) as tracker:
        for step, value in [(10, 0.5), (20, math.nan), (30, math.inf), (40, 0.75)]:
            tracker.log({"eval/success_mean": value, "train/loss": 1.0, "other": 1.0}, step=step)
        (folder / "episodes.gif").write_bytes(b"GIF")
        tracker.log_artifact(folder / "episodes.gif")
        run_id, client = tracker.run.run_id, tracker.run.client
    client.log_metric(run_id, "eval/success_mean", 0.25, step=10, timestamp=2**41)
    bad = folder / "bad"
    bad.mkdir()
    with (
        pytest.raises(RuntimeError),
        MLflowTracker(**options).start(bad, name="bad", params={"seed": 4}),
    ):
        raise RuntimeError
    client.create_run(
        client.get_experiment_by_name("history").experiment_id, run_name="sweep a=1,2"
    )
    return run_id


def test_a_run_comes_back_with_its_parameters_and_every_step_once(filled, tracking_uri):
    good, bad = RunReader.open(tracking_uri, "history").read()
    assert (good.name, good.seed, good.status, good.params["lr"]) == (
        "good",
        "3",
        "FINISHED",
        "0.1",
    )
    assert (bad.name, bad.status) == ("bad", "FAILED")
    series = good.metrics["eval/success_mean"]
    assert series.steps.tolist() == [10, 20, 30, 40]
    assert np.array_equal(series.values, [0.25, np.nan, np.nan, 0.75], equal_nan=True)
    assert set(good.metrics) == {"eval/success_mean", "train/loss"}


@pytest.mark.parametrize("wanted", ["good", "g*d", "id"])
def test_runs_are_chosen_by_name_pattern_or_id(filled, tracking_uri, wanted):
    found = RunReader.open(tracking_uri, "history").read([filled if wanted == "id" else wanted])
    assert [run.run_id for run in found] == [filled]


def test_an_entry_that_matches_nothing_is_named(filled, tracking_uri):
    with pytest.raises(UsageError, match="runs: must match a run by name or id, got 'nobody'"):
        RunReader.open(tracking_uri, "history").read(["good", "nobody"])


def test_one_name_needs_no_list_and_an_empty_list_is_refused(filled, tracking_uri):
    reader = RunReader.open(tracking_uri, "history")
    assert [run.run_id for run in reader.read("good")] == [filled]
    with pytest.raises(
        UsageError, match=r"runs: must name at least one run, or be null for all, got \[\]"
    ):
        reader.read([])


def test_an_artifact_is_read_and_what_is_gone_is_nothing(filled, tracking_uri):
    reader = RunReader.open(tracking_uri, "history")
    assert reader.artifact(filled, "episodes.gif") == b"GIF"
    assert reader.artifact(filled, "nothing.gif") is None
    assert reader.artifact("0" * 32, "episodes.gif") is None


def test_what_is_not_there_is_named_and_no_database_is_made(filled, tracking_uri, tmp_path):
    with pytest.raises(
        UsageError,
        match=r"store\.tracking_uri: must be a database that exists, got sqlite:///.*none\.db",
    ):
        RunReader.open(f"sqlite:///{tmp_path}/none.db", "history")
    assert not Path(tmp_path / "none.db").exists()
    with pytest.raises(
        UsageError, match=r"store\.experiment: must be one of .*history.*, got 'other'"
    ):
        RunReader.open(tracking_uri, "other")


def test_a_run_that_cannot_be_read_leaves_the_others(filled, tracking_uri, monkeypatch):
    read = yamame.tracking.history._points_in_database

    def broken(client, run_id):
        if run_id != filled:
            raise OSError("disk\nfailed")
        return read(client, run_id)

    monkeypatch.setattr(yamame.tracking.history, "_points_in_database", broken)
    good, bad = RunReader.open(tracking_uri, "history").read()
    assert (good.problem, set(good.metrics)) == ("", {"eval/success_mean", "train/loss"})
    assert (bad.problem, bad.metrics, bad.name) == ("disk failed", {}, "bad")


def test_the_client_gives_the_same_metrics_as_the_query(filled, tracking_uri, monkeypatch):
    reader = RunReader.open(tracking_uri, "history")
    queried = reader.read("good")[0].metrics
    monkeypatch.setattr(yamame.tracking.history, "_points_in_database", lambda client, run_id: None)
    requested = reader.read("good")[0].metrics
    assert queried.keys() == requested.keys()
    for name, series in queried.items():
        assert np.array_equal(series.steps, requested[name].steps)
        assert np.array_equal(series.values, requested[name].values, equal_nan=True)


def test_an_experiment_without_runs_is_named(filled, tracking_uri):
    reader = RunReader.open(tracking_uri, "history")
    empty = reader.client.create_experiment("empty")
    with pytest.raises(UsageError, match="runs: the experiment has no run yet"):
        RunReader(reader.client, empty).read()


def test_control_characters_of_a_stranger_are_escaped(empty_store, tmp_path):
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run = MLflowRun.create(uri, "yamame", name="a", tags={"command": "x\x1b[2J"})
    run.log_params({"seed": "1\x9b31m"})
    run.log_metrics([("eval/x", 1.0, 1, 1)])
    database = sqlite3.connect(tmp_path / "mlflow.db")
    database.execute("update runs set name = ?", ("a\x1b]0;b\x07\u202e",))
    for table in ("metrics", "latest_metrics"):
        database.execute(f"update {table} set key = ?", ("eval/\x1b[31m",))
    database.commit()
    database.close()
    (history,) = RunReader.open(uri, "yamame").read()
    assert history.name == r"a\x1b]0;b\x07\u202e"
    assert history.params == {"seed": r"1\x9b31m"}
    assert history.tags["command"] == r"x\x1b[2J"
    assert list(history.metrics) == [r"eval/\x1b[31m"]
