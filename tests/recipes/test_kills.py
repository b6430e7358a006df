"""Runs that are killed at random instants, again and again, and go on by the same command until
they are done.

Every run is a copy of a process that has imported everything, so that kills fall on the recipe and
not on imports. The number of kills, over all pairs of an encoder and an environment, is that of the
environment variable ``KILLS``:

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
    "replay.capacity=600",
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

PROGRAM = '''
import json, os, random, signal, sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import torch, mlflow, sqlalchemy, yamame_envs, train  # once: every run is a copy of this process

from yamame.cli.app import main

torch.set_num_threads(1)
num_kills, most_kills, seed, arguments = *map(int, sys.argv[2:5]), sys.argv[5:]
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


def is_killed(process, wait):
    """Kills a run after some time; whether it had not ended before."""
    limit = time.monotonic() + wait
    while time.monotonic() < limit:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            assert status == 0, "a run that nobody kills must end"
            return False
        time.sleep(0.002)
    # With its worker processes, or the run alone.
    group = moments.random() < 0.5 and os.getpgid(process) == process
    (os.killpg if group else os.kill)(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return True


began = time.monotonic()
assert os.waitpid(start("whole"), 0)[1] == 0, "a run that nobody kills must end"
took, killed = time.monotonic() - began, []
while sum(killed) < num_kills:
    name, times = f"killed{len(killed)}", 0
    most = min(most_kills, num_kills - sum(killed))
    while times < most and is_killed(start(name), moments.uniform(0.0, took)):
        times += 1
    assert os.waitpid(start(name), 0)[1] == 0, "a killed run must go on"
    killed.append(times)
print(json.dumps(killed))
'''


def points(folder: Path, name: str) -> list[tuple]:
    """What MLflow holds of a run: keys, steps and values, but for the values of costs, which a
    clock decides.
    """
    with sqlite3.connect(folder / "mlflow.db") as database:
        rows = database.execute(
            "select key, step, value from metrics join runs using (run_uuid) where name = "
            "? order by key, step",
            (name,),
        ).fetchall()
    return [(key, step, None if key.startswith("cost/") else value) for key, step, value in rows]


@pytest.mark.slow
@pytest.mark.timeout(7200)  # two hundred kills on a busy machine
@pytest.mark.parametrize("pair", PAIRS)
def test_killed_runs_go_on_to_the_same_bits_points_and_files(pair, tmp_path, components, differing):
    number = max(1, NUM_KILLS // len(PAIRS))
    numbers = [number, KILLS_OF_A_RUN, random.Random(pair).randrange(10**9)]
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        str(RECIPES),
        *map(str, numbers),
        *SHORT,
        *PAIRS[pair],
    ]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, (
        finished.stderr[-2000:] + (tmp_path / "log").read_text()[-3000:]
    )
    kills = json.loads(finished.stdout.splitlines()[-1])
    assert sum(kills) == number

    whole = tmp_path / "runs/whole"
    names = [f"killed{round_}" for round_ in range(len(kills))]
    for name in names:
        killed = tmp_path / "runs" / name
        assert json.loads((killed / "summary.json").read_text())["status"] == "FINISHED"
        # Padding of open episodes, which nothing reads, may differ.
        assert differing(components(whole), components(killed), skip=("/collector",)) == []
        assert points(tmp_path, name) == points(tmp_path, "whole") != []
        files = [{path.relative_to(top) for path in top.rglob("*")} for top in (whole, killed)]
        assert {str(path) for path in files[1] - files[0] if "replay" not in path.parts} == set()
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        assert sorted(database.execute("select name, status from runs").fetchall()) == [
            (name, "FINISHED") for name in sorted(["whole", *names])
        ]
        params = database.execute("select count(*) from params group by run_uuid").fetchall()
    assert len(params) == 1 + len(names)
    assert len(set(params)) == 1
    print(f"{pair}: {sum(kills)} kills of {len(kills)} runs, all recovered")
