"""Runs with `collector=ray`: they end in order at a signal, leave nothing behind when killed, go
on, know own parts.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from mlflow.tracking import MlflowClient
from yamame.replay.disk.follower import TrajectoryFollower

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]  # MLflow warns of much
ROOT = Path(__file__).parents[2]
TINY = (
    *(
        "debug=tiny",
        "run.name=a",
        "collector=ray",
        "collector.num_workers=2",
        "collector.max_staleness=256",
    ),
    *(
        "encoder=gru",
        "encoder.hidden_size=16",
        "schedule.steps_per_iteration=128",
        "schedule.updates_per_step=0.02",
        "schedule.regulator=null",
    ),
    *(
        "checkpoint.interval=512",
        "evaluation.interval=100000",
        "evaluation.num_episodes=4",
        "budget.updates=null",
    ),
    *("replay.capacity=100000", "logger=none"),
)
AGENTS = ("ray::DashboardA", "ray::DashboardAgent", "ray::RuntimeEnv", "ray::RuntimeEnvAgent")
"""Processes of Ray that try for a minute to tell those that were killed of their end."""


@contextmanager
def training(folder: Path, *arguments: str):
    """A run in a process group of its own, with its processes once it saved a checkpoint that it
    had not before.
    """
    pytest.importorskip("ray")
    saved = set(folder.glob("runs/a/checkpoints/step-*.pt"))
    command = [sys.executable, str(ROOT / "recipes/train.py"), *TINY, *arguments]
    with open(folder / "err", "w") as err, open(folder / "out", "w") as out:
        process = subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=err, start_new_session=True
        )
    try:
        wait_for(
            lambda: (
                set(folder.glob("runs/a/checkpoints/step-*.pt")) - saved
                or process.poll() is not None
            )
        )
        assert process.poll() is None, (folder / "err").read_text()
        yield process, psutil.Process(process.pid).children(recursive=True)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_for(condition, seconds=240):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def summary(folder: Path) -> dict:
    return json.loads((folder / "runs/a/summary.json").read_text())


def test_a_run_is_asked_to_end_then_killed_and_goes_on_without_litter(tmp_path):
    with training(tmp_path, "budget.env_steps=10000000") as (process, below):
        os.killpg(process.pid, signal.SIGTERM)  # as a batch system does: all processes hear it
        assert process.wait(60) == 75
        assert (tmp_path / "err").read_text().count("\n") == 1
        assert summary(tmp_path)["status"] == "KILLED"
        wait_for(lambda: not any(map(is_alive, below)), 15)
    with training(tmp_path, "budget.env_steps=10000000", "resume=true") as (process, below):
        assert len([child for child in below if "RolloutWorker" in child.name()]) == 2
        agents = [child for child in below if child.name() in AGENTS]
        process.kill()
        wait_for(lambda: not any(is_alive(child) for child in below if child not in agents), 15)
    before = summary(tmp_path)["env_steps"]
    files = tmp_path.glob("runs/a/checkpoints/step-*.pt")
    saved = max(int(path.stem.removeprefix("step-")) for path in files)
    command = [
        sys.executable,
        str(ROOT / "recipes/train.py"),
        *TINY,
        "resume=true",
        f"budget.env_steps={before + 4096}",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (
        done.stderr == f"a: resumed with a smaller budget: env_steps: 10000000 -> {before + 4096}\n"
    )
    assert "ray" not in done.stdout.lower()
    first = int(re.search(r"% +([\d,]+) steps", done.stdout)[1].replace(",", ""))
    assert (
        saved < first <= saved + 2 * 128
    )  # an iteration has 128 steps, and those beyond of its last answer
    assert summary(tmp_path)["status"] == "FINISHED"
    wait_for(lambda: not any(map(is_alive, agents)), 90)
    store = TrajectoryFollower(tmp_path / "runs/a/replay")
    stored, told = [store.get([index])[0] for index in range(len(store))], set()
    for one in stored:
        assert one["step_index"].flatten().tolist() == list(range(len(one)))
        told.add(
            bytes(one["observation"].contiguous().numpy())
            + bytes(one["action"].contiguous().numpy())
        )
    long = [one for one in stored if len(one) > 10]
    assert len(long) > 20
    assert len(told) == len(stored)


def test_a_folder_of_ones_own_trains_with_its_parts_and_logs_what_the_actors_do(tmp_path):
    pytest.importorskip("ray")
    folder = shutil.copytree(ROOT / "examples/mylab", tmp_path / "lab")
    command = [
        sys.executable,
        str(ROOT / "recipes/train.py"),
        "--config-dir",
        "conf",
        "experiment=doors",
    ]
    tiny = [
        "debug=tiny",
        "collector=ray",
        "budget.updates=3",
        "evaluation.num_episodes=4",
        "run.name=a",
    ]
    done = subprocess.run(
        [*command, *tiny], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert summary(folder)["updates"] == 3
    (logged,) = MlflowClient(f"sqlite:///{folder}/mlflow.db").search_runs(["1"])
    watched = {name for name in logged.data.metrics if name.startswith("collector/")}
    assert {"collector/steps_per_s", "collector/weights_age_p90", "collector/lost_steps"} <= watched
    assert logged.data.metrics["collector/steps_per_s"] > 0
    assert "collector/steps_per_s/actor_0" in watched
    assert "waits" in done.stdout


TUNING = """
import sys
import ray
import yamame
from ray import tune

class Report(yamame.Callback):
    def on_evaluate(self, run, result):
        tune.report({"score": result.summary()["return_mean"], "steps": run.progress.step})

def trial(config):
    name = f"run.name=trial-{tune.get_context().get_trial_id()}"
    tiny = ("debug=tiny", "env=tmaze", "encoder=gru", "logger=none", "evaluation.interval=64")
    settings = (name, f"run.root={sys.argv[1]}", f"optimizer.lr={config['lr']}")
    yamame.train(*tiny, *settings, callbacks=[Report()])

ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
settings = tune.TuneConfig(num_samples=2, metric="score", mode="max", max_concurrent_trials=1)
space = {"lr": tune.loguniform(1e-4, 1e-3)}
found = tune.Tuner(trial, param_space=space, tune_config=settings).fit()
print("TOLD", found.num_errors, len(found), "score" in found.get_best_result().metrics)
"""


def test_a_tuner_of_ray_calls_it_and_learns_of_every_evaluation(tmp_path):
    pytest.importorskip("pandas", reason="needs pip install 'ray[tune]'")
    runs = tmp_path / "runs"
    command = [sys.executable, "-c", TUNING.replace("sys.argv[1]", repr(str(runs)))]
    env = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert "TOLD 0 2 True" in done.stdout, done.stderr
    assert len(list(runs.glob("trial-*/summary.json"))) == 2
