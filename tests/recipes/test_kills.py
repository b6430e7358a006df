"""Runs that are killed at random instants, again and again, and go on by the same command until they are done.

Every run is a copy of a process that has imported everything, so that kills fall on the recipe and not on imports. The
number of kills, over all pairs of an encoder and an environment, is that of the environment variable ``KILLS``:

    KILLS=200 pytest -m slow tests/recipes/test_kills.py -s
"""

import json
import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"
SHORT = [
    "debug=tiny",
    "schedule.learning_starts=0",
    "schedule.batch_size=4",
    "budget.env_steps=1024",
    "budget.updates=null",
    "budget.minutes=null",
    "checkpoint.interval=128",
    "evaluation.interval=256",
    "replay.capacity=500",
    "logger.system_metrics=false",
]
PAIRS = {
    "gru on tmaze": ["encoder=gru", "encoder.hidden_size=16", "env=tmaze", "env.length=20"],
    "transformer on mazerunner": ["encoder=transformer", "env=mazerunner"],
    "lstm on Gymnasium in two processes": [
        "encoder=lstm",
        "encoder.hidden_size=16",
        "env=gym",
        "env.id=CartPole-v1",
        "workers.num_processes=2",
    ],
    "linear recurrent on bandits": ["encoder=linear_recurrent", "env=bandits"],
    "memoryless on frozenlake": ["encoder=memoryless", "env=frozenlake"],
}
NUM_KILLS = int(os.environ.get("KILLS", "40"))
KILLS_OF_A_RUN = 4
CLOCKS = ("cost/", "collector/")

PROGRAM = """
import json, os, random, signal, sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import torch, mlflow, sqlalchemy, yamame_envs, train  # once: every run is a copy of this process

from yamame.cli.app import main

torch.set_num_threads(1)
num_kills, seed, arguments = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
moments, log = random.Random(seed), os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def start(name):
    process = os.fork()
    if process == 0:
        os.setsid()
        os.dup2(log, 1), os.dup2(log, 2)
        sys.argv = ["train.py", *arguments, f"run.name={name}", "resume=auto"]
        try:
            main(train.train, config_name="train")
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return process


began = time.monotonic()
assert os.waitpid(start("whole"), 0)[1] == 0, "a run that nobody kills must end"
took, killed = time.monotonic() - began, 0
while killed < num_kills:
    process, wait = start("killed"), moments.uniform(0.0, took)
    limit = time.monotonic() + wait
    while time.monotonic() < limit and os.waitpid(process, os.WNOHANG)[0] == 0:
        time.sleep(0.002)
    try:
        group = moments.random() < 0.5  # the run alone, or with its worker processes
        (os.killpg if group else os.kill)(process, signal.SIGKILL)
        os.waitpid(process, 0)
        killed += 1
    except (ProcessLookupError, ChildProcessError):  # it had ended
        if (Path("runs/killed/summary.json")).exists():
            break
        raise
assert os.waitpid(start("killed"), 0)[1] == 0, "a killed run must go on"
print(json.dumps({"killed": killed, "took": took}))
"""


def points(folder: Path, name: str) -> list[tuple]:
    """What MLflow holds of a run: keys, steps and values that no clock decides."""
    with sqlite3.connect(folder / "mlflow.db") as database:
        rows = database.execute(
            "select key, step, value from metrics join runs using (run_uuid) where name = ? order by key, step",
            (name,),
        ).fetchall()
    return [row for row in rows if not row[0].startswith(CLOCKS)]


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
def test_killed_runs_go_on_to_the_same_bits_points_and_files(pair, tmp_path, components, differing):
    moments, done = random.Random(pair), 0
    while done < max(1, NUM_KILLS // len(PAIRS)):
        folder = tmp_path / f"after_{done}"
        folder.mkdir()
        numbers = [min(KILLS_OF_A_RUN, NUM_KILLS // len(PAIRS) - done), moments.randrange(10**9)]
        command = [sys.executable, "-c", PROGRAM, str(RECIPES), *map(str, numbers), *SHORT, *PAIRS[pair]]
        finished = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
        )
        assert finished.returncode == 0, finished.stderr[-2000:] + (folder / "log").read_text()[-3000:]
        done += json.loads(finished.stdout.splitlines()[-1])["killed"]

        whole, killed = folder / "runs/whole", folder / "runs/killed"
        assert json.loads((killed / "summary.json").read_text())["status"] == "FINISHED"
        # Padding of open episodes, which nothing reads, may differ.
        assert differing(components(whole), components(killed), skip=("/collector",)) == []
        assert points(folder, "killed") == points(folder, "whole") != []
        with sqlite3.connect(folder / "mlflow.db") as database:
            assert database.execute("select distinct status from runs").fetchall() == [("FINISHED",)]
            assert database.execute("select count(*) from runs").fetchone() == (2,)
            params = database.execute("select count(*) from params group by run_uuid").fetchall()
        assert len(params) == 2
        assert params[0] == params[1]
        files = [{path.relative_to(top) for path in top.rglob("*")} for top in (whole, killed)]
        assert {str(path) for path in files[1] - files[0] if "replay" not in path.parts} == set()
    print(f"{pair}: {done} kills, all recovered")
