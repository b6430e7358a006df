"""Sixteen processes and a sweep send to a server of a team, it and its database are stopped,
and nothing is lost or stored twice.
"""

import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from yamame.tracking import read_metrics, send_rest
from yamame.tracking.history import RunReader
from yamame.tracking.thinning import Thinning

pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NUM_JOBS = 50
_LONGEST_S = 600.0
DOWN_S = 5.0
"""Seconds for which the database is stopped. The server needs longer than that to start again."""


def environment(server):
    # Processes find the packages, and the server, as a user's do.
    path = os.pathsep.join([str(ROOT / "components"), str(ROOT / "envs")])
    return os.environ | {
        "PYTHONPATH": path,
        "MLFLOW_TRACKING_URI": server.uri,
        # Twenty processes share the cores of the machine.
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def query(server, statement, *values):
    """Ask the database itself, past MLflow."""
    import psycopg2

    with (
        psycopg2.connect(
            host="127.0.0.1", port=server.database.port, user="mlflow", dbname="postgres"
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(statement, values)
        return cursor.fetchall()


def wait_for(check, process, log):
    end = time.monotonic() + _LONGEST_S
    while not check():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.2)


def points_in_log(directory):
    """Count the points of a run that MLflow must have."""
    thinning = Thinning()
    points = Counter()
    for record in read_metrics(directory):
        for name, value in record.metrics.items():
            if thinning.accept(name, record.step):
                points[name, record.step, None if math.isnan(value) else value] += 1
    return points


def points_in_database(server, run_id):
    statement = "select key, step, is_nan, value from metrics where run_uuid = %s"
    points = Counter()
    for name, step, is_nan, value in query(server, statement, run_id):
        points[name, step, None if is_nan else value] += 1
    return points


def test_nothing_is_lost_or_stored_twice_while_server_and_database_are_away(
    server, tmp_path, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    command = [sys.executable, str(HERE / "fleet.py"), server.uri, str(tmp_path)]
    log = tmp_path / "fleet.log"
    with log.open("wb") as file:
        fleet = subprocess.Popen(command, env=environment(server), stdout=file, stderr=file)

    def count_begun():
        records = tmp_path.glob("*/mlflow.json")
        return sum("run_id" in path.read_text() for path in records)

    try:
        wait_for(lambda: count_begun() == 15, fleet, log)
        time.sleep(3.0)
        server.kill()
        time.sleep(1.0)
        server.start()
        (tmp_path / "go").touch()
        wait_for(lambda: count_begun() == 16, fleet, log)
        time.sleep(3.0)
        server.database.stop()
        time.sleep(DOWN_S)
        server.database.start()
        assert fleet.wait(_LONGEST_S) == 0, log.read_text()[-3000:]
    finally:
        fleet.kill()

    # Some ended before everything was sent.
    runs = sorted(path.parent for path in tmp_path.glob("*/mlflow.json"))
    assert len(runs) == 16
    for directory in runs:
        send_rest(directory)
        assert send_rest(directory) == 0
        assert not (directory / "mlflow.refused.jsonl").exists()
        run_id = json.loads((directory / "mlflow.json").read_text())["run_id"]
        expected = points_in_log(directory)
        assert sum(expected.values()) > 500
        assert points_in_database(server, run_id) == expected
        ((status,),) = query(server, "select status from runs where run_uuid = %s", run_id)
        assert status == "FINISHED"
        (stored,) = server.files.rglob(f"{run_id}/artifacts")
        name = "result.txt" if directory.name.startswith("replay") else "config.yaml"
        assert (stored / name).read_bytes() == (directory / name).read_bytes()
    ((num_runs,),) = query(server, "select count(*) from runs")
    assert num_runs == 16

    # A report reads the same from the server as there is in the logs.
    (read,) = RunReader.open(server.uri, "yamame").read("replay-0")
    assert read.problem == ""
    logged = points_in_log(tmp_path / "replay-0")
    name = "eval/success_mean"
    steps = sorted(step for metric, step, _ in logged if metric == name)
    assert read.metrics[name].steps.tolist() == steps

    spent = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert len(spent) == 4
    plain = sum(each["cpu_s"] for name, each in spent.items() if name.startswith("plain"))
    tracked = [each for name, each in spent.items() if name.startswith("tracked")]
    without_sender = sum(each["cpu_s"] - each["sender_s"] for each in tracked)
    print(
        f"CPU-seconds of two trainings: {plain:.1f} untracked, {without_sender:.1f} tracked and "
        f"{sum(each['sender_s'] for each in tracked):.1f} of their senders"
    )
    assert without_sender <= 1.1 * plain


def test_a_sweep_whose_server_is_restarted_has_each_job_once(server, tmp_path):
    seeds = f"seed={','.join(map(str, range(NUM_JOBS)))}"
    command = [sys.executable, str(ROOT / "recipes" / "train.py"), "-m", seeds, "debug=tiny"]
    command += ["budget.updates=1", "evaluation.num_episodes=1", "evaluation.max_steps=2"]
    command += ["logger.models=false", "logger.experiment=sweep", "logger.wait_s=1"]
    options = {"cwd": tmp_path, "env": environment(server), "stderr": subprocess.STDOUT}
    log = tmp_path / "sweep.log"
    with log.open("wb") as file:
        sweep = subprocess.Popen(command, stdout=file, **options)
    statement = (
        "select count(*) from runs join experiments using (experiment_id) "
        "where experiments.name = 'sweep'"
    )
    try:
        wait_for(lambda: query(server, statement)[0][0] > NUM_JOBS // 4, sweep, log)
        server.kill()
        server.start()
        sweep.wait(_LONGEST_S)
    finally:
        sweep.kill()
    # Jobs that began while the server was away failed; the same command runs those alone.
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=_LONGEST_S, **options)
    for directory in tmp_path.glob("runs/*/mlflow.json"):
        send_rest_of(server, directory.parent)

    reader = RunReader.open(server.uri, "sweep")
    jobs = reader.read()
    assert sorted(int(run.seed) for run in jobs) == list(range(NUM_JOBS))
    assert {run.status for run in jobs} == {"FINISHED"}
    (parent,) = [run for run in reader._search() if "sweep" in run.data.tags]
    assert {run.tags["mlflow.parentRunId"] for run in jobs} == {parent.info.run_id}
    objectives = reader.client.get_metric_history(parent.info.run_id, "objective")
    assert sorted(point.step for point in objectives) == list(range(NUM_JOBS))
    outcomes = [name for name in parent.data.tags if name.startswith("job.")]
    assert len(outcomes) == NUM_JOBS
    assert parent.info.status == "FINISHED"


def send_rest_of(server, directory):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MLFLOW_TRACKING_URI", server.uri)
        send_rest(directory)


TESTS = (
    "tests/tracking/test_tracker.py",
    "tests/tracking/test_log.py",
    "tests/tracking/test_history.py",
    "tests/tracking/test_refusals.py",
    "tests/tracking/test_sweep.py",
    "tests/tracking/test_damage.py",
)
OF_A_DATABASE = (
    "test_a_continued_run_goes_on",
    "test_files_folders_and_tables",
    "several_processes_may_set_up",
    "hundred_million",
)
"""Tests of SQLite files, and of stores that the user did not name."""


def test_the_tests_of_tracking_and_sweeps_pass_on_the_server(server):
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *TESTS]
    command += ["-m", "not slow", "-k", f"not ({' or '.join(OF_A_DATABASE)})"]
    variables = environment(server) | {"YAMAME_TEST_TRACKING_URI": server.uri}
    ran = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-5000:]
