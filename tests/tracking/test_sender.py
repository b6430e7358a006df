"""MLflow never stops training: what it does not take waits on disk, and comes to it once, later."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from yamame.checks import UsageError
from yamame.tracking import MLflowTracker, send_rest
from yamame.tracking import tracker as tracking
from yamame.tracking.follower import Follower
from yamame.tracking.mlflow_store import MLflowRun, check_store, connect
from yamame.tracking.sender import Sender
from yamame.tracking.thinning import Thinning

DOWN_S = 2.0
"""Seconds for which stores do not answer in the quick tests."""


def tracker_of(uri, **options):
    return MLflowTracker(
        tracking_uri=uri, **{"system_metrics": False, "flush_s": 0.0, "wait_s": 0.3, **options}
    )


def open_directory(path):
    """A directory as a run leaves it, which `send_rest` may claim."""
    path.mkdir(exist_ok=True)
    (path / ".lock").touch()
    return path


# Stores that do not answer.


def test_a_server_that_dies_and_comes_back_has_every_point_once_and_training_never_waits(
    server, tmp_path, settle, capfd
):
    tracker = tracker_of(server.uri, wait_s=30.0).start(tmp_path, name="a", params={"seed": 1})
    (run,) = server.runs.values()
    assert run["params"] == {"seed": "1"}
    longest, step = 0.0, 0
    for up, seconds in ((True, 0.5), (False, DOWN_S), (True, 0.5)):
        if not up:
            server.kill()
        elif step:
            server.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            before = time.monotonic()
            tracker.log({"loss": step / 7, "eval/success_mean": 1.0}, step=step)
            tracker.flush()
            longest = max(longest, time.monotonic() - before)
            step += 1
            time.sleep(0.005)
    settle(tracker, seconds=60.0)
    with tracker:
        pass
    assert longest < 1.0  # a request may take two seconds
    assert sorted(point for point in run["metrics"] if point[0] == "eval/success_mean") == [
        ("eval/success_mean", s, 1.0) for s in range(step)
    ]
    thinning = Thinning()
    assert [s for key, s, _ in run["metrics"] if key == "loss"] == [
        s for s in range(step) if thinning.accept("loss", s)
    ]
    assert run["status"] == "FINISHED"
    out, err = capfd.readouterr()
    first, second = err.splitlines()
    assert first.startswith("MLflow does not answer, ")
    assert (out, second) == ("", "MLflow answers again, all points are sent")


def test_a_request_that_was_done_but_not_answered_stores_no_point_twice(server, tmp_path, settle):
    tracker = tracker_of(server.uri).start(tmp_path, name="a", params={})
    tracker.log({"loss": 1.0}, step=0)
    settle(tracker)
    server.mood = "late"
    for step in range(1, 300):
        tracker.log({"loss": 1.0}, step=step)
        time.sleep(0.002)
    (run,) = server.runs.values()
    assert len(run["metrics"]) > 1
    server.mood = "well"
    settle(tracker)
    assert [step for _, step, _ in run["metrics"]] == list(range(300))


def test_what_is_left_at_the_end_is_told_and_sent_later_once(server, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory = open_directory(tmp_path / "mine")
    (directory / "config.yaml").write_text("seed: 1\n")
    before = time.monotonic()
    with tracker_of(server.uri).start(directory, name="a", params={"seed": 1}) as tracker:
        server.kill()
        for step in range(10):
            tracker.log({"loss": 1.0}, step=step)
        tracker.log_artifact(directory / "config.yaml", folder="files")
        tracker.log_artifact(directory / "gone")
        tracker.log_table("t", {"a": [1]})
        ended = time.time() * 1000
    assert time.monotonic() - before < 10.0
    assert (
        capfd.readouterr()
        .err.splitlines()[-1]
        .endswith(
            f"points wait; send them with: MLFLOW_TRACKING_URI={server.uri} yamame sync run=mine"
        )
    )
    with pytest.raises(
        UsageError, match=f"is recorded in {server.uri}.* set MLFLOW_TRACKING_URI={server.uri}"
    ):
        send_rest(directory)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    (run_id,) = server.runs
    run = server.runs[run_id]
    assert (run["status"], run["metrics"]) == ("RUNNING", [])
    with pytest.raises(
        UsageError, match=r"mine: 0 points are sent, 1\d wait: .*Connection refused"
    ):
        send_rest(directory)
    server.start()
    assert send_rest(directory) >= 14
    assert send_rest(directory) == 0
    assert [step for _, step, _ in run["metrics"]] == list(range(10))
    assert run["status"] == "FINISHED"
    assert json.loads(run["tags"]["mlflow.loggedArtifacts"]) == [
        {"path": "t.json", "type": "table"}
    ]
    assert sorted(path.name for path in server.folder.rglob("*.*")) == ["config.yaml", "t.json"]
    assert abs(run["end_time"] - ended) < 5000


def test_a_run_goes_on_while_its_store_is_silent_and_the_rest_comes_when_it_is_back(
    server, tmp_path, settle, capfd
):
    with tracker_of(server.uri).start(tmp_path, name="a", params={"seed": 1}) as tracker:
        tracker.log({"loss": 0.0}, step=0)
        settle(tracker)
        server.mood = 503
        tracker.log({"loss": 1.0}, step=1)
        tracker.log({"loss": 2.0}, step=2)
    # It goes back to a checkpoint of step 0.
    again = tracker_of(server.uri, wait_s=30.0).start(
        tmp_path, name="a", params={"seed": 2, "new": 3}
    )
    assert again.run is None
    for step in (1, 2, 3):
        again.log({"loss": float(step)}, step=step)
    server.mood = "well"
    with again:
        settle(again)
    (run,) = server.runs.values()
    assert run["metrics"] == [("loss", step, float(step)) for step in range(4)]
    assert (run["params"], run["status"]) == ({"seed": "1", "new": "3"}, "FINISHED")


@pytest.mark.parametrize("mood", [500, 503, 403, 404, "html", "silent", "refused"])
def test_a_new_run_is_refused_in_one_line_and_soon(server, tmp_path, mood):
    if mood == "refused":
        server.kill()
    server.mood = mood
    before = time.monotonic()
    with pytest.raises(
        UsageError, match=r"tracking_uri: must be a store that MLflow can use, got http://"
    ):
        check_store({"logger": {"tracking_uri": server.uri, "experiment": "a"}})
    with pytest.raises(
        UsageError, match=r"tracking_uri: must be a store that MLflow can use, got http://"
    ):
        tracker_of(server.uri).start(tmp_path, name="a", params={})
    assert time.monotonic() - before < 10.0
    if mood == "refused":
        server.start()


def test_requests_are_limited_unless_the_user_did_so(monkeypatch, tracking_uri):
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    connect(tracking_uri)
    assert float(os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"]) <= 10
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "3"


LOOP = """
import sys
import time
import uuid
from pathlib import Path

import torch
from yamame.tracking import MLflowTracker, NullTracker

folder, uri, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
if uri == "none":
    tracker = NullTracker()
else:
    tracker = MLflowTracker(tracking_uri=uri, flush_s=0.5, wait_s=60.0)
folder.mkdir()
with tracker.start(folder, name="a", params={}):
    print("ready", flush=True)
    sys.stdin.readline()
    weights = torch.rand(256, 256)
    steps, longest, end = 0, 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            torch.mm(weights, weights)
        before = time.monotonic()
        tracker.log({f"eval/{key}": 1.0 for key in range(40)}, step=steps)
        steps += 1
        if steps % 100 == 0:
            tracker.flush()
        longest = max(longest, time.monotonic() - before)
    print(steps, longest, flush=True)
"""


def loop(folder, uri, seconds):
    """Starts the loop in a process, up to where it waits for a line."""
    command = [sys.executable, "-c", LOOP, str(folder), uri, str(seconds)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def result(process):
    """How many steps a loop made, and the seconds of the longest call of its tracker."""
    steps, longest = process.stdout.readline().split()
    return int(steps), float(longest)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_server_that_is_dead_for_long_slows_nothing_and_gets_every_point_once(server, tmp_path):
    """Beside a loop without tracking; the server is there again when the loop is over."""
    seconds = float(os.environ.get("YAMAME_DEAD_S", "30"))
    with (
        loop(tmp_path / "none", "none", seconds) as none,
        loop(tmp_path / "dead", server.uri, seconds) as dead,
    ):
        server.kill()
        for process in (none, dead):
            process.stdin.write("\n")
            process.stdin.flush()
        (steps_without, _), (steps, longest) = result(none), result(dead)
        server.start()
    assert (none.returncode, dead.returncode) == (0, 0)
    (run,) = server.runs.values()
    points = sorted((key, step) for key, step, _ in run["metrics"] if key.startswith("eval/"))
    assert points == sorted((f"eval/{key}", step) for key in range(40) for step in range(steps))
    assert run["status"] == "FINISHED"
    ratio = f"{steps} steps beside {steps_without} untracked, {steps / steps_without:.3f}"
    print(f"a server dead for {seconds:g} s: {ratio}, longest call {longest:.2f} s")
    assert steps >= 0.9 * steps_without
    assert longest < 1.0


@pytest.mark.slow
def test_a_database_that_is_locked_for_a_minute_slows_nothing_and_loses_nothing(tmp_path):
    """Beside a loop without tracking, at the same time, for the machine may have other things to
    do.
    """
    uri, seconds = f"sqlite:///{tmp_path}/mlflow.db", float(os.environ.get("YAMAME_LOCKED_S", "60"))
    with (
        loop(tmp_path / "none", "none", seconds) as none,
        loop(tmp_path / "locked", uri, seconds) as locked,
    ):
        database = sqlite3.connect(tmp_path / "mlflow.db", timeout=60.0, isolation_level=None)
        database.execute("begin exclusive")
        for process in (none, locked):
            process.stdin.write("\n")
            process.stdin.flush()
        (steps_without, _), (steps, _) = result(none), result(locked)
        database.execute("rollback")
    assert (none.returncode, locked.returncode) == (0, 0)
    found = database.execute(
        "select key, count(*), count(distinct step) from metrics group by key"
    ).fetchall()
    assert [row for row in found if row[0].startswith("eval/")] == [
        (key, steps, steps) for key in sorted(f"eval/{key}" for key in range(40))
    ]
    assert database.execute("select status from runs").fetchall() == [("FINISHED",)]
    database.close()
    print(
        f"{steps} steps beside a locked database, {steps_without} untracked: "
        f"{steps / steps_without:.3f}"
    )
    assert steps >= 0.9 * steps_without


def test_a_locked_database_holds_nobody_up_and_loses_nothing(start, tracking_uri, settle):
    tracker = start()
    settle(tracker)
    database = sqlite3.connect(
        tracking_uri.removeprefix("sqlite:///"), timeout=60.0, isolation_level=None
    )
    database.execute("begin exclusive")
    longest, step, end = 0.0, 0, time.monotonic() + DOWN_S
    while time.monotonic() < end:
        before = time.monotonic()
        tracker.log({"eval/success_mean": 1.0}, step=step)
        tracker.flush()
        longest = max(longest, time.monotonic() - before)
        step += 1
        time.sleep(0.005)
    assert tracker.sender.count_waiting() == step
    database.execute("rollback")
    database.close()
    settle(tracker, seconds=60.0)
    assert longest < DOWN_S / 2
    points = tracker.run.client.get_metric_history(tracker.run.run_id, "eval/success_mean")
    assert [point.step for point in points] == list(range(step))


# A run and its parameters are one thing, whenever the process dies.


class Killed(BaseException):
    pass


def die(*arguments, **options):
    raise Killed


def dying_after(call, *, calls=1):
    """The call, after which the process dies, at the so-and-so-many-th time."""
    left = [calls]

    def wrapped(*arguments, **options):
        result = call(*arguments, **options)
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return result

    return wrapped


INSTANTS = {
    "before the intent": lambda: (tracking, "write_record", die),
    "after the intent": lambda: (tracking, "write_record", dying_after(tracking.write_record)),
    "before the run is made": lambda: (MLflowRun, "create", die),
    "after the run is made": lambda: (MLflowRun, "create", dying_after(MLflowRun.create)),
    "after the record": lambda: (
        tracking,
        "write_record",
        dying_after(tracking.write_record, calls=2),
    ),
    "before the parameters": lambda: (MLflowRun, "log_params", die),
    "after the parameters": lambda: (MLflowRun, "log_params", dying_after(MLflowRun.log_params)),
    "before the offset moves": lambda: (Follower, "advance", die),
    "before the first batch": lambda: (mlflow_client(), "log_batch", die),
    "after the first batch": lambda: (
        mlflow_client(),
        "log_batch",
        dying_after(mlflow_client().log_batch),
    ),
    "before the status": lambda: (MLflowRun, "set_status", die),
}


def mlflow_client():
    from mlflow.tracking import MlflowClient

    return MlflowClient


@pytest.mark.parametrize("instant", INSTANTS)
def test_a_run_that_dies_while_it_starts_has_one_record_and_all_parameters_later(
    tracking_uri, tmp_path, monkeypatch, settle, instant, request
):
    params = {f"p{index}": index for index in range(250)}
    experiment = request.node.name.replace("/", " ")
    with monkeypatch.context() as patched:
        patched.setattr(*INSTANTS[instant]())
        with pytest.raises(Killed):
            tracker_of(tracking_uri, experiment=experiment).start(tmp_path, name="a", params=params)
    again = tracker_of(tracking_uri, experiment=experiment, wait_s=30.0)
    with again.start(tmp_path, name="a", params={**params, "p7": "changed"}):
        again.log({"loss": 1.0}, step=1)
    client = connect(tracking_uri)
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    assert len(run.data.params) == 250
    assert run.data.params["p7"] == (
        "changed" if instant in ("before the intent", "after the intent") else "7"
    )
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"loss": 1.0})
    assert run.info.run_id == json.loads((tmp_path / "mlflow.json").read_text())["run_id"]


def test_a_request_after_which_the_process_dies_is_not_repeated(start, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Sender, "start", lambda self, **options: None)  # sent by hand
        tracker = start()
        for step in range(5):
            tracker.log({"loss": 1.0}, step=step)
        patched.setattr(Follower, "advance", die)
        with pytest.raises(Killed):
            tracker.sender.send()
    assert tracker.run.last_steps() == {"loss": 4}
    with start():
        pass
    points = tracker.run.client.get_metric_history(tracker.run.run_id, "loss")
    assert [point.step for point in points] == list(range(5))


@pytest.fixture
def unsent(server, tmp_path, monkeypatch):
    """A run directory of an earlier version, whose server was away, and the server's run.

    The version wrote metrics to the file of entries and emptied it when everything was sent. The
    first line was stored without an answer, the last was cut off by the end of the process.
    """
    directory = tmp_path / "run"
    shutil.copytree(Path(__file__).parent / "unsent_run", directory)
    (directory / ".lock").touch()
    run = json.loads((directory / "store.json").read_text())["run"]
    run["metrics"] = [tuple(point) for point in run["metrics"]]
    # MLflow's client remembers where the files of an id are, so each test has an id of its own.
    run_id = uuid.uuid4().hex
    server.runs[run_id] = run
    record = json.loads((directory / "mlflow.json").read_text())
    record |= {"tracking_uri": server.uri, "run_id": run_id}
    (directory / "mlflow.json").write_text(json.dumps(record))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    return directory, run


def check_unsent(server, run):
    assert [(step, value) for key, step, value in run["metrics"] if key == "train/loss"] == [
        *((16 * step, 1 / (step + 1)) for step in range(40)),
        (640, 0.5),
        *((16 * step, 1 / (step + 1)) for step in range(41, 120)),
    ]
    evaluations = [step for key, step, _ in run["metrics"] if key == "eval/success_mean"]
    assert evaluations == [16 * step for step in range(30, 120, 10)]
    assert len(run["metrics"]) == 120 + 2 * len(evaluations)
    assert run["status"] == "FINISHED"
    assert sorted(path.name for path in server.folder.rglob("*.*")) == [
        "config.yaml",
        "evaluation.json",
    ]


def test_a_run_of_an_earlier_version_is_sent_once(server, unsent):
    directory, run = unsent
    assert send_rest(directory) > 100
    check_unsent(server, run)
    assert send_rest(directory) == 0
    check_unsent(server, run)


def test_a_run_of_an_earlier_version_that_goes_on_is_sent_once(server, unsent):
    directory, run = unsent
    with tracker_of(server.uri, wait_s=30.0).start(directory, name="a", params={}) as tracker:
        for step in (1600, 1904, 1920):  # from a checkpoint before its end
            tracker.log({"train/loss": 9.0}, step=step)
    assert run["metrics"].pop() == ("train/loss", 1920, 9.0)
    check_unsent(server, run)


def test_a_directory_that_is_written_to_or_has_no_run_is_not_sent(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        send_rest(tmp_path / "nowhere")
    directory = open_directory(tmp_path / "mine")
    (directory / "config.yaml").touch()
    assert send_rest(directory) == 0
    (directory / "mlflow.json").write_text(
        json.dumps(
            {"tracking_uri": f"sqlite:///{tmp_path}/m.db", "experiment": "a", "run_uuid": "b"}
        )
    )
    (directory / "mlflow.jsonl").write_text('{"params": {}}\n')
    with pytest.raises(UsageError, match="no run in MLflow"):
        send_rest(directory)
    assert not (tmp_path / "m.db").exists()


def test_the_thread_does_not_outlive_its_run(start):
    with start() as tracker:
        assert tracker.sender._thread in threading.enumerate()
    assert tracker.sender._thread not in threading.enumerate()
