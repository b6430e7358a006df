"""Sweeps in other processes: outcomes reach the parent, and what was killed goes on by the same
command.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from mlflow.tracking import MlflowClient

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore"),  # MLflow warns of much
    pytest.mark.timeout(3600),
]
PATIENCE_S = 1200
"""Longest wait for something that takes a minute on two idle cores."""
TRAIN = Path(__file__).parents[2] / "recipes/train.py"
TINY = (
    *(
        "debug=tiny",
        "encoder=gru",
        "encoder.hidden_size=16",
        "env=tmaze",
        "env.length=20",
        "budget.updates=null",
    ),
    *("budget.env_steps=4096", "schedule.updates_per_step=0.005", "schedule.regulator=null"),
    *("checkpoint.interval=512", "evaluation.interval=100000", "logger.system_metrics=false"),
)
LAUNCHERS = {
    "local": (["launcher=local", "hydra.launcher.n_jobs=2"], "spawn_main", 1),
    "submitit": (["hydra/launcher=submitit_local"], "submitit.core._submit", 2),
}
"""What chooses a launcher, what is in the command of its jobs' processes, how many have made a
checkpoint when two are killed.
"""
NUM_JOBS = 8


def jobs_of(process: psutil.Process, mark: str) -> list[psutil.Process]:
    """The processes of jobs that have made a checkpoint."""
    below = []
    for child in process.children(recursive=True):
        try:
            if any(mark in part for part in child.cmdline()):
                below.append(child)
        except psutil.Error:
            continue
    return below


def checkpoints(folder: Path) -> set[Path]:
    """All of all runs."""
    return set(folder.glob("runs/*/checkpoints/step-*.pt"))


def unfinished(saved: set[Path]) -> set[Path]:
    """Those of the runs of some checkpoints that have not ended."""
    return {
        run for run in {path.parents[1] for path in saved} if not (run / "summary.json").exists()
    }


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_jobs_that_are_killed_go_on_by_the_same_command_and_each_ends_once(tmp_path, launcher):
    if launcher == "submitit":
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    chosen, mark, at_once = LAUNCHERS[launcher]
    seeds = ",".join(str(seed) for seed in range(NUM_JOBS))
    command = [sys.executable, str(TRAIN), "-m", *TINY, *chosen, f"seed={seeds}"]
    killed = 0
    while killed < 2 or not unfinished(
        checkpoints(tmp_path)
    ):  # one may have ended when it was killed
        before = checkpoints(tmp_path)
        with open(tmp_path / "err", "w") as err:
            process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=err)
        sweep = psutil.Process(process.pid)

        def is_time(saved=before, process=process):
            return (
                len(unfinished(checkpoints(tmp_path) - saved)) >= at_once
                or process.poll() is not None
            )

        wait_for(is_time)
        assert process.poll() is None, (tmp_path / "err").read_text()
        below = sweep.children(recursive=True)
        for job in jobs_of(sweep, mark)[:2]:
            job.kill()
            killed += 1
        assert process.wait(PATIENCE_S) == 1
        printed = (tmp_path / "err").read_text()
        (line,) = [line for line in printed.splitlines() if "the process of a job is gone" in line]
        assert line.endswith("repeat the command to continue")
        assert "Traceback" not in printed
        psutil.wait_procs(below, timeout=PATIENCE_S)
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = done.stdout.partition("\njob  outcome")[2].splitlines()[1 : NUM_JOBS + 1]
    became = [line.split()[1] for line in rows]
    assert set(became) <= {"ran", "resumed", "done"}
    assert "resumed" in became
    summaries = [read(path) for path in tmp_path.glob("runs/*/summary.json")]
    assert [(one["status"], one["env_steps"], one["updates"]) for one in summaries] == [
        ("FINISHED", 4096, 20)
    ] * NUM_JOBS
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    found = client.search_runs(["1"])
    (parent,) = [run for run in found if "sweep" in run.data.tags]
    assert [run.info.status for run in found] == ["FINISHED"] * (NUM_JOBS + 1)
    points = client.get_metric_history(parent.info.run_id, "objective")
    assert sorted(point.step for point in points) == list(range(NUM_JOBS))
    assert parent.data.metrics["objective_best"] == max(point.value for point in points)
    assert {name for name in parent.data.tags if name.startswith("job.")} == {
        f"job.{n}" for n in range(NUM_JOBS)
    }


def test_a_search_proposes_trials_and_keeps_what_they_came_to(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    search = ["sweeper=optuna", "optimizer.lr=interval(1e-4,1e-2)", "hydra.sweeper.n_trials=3"]
    command = [sys.executable, str(TRAIN), "-m", *TINY, *search, "budget.env_steps=512"]
    tables = []
    for became in (
        "ran",
        "done",
    ):  # the same command proposes the same trials, which are done by then
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        tables.append([line.split() for line in done.stdout.splitlines()[-4:-1]])
        assert [row[1] for row in tables[-1]] == [became] * 3
    rates = [
        [next(word for word in row if word.startswith("optimizer.lr=")) for row in table]
        for table in tables
    ]
    assert rates[0] == rates[1]
    assert len(set(rates[0])) == 3
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (parent,) = [run for run in client.search_runs(["1"]) if "sweep" in run.data.tags]
    assert len(client.get_metric_history(parent.info.run_id, "objective")) == 3
