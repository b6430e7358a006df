"""Jobs of a sweep in processes of this machine: how many, on which GPUs, and what is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from yamame.cli.local_jobs import place_jobs
from yamame.cli.mps import sharing_gpus

RECIPE = """
import os, signal, sys, time
from pathlib import Path

import torch
from omegaconf import OmegaConf
from yamame.cli.app import main


def seen():
    return [path.read_text().split() for path in Path().glob("began-*")]


def task(cfg):
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    Path(f"began-{cfg.seed}").write_text(f"{visible} {os.getpid()} {torch.get_num_threads()}")
    if cfg.seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    # Until jobs have run on both GPUs; then, until another worker has replaced the killed one.
    column, number = (0, 2) if cfg.seed == 0 else (1, 3)
    deadline = time.monotonic() + 100
    while len({text[column] for text in seen() if len(text) == 3}) < number:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return cfg.seed / 10


if __name__ == "__main__":
    # Two emulated GPUs.
    torch.cuda.device_count = lambda: 2
    main(task, config_name="train", config_dir=Path.cwd(), needs_store=False)
"""
CONFIG = """
defaults:
  - _self_
  - override hydra/launcher: local
  - override hydra/job_logging: none
  - override hydra/hydra_logging: none
hydra:
  searchpath: ["file://{conf}"]
  run: {{dir: .}}
  sweep: {{dir: "${{run.root}}", subdir: .}}
  output_subdir: null
seed: 0
device: cuda
resume: null
run: {{root: runs, name: null, overwrite: false}}
"""


@pytest.fixture
def sweep(tmp_path):
    """Runs the recipe with ``-m`` in a process: what it printed, and what each job saw."""
    conf = Path(__file__).parents[2] / "conf"
    (tmp_path / "train.yaml").write_text(CONFIG.format(conf=conf))
    (tmp_path / "recipe.py").write_text(RECIPE)

    def run(*arguments, **variables):
        command = [sys.executable, "recipe.py", "-m", *arguments]
        env = {**os.environ, "OMP_NUM_THREADS": "", **variables}
        del env["OMP_NUM_THREADS"]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False
        )
        began = {
            int(path.name.removeprefix("began-")): path.read_text().split()
            for path in tmp_path.glob("began-*")
        }
        return done, began

    return run


def test_four_jobs_use_both_gpus_and_a_job_that_is_killed_leaves_the_others_alone(sweep):
    done, began = sweep("seed=0,1,2,3", CUDA_VISIBLE_DEVICES="6,GPU-7")
    assert began.keys() == {0, 1, 2, 3}, done.stderr
    visible = [began[seed][0] for seed in range(4)]
    assert visible[:2] == ["6", "GPU-7"]
    assert sorted(visible[2:]) == ["6", "GPU-7"]
    assert len({pid for _, pid, _ in began.values()}) == 3
    assert done.returncode == 1
    assert "job 1 (exit status -9)" in done.stderr
    became = [line.split()[1] for line in done.stdout.splitlines()[-5:-1]]
    assert became == ["ran", "stopped", "ran", "ran"], done.stdout + done.stderr


@pytest.mark.parametrize(
    ("devices", "settings", "expected"),
    [
        ({"cuda"}, {}, ["0", "1"]),
        ({"cuda"}, {"num_jobs": 1}, ["0"]),
        ({"cuda"}, {"n_jobs": 1}, ["0"]),
        ({"cuda"}, {"jobs_per_device": 2}, ["0", "1", "0", "1"]),
        ({"cuda"}, {"gpus": []}, [None] * 4),
        ({"cpu"}, {}, [None] * 4),
        ({"cpu"}, {"n_jobs": 3}, [None] * 3),
        ({"cpu", "cuda"}, {}, ["0", "1"]),
        ({"cuda:1"}, {}, [None]),
        ({"cuda:0", "cuda:1"}, {"jobs_per_device": 3}, [None] * 4),
    ],
)
def test_workers_are_as_many_as_fit_on_the_gpus_and_an_index_is_left_alone(
    devices, settings, expected
):
    settings = {"num_jobs": 4, "n_jobs": 64, "jobs_per_device": 1, "gpus": ["0", "1"], **settings}
    place = place_jobs(devices, **settings)
    assert place.visible == expected
    assert place.num_workers == len(expected)


@pytest.mark.parametrize(
    ("settings", "is_shared"),
    [({}, False), ({"jobs_per_device": 2}, True), ({"jobs_per_device": 2, "num_jobs": 2}, False)],
)
def test_a_placement_knows_whether_jobs_share_a_gpu(settings, is_shared):
    settings = {"num_jobs": 4, "n_jobs": 64, "jobs_per_device": 1, "gpus": ["0", "1"], **settings}
    assert place_jobs({"cuda"}, **settings).is_shared == is_shared
    assert not place_jobs({"cpu"}, **settings).is_shared


MPS = """#!/bin/sh
given=$(test -z "$1" && cat)
echo "$1 pipes=$CUDA_MPS_PIPE_DIRECTORY visible=$CUDA_VISIBLE_DEVICES $given" >>{log}
exit {status}
"""


@pytest.mark.parametrize("status", [0, 1, None])
def test_a_service_is_started_for_jobs_that_share_a_gpu_or_a_line_is_printed(
    status, tmp_path, monkeypatch, capsys
):
    log, program = tmp_path / "log", tmp_path / "nvidia-cuda-mps-control"
    log.touch()
    if status is not None:
        program.write_text(MPS.format(log=log, status=status))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    with sharing_gpus(False):
        assert log.read_text() == ""  # nothing is started for jobs with a GPU each
    with sharing_gpus(True):
        pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    printed = capsys.readouterr().err
    assert (len(printed.splitlines()), "take turns" in printed) == ((0, False), (1, True))[
        status != 0
    ]
    lines = [line.split() for line in log.read_text().splitlines()]
    started, ended = ["-d", f"pipes={pipes}", "visible="], [f"pipes={pipes}", "visible=1", "quit"]
    assert lines == {0: [started, ended], 1: [started], None: []}[status]


def test_a_service_that_runs_is_used_and_left_running(tmp_path, monkeypatch, capsys):
    (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with sharing_gpus(True):
        assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == str(tmp_path)
    assert capsys.readouterr().err == ""
