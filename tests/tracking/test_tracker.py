"""MLflow tracking: one run per run directory, no point twice, the truth about the end."""

import json
import logging
import os
import sqlite3
from pathlib import Path

import pytest
import torch
from yamame.checks import UsageError
from yamame.system.signals import Terminated
from yamame.tracking import mlflow_store as store
from yamame.tracking import read_metrics
from yamame.tracking import tracker as tracking
from yamame.tracking.tracker import PARENT_VARIABLE, MLflowTracker, NullTracker


@pytest.fixture
def history(settle):
    """The points that a tracker's store has of a metric, once it has all."""

    def history(tracker, key):
        settle(tracker)
        return stored(tracker, key)

    return history


def stored(tracker, key):
    points = tracker.run.client.get_metric_history(tracker.run.run_id, key)
    return [(point.step, point.value) for point in points]


@pytest.fixture
def info(settle):
    """A tracker's run as its store has it, once it has all."""

    def info(tracker):
        settle(tracker)
        return tracker.run.client.get_run(tracker.run.run_id)

    return info


def test_a_continued_run_goes_on_in_the_same_mlflow_run_and_repeats_no_point(
    start, tmp_path, monkeypatch, history, info
):
    first = start()
    for step in (0, 100, 200):
        first.log({"loss": step / 100}, step=step)
    first.log({"success": 0.5}, step=100)
    # The process dies; the run goes back to a checkpoint of step 100 in another directory and
    # configuration.
    monkeypatch.chdir(tmp_path)
    second = MLflowTracker(tracking_uri="sqlite:///elsewhere.db", system_metrics=False, flush_s=0.0)
    second.start(tmp_path, name="another name", params={"seed": 9})
    assert second.run.run_id == first.run.run_id
    for step in (100, 200, 300):
        second.log({"loss": step / 100, "success": 0.7}, step=step)
    assert history(second, "loss") == [(0, 0.0), (100, 1.0), (200, 2.0), (300, 3.0)]
    assert history(second, "success") == [(100, 0.5), (200, 0.7), (300, 0.7)]
    assert info(second).data.params == {"seed": "1", "agent.gammas": "[0.9, 0.99]"}
    assert not (tmp_path / "elsewhere.db").exists()


def test_a_continued_run_tells_how_it_was_last_started(tracking_uri, tmp_path, info):
    for tags in (
        {"command": "short", "budget.env_steps": "256", "kept": "a"},
        {"command": "long", "budget.env_steps": "1024"},
    ):
        tracker = MLflowTracker(tracking_uri=tracking_uri, system_metrics=False)
        tracker.start(tmp_path, name="a", params={"budget.env_steps": 256}, tags=tags)
    found = info(tracker).data.tags
    assert (found["command"], found["budget.env_steps"], found["kept"]) == ("long", "1024", "a")


def test_another_run_directory_is_another_run_and_records_every_point(start, tmp_path, history):
    trackers = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        trackers.append(start(tmp_path / name))
        trackers[-1].log({"loss": 1.0}, step=100)
    assert trackers[0].run.run_id != trackers[1].run.run_id
    assert history(trackers[1], "loss") == [(100, 1.0)]


def test_the_same_step_twice_in_one_process_is_recorded_once_per_key(start, history):
    tracker = start()
    tracker.log({"loss": 1.0}, step=5)
    tracker.log({"loss": 2.0, "success": 1.0}, step=5)
    assert history(tracker, "loss") == [(5, 1.0)]
    assert history(tracker, "success") == [(5, 1.0)]


def test_metrics_are_gathered_and_the_rest_is_sent_at_the_end(start, tmp_path):
    tracker = start(flush_s=1e6)
    for step in range(3):
        tracker.log({"loss": float(step)}, step=step)
    tracker.flush()
    assert stored(tracker, "loss") == []
    with tracker:
        tracker.log({"loss": 3.0}, step=3)
        tracker.log({"loss": 9.0}, step=3)
        assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 5
    assert stored(tracker, "loss") == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]
    assert [record.step for record in read_metrics(tmp_path)] == [0, 1, 2, 3]


def test_the_clock_of_a_metric_is_that_of_its_measurement(start, monkeypatch):
    tracker = start(flush_s=1e6)
    for second in (1000, 2000):
        monkeypatch.setattr(tracking.time, "time", lambda second=second: float(second))
        tracker.log({"loss": 1.0}, step=second)
    with tracker:
        pass
    points = tracker.run.client.get_metric_history(tracker.run.run_id, "loss")
    assert [point.timestamp for point in points] == [1_000_000, 2_000_000]


def test_a_table_replaces_the_one_of_the_same_name(start, info, tmp_path):
    tracker = start()
    for success in ([0.5, 1.0], [0.75, float("nan")]):
        tracker.log_table("evaluation", {"task": [1, 2], "success": success})
    run_id = info(tracker).info.run_id
    client = tracker.run.client
    kept = Path(client.download_artifacts(run_id, "evaluation.json", str(tmp_path)))
    table = {"columns": ["task", "success"], "data": [[1, 0.75], [2, None]]}
    assert json.loads(kept.read_text()) == table
    # MLflow's pages find tables by this tag.
    tables = json.loads(info(tracker).data.tags["mlflow.loggedArtifacts"])
    assert tables == [{"path": "evaluation.json", "type": "table"}]
    with pytest.raises(ValueError, match="zip"):
        tracker.log_table("evaluation", {"task": [1], "success": []})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "FINISHED"),
        (ValueError("x"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (Terminated(), "KILLED"),
    ],
)
def test_the_status_is_the_truth(start, error, status, info):
    tracker = start()
    assert info(tracker).info.status == "RUNNING"

    def work():
        with tracker:
            if error is not None:
                raise error

    if error is None:
        work()
    else:
        with pytest.raises(type(error)):
            work()
    assert info(tracker).info.status == status


def test_a_continued_run_is_running_again(start, info):
    with start():
        pass
    again = start()
    assert info(again).info.status == "RUNNING"


def test_long_and_odd_names_and_values_are_made_to_fit(start, info):
    tracker = start()
    tracker.log({"success@64 steps": 1.0}, step=1)
    tracker.run.log_params({"k" * 300: "v" * 7000, **{f"p{index}": index for index in range(150)}})
    data = info(tracker).data
    assert data.metrics == {"success_64 steps": 1.0}
    value = data.params["k" * 250]
    assert len(value) == 6000
    assert value.endswith("v...")
    assert data.params["p149"] == "149"


def test_files_folders_and_tables_are_kept_beside_the_database(start, tmp_path, tracking_uri, info):
    tracker = start()
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "curve.png").write_bytes(b"png")
    tracker.log_artifact(tmp_path / "config.yaml")
    tracker.log_artifact(tmp_path / "figures", folder="figures")
    tracker.log_table("evaluation", {"task": [1, 2], "success": [0.5, 1.0]})
    root = Path(tracking_uri.removeprefix("sqlite:///")).parent / "mlruns"
    kept = Path(info(tracker).info.artifact_uri.removeprefix("file://"))
    assert root in kept.parents
    assert (kept / "config.yaml").read_text() == "seed: 1\n"
    assert (kept / "figures" / "curve.png").read_bytes() == b"png"
    assert json.loads((kept / "evaluation.json").read_text())["data"] == [[1, 0.5], [2, 1.0]]


def test_revision_versions_and_the_parent_become_tags(start, monkeypatch, info):
    monkeypatch.setenv(PARENT_VARIABLE, "0123")
    tags = info(start()).data.tags
    assert tags["mlflow.parentRunId"] == "0123"
    assert tags["mlflow.runName"] == "a run"
    assert {"version.torch", "version.torchrl", "version.python"} <= tags.keys()


def test_the_kind_of_machine_becomes_tags(start, info):
    tags = info(start()).data.tags
    assert int(tags["machine.cores"]) == len(os.sched_getaffinity(0))
    assert int(tags["machine.threads"]) == torch.get_num_threads()
    assert tags["machine.processor"]


def test_a_continued_run_tells_which_versions_run_now(start, monkeypatch, info):
    monkeypatch.setattr(tracking, "git_revision", lambda: "0123")
    with start():
        pass
    monkeypatch.setattr(tracking, "git_revision", lambda: None)
    monkeypatch.setattr(tracking, "versions", lambda: {"torch": "9.0"})
    tags = info(start()).data.tags
    assert (tags["version.torch"], tags["mlflow.source.git.commit"]) == ("9.0", "unknown")


def test_system_metrics_follow_the_environment_step_and_can_be_left_out(
    start, tmp_path, history, info
):
    on = start(system_metrics=True)
    on.log({"loss": 1.0}, step=50)
    assert [step for step, _ in history(on, "system/process_memory_mebibytes")] == [50]
    again = start(system_metrics=True)
    for step in (50, 60):
        again.log({"loss": 1.0}, step=step)
    assert [step for step, _ in history(again, "system/process_memory_mebibytes")] == [50, 60]
    (tmp_path / "off").mkdir()
    off = start(tmp_path / "off")
    off.log({"loss": 1.0}, step=50)
    assert set(info(off).data.metrics) == {"loss"}


def test_a_recorded_run_that_is_gone_is_named(start, tmp_path):
    tracker = start()
    tracker.run.client.delete_run(tracker.run.run_id)
    with pytest.raises(UsageError, match=f"run {tracker.run.run_id} must be in "):
        start()


def test_mlflow_stays_silent(start, caplog, capfd):
    with caplog.at_level(logging.INFO), start() as tracker:
        tracker.log({"loss": 1.0}, step=1)
    assert [record for record in caplog.records if record.levelno < logging.WARNING] == []
    assert capfd.readouterr() == ("", "")


def test_logging_before_the_start_is_an_error():
    with pytest.raises(RuntimeError, match="start must be called first"):
        MLflowTracker().log({"loss": 1.0}, step=1)


def test_the_null_tracker_takes_the_same_calls_and_writes_nothing(tmp_path):
    with NullTracker().start(tmp_path, name="a", params={}) as tracker:
        tracker.log({"loss": 1.0}, step=1)
        tracker.log_artifact(tmp_path)
        tracker.log_table("t", {"a": [1]})
    assert list(tmp_path.iterdir()) == []


def test_relative_databases_become_absolute_and_other_stores_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert store.absolute_uri("sqlite:///mlflow.db") == f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert store.absolute_uri("http://host:5000") == "http://host:5000"


TOGETHER = """
import os
from pathlib import Path
import mlflow.tracking  # once: the others are copies of this process
from yamame.runs import MLflowTracker

children = []
for name in "abc":
    children.append(os.fork())
    if children[-1] == 0:
        tracker = MLflowTracker(tracking_uri="sqlite:///together.db", system_metrics=False)
        Path(name).mkdir()
        with tracker.start(Path(name), name=name, params={}):
            tracker.log({"a": 1.0}, step=1)
        os._exit(0)
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
"""


def test_several_processes_may_set_up_one_database_at_once(run_forked, tmp_path):
    done = run_forked(TOGETHER, cwd=tmp_path)
    assert (done.returncode, done.stderr[-500:]) == (0, "")
    with sqlite3.connect(tmp_path / "together.db") as database:
        assert database.execute("select name, status from runs order by name").fetchall() == [
            (name, "FINISHED") for name in "abc"
        ]
        assert (
            len(database.execute("select * from experiments where name = 'yamame'").fetchall()) == 1
        )
