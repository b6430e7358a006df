"""One run that two processes of torchrun share out: it learns, goes on exactly, and refuses what it
cannot.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

TRAIN = Path(__file__).parents[2] / "recipes/train.py"
TINY = (
    *(
        "debug=tiny",
        "env.time_limit=20",
        "logger=none",
        "run.name=a",
        "encoder=gru",
        "encoder.hidden_size=16",
        "budget.updates=null",
    ),
    *(
        "schedule.steps_per_iteration=64",
        "schedule.updates_per_step=0.05",
        "schedule.regulator=null",
        "schedule.learning_starts=128",
    ),
    *(
        "schedule.anneal_lr=false",
        "exploration.anneal_steps=60000",
        "checkpoint.interval=128",
        "evaluation.interval=10000",
        "evaluation.num_episodes=4",
    ),
)


SHARED = """
import runpy, sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

sys.argv.pop(0)


def share():
    runpy.run_path(sys.argv[0], run_name="__main__")


place = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "shared"}
config = LaunchConfig(1, 1, 2, start_method="fork", max_restarts=0, **place)
elastic_launch(config, share)()
"""
"""What torchrun does, with processes that have imported torch already."""


def command(*arguments: str, recipe: Path = TRAIN) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    settings = [
        text for text in TINY if recipe == TRAIN or "anneal_lr" not in text
    ]  # which ppo has not
    return [*launcher, str(recipe), *settings, *arguments]


def shared(folder: Path, *arguments: str, recipe: Path = TRAIN) -> subprocess.CompletedProcess:
    folder.mkdir(exist_ok=True)
    done = command(*arguments, recipe=recipe)
    return subprocess.run(
        done, cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )


def summary(folder: Path) -> dict:
    return json.loads((folder / "runs/a/summary.json").read_text())


def test_two_processes_share_one_run_out(tmp_path, components, run_forked):
    episodes = "schedule.learning_starts_episodes=10"
    plr = ("curriculum=plr", "curriculum.min_seeds=2")
    settings = (str(TRAIN), *TINY, *plr, "budget.env_steps=384", episodes, "resume=auto")
    done = run_forked(SHARED, *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("runs/a/summary.json") == 1
    assert "Error" not in done.stderr
    ended = summary(tmp_path)
    assert (ended["status"], ended["env_steps"]) == ("FINISHED", 384)
    saved = components(tmp_path / "runs/a")
    began = saved["progress"]["learning_began"]
    assert began >= 128
    assert ended["updates"] == int((384 - began) * 0.05)
    assert saved["replay"].keys() == saved["rng"].keys() == {"0", "1"}
    assert not torch.equal(saved["rng"]["0"]["torch_cpu"], saved["rng"]["1"]["torch_cpu"])
    assert saved["progress"]["env_steps"] == 384
    # Each process has a table of its own.
    first, second = (
        set(saved["collector"][rank]["env"]["curriculum"]["table"]["seed"].tolist())
        for rank in ("0", "1")
    )
    assert min(len(first), len(second)) > 2
    assert not first & second
    assert {path.name for path in (tmp_path / "runs/a/replay").iterdir()} == {"rank0", "rank1"}
    again = run_forked(SHARED, *settings, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "runs/a is done" in again.stderr


@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on_to_the_same_bits(tmp_path, components, differing):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert shared(whole, "budget.env_steps=1024").returncode == 0
    assert shared(parts, "budget.env_steps=512").returncode == 0
    going_on = ("budget.env_steps=1024", "resume=auto")
    assert shared(parts, *going_on).returncode == 0
    first, second = (components(folder / "runs/a") for folder in (whole, parts))
    assert first["progress"]["updates"] == int((1024 - 128) * 0.05)
    assert (
        differing(
            first,
            second,
            skip=("/progress/curve", *(f"/replay/{rank}/_storage/parts" for rank in (0, 1))),
        )
        == []
    )
    alone = [sys.executable, str(TRAIN), *TINY, "budget.env_steps=2048", "resume=true"]
    refused = subprocess.run(
        alone, cwd=parts, capture_output=True, text=True, timeout=100, check=False
    )
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "processes: 2 -> '(absent)'" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_is_ended_and_killed_without_orphans_and_goes_on(tmp_path, number):
    tmp_path.mkdir(exist_ok=True)
    with open(tmp_path / "err", "w") as err:
        begun = command("budget.env_steps=100000000")
        process = subprocess.Popen(begun, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=err)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/a/checkpoints/step-*.pt")):
        assert time.monotonic() < deadline
        assert process.poll() is None, (tmp_path / "err").read_text()
        time.sleep(0.1)
    children = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True
    )
    ranks = [int(text) for text in children.stdout.split()]
    if number == signal.SIGTERM:
        process.send_signal(number)
    else:
        os.kill(ranks[-1], number)  # a rank dies, and torchrun ends the others
    assert process.wait(60) != 0
    assert not [pid for pid in ranks if Path(f"/proc/{pid}").exists()]
    if number == signal.SIGTERM:
        assert summary(tmp_path)["status"] == "KILLED"
    before = max(int(path.stem[5:]) for path in tmp_path.glob("runs/a/checkpoints/step-*.pt"))
    done = shared(tmp_path, f"budget.env_steps={before + 256}", "resume=auto")
    assert done.returncode == 0, done.stderr
    assert summary(tmp_path)["env_steps"] == before + 256


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "recipe", "message"),
    [
        (
            ["schedule.batch_size=5"],
            TRAIN,
            r"schedule.batch_size: must be a multiple of the 2 processes of torchrun, got 5",
        ),
        (["schedule.cuda_graph=true"], TRAIN, "schedule.cuda_graph must be false under torchrun"),
        (["-m", "seed=0,1"], TRAIN, "torchrun: must start one run of train or offline, got -m"),
        (
            [],
            TRAIN.with_name("ppo.py"),
            "torchrun: must start one run of train or offline, got this recipe",
        ),
    ],
)
def test_what_processes_cannot_share_is_one_line_and_writes_nothing(
    tmp_path, arguments, recipe, message
):
    done = shared(tmp_path, "budget.env_steps=384", *arguments, recipe=recipe)
    assert done.returncode != 0
    assert len([line for line in done.stderr.splitlines() if message in line]) == 1
    assert not (tmp_path / "runs").exists()
