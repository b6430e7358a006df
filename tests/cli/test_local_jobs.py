"""Jobs of a sweep in processes of this machine: how many, on which GPUs, and what is lost."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from yamame.cli import local_jobs
from yamame.cli.local_jobs import LocalSweep, _Job, _next_job, place_jobs, visible_gpus
from yamame.cli.mps import sharing_gpus

RECIPE = """
import os, signal, sys, time
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from yamame.cli.app import main
from yamame.system.signals import Terminated, exit_if_received, handling


def seen():
    return [path.read_text().split() for path in Path().glob("began-*")]


def run_until_a_signal(seed):
    try:
        with handling(at_once=False):
            deadline = time.monotonic() + 100
            while time.monotonic() < deadline:
                exit_if_received()
                time.sleep(0.05)
    except Terminated as ended:
        time.sleep(1)  # what is saved takes a while, in which a second signal would end the process
        Path(f"saved-{seed}").write_text(ended.signal.name)
        raise


def task(cfg):
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    together = HydraConfig.get().launcher.n_jobs
    Path(f"began-{cfg.seed}").write_text(f"{visible} {os.getpid()} {together}")
    if cfg.seed >= 20:
        return 0.0
    if cfg.seed >= 10:
        run_until_a_signal(cfg.seed)
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
    main(task, config_name="train", config_dir=Path.cwd(), needs_store=False, resumable=True)
"""


@pytest.fixture
def begin(tmp_path, write_recipe):
    """Begins the recipe with ``-m``, in a process group of its own."""
    write_recipe(RECIPE, launcher="local")

    def run(*arguments, **variables):
        command = [sys.executable, "recipe.py", "-m", *arguments]
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return run


def files(folder, kind):
    """What each job has written to its file of a kind."""
    return {
        int(path.name.removeprefix(f"{kind}-")): path.read_text().split()
        for path in folder.glob(f"{kind}-*")
    }


def test_four_jobs_use_both_gpus_and_a_job_that_is_killed_leaves_the_others_alone(begin, tmp_path):
    process = begin("seed=0,1,2,3", "hydra.launcher.n_jobs=3", CUDA_VISIBLE_DEVICES="6,GPU-7")
    stdout, stderr = process.communicate(timeout=400)
    began = files(tmp_path, "began")
    assert began.keys() == {0, 1, 2, 3}, stderr
    assert {together for *_, together in began.values()} == {"2"}
    assert "launcher: 2 jobs at the same time, not 3, on 2 GPUs" in stderr
    visible = [began[seed][0] for seed in range(4)]
    assert visible[:2] == ["6", "GPU-7"]
    assert sorted(visible[2:]) == ["6", "GPU-7"]
    assert len({pid for _, pid, _ in began.values()}) == 3
    assert process.returncode == 1
    assert "job 1 (exit status -9)" in stderr
    rows = stdout.partition("job  outcome")[2].splitlines()[1:5]
    became = [line.split()[1] for line in rows]
    assert became == ["ran", "stopped", "ran", "ran"], stdout + stderr


@pytest.mark.parametrize(("n_jobs", "num_workers"), [(-1, 2), (8, 8)])
def test_places_on_gpus_are_known_where_cores_limit_the_jobs(n_jobs, num_workers, monkeypatch):
    monkeypatch.setattr(local_jobs, "usable_cores", lambda: 2)
    settings = {"num_jobs": 9, "jobs_per_device": 4, "gpus": ["0", "1"]}
    place = place_jobs({"cuda"}, n_jobs=n_jobs, **settings)
    assert (place.num_workers, place.places) == (num_workers, 8)


def test_a_group_that_chooses_the_device_of_later_jobs_places_them(begin, tmp_path):
    (tmp_path / "hardware").mkdir()
    for name, device, seed in (("none", "cpu", 20), ("one", "cuda", 21)):
        text = f"# @package _global_\ndevice: {device}\nseed: {seed}\n"
        (tmp_path / "hardware" / f"{name}.yaml").write_text(text)
    process = begin("+hardware=none,one", "hydra.launcher.n_jobs=2")
    _, stderr = process.communicate(timeout=400)
    assert process.returncode == 0, stderr
    began = files(tmp_path, "began")
    assert [began[seed][0] for seed in (20, 21)] == ["0", "1"], stderr


def test_an_interrupt_lets_every_job_save_its_state(begin, tmp_path):
    process = begin("seed=10,11", "device=cpu", "hydra.launcher.n_jobs=2")
    deadline = time.monotonic() + 300
    while len(files(tmp_path, "began")) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 75, stderr
    assert files(tmp_path, "saved") == {10: ["SIGTERM"], 11: ["SIGTERM"]}, stderr
    assert [line.split()[1] for line in stdout.splitlines()[-3:-1]] == ["stopped", "stopped"]


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
        ({"cuda", "cuda:1"}, {}, [None] * 2),  # the first one is cuda:0
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


def test_a_gpu_with_an_index_never_has_more_jobs_than_it_may():
    devices = ["cuda:0", "cuda:0", "cuda:0", "cuda:1", "cpu", "cuda"]
    jobs = [_Job(number, [], device) for number, device in enumerate(devices)]
    settings = {"num_jobs": 6, "n_jobs": 64, "gpus": ["0", "1"]}

    def begun(running, jobs_per_device=1):
        place = place_jobs(set(devices), jobs_per_device=jobs_per_device, **settings)
        waiting = [job for job in jobs if job.number not in running]
        job = _next_job(waiting, [jobs[number] for number in running], place)
        return None if job is None else job.number

    assert [begun([]), begun([0]), begun([0, 3]), begun([0, 3, 4])] == [0, 3, 4, None]
    assert [begun([5]), begun([0], 2), begun([0, 1], 2), begun([0, 5], 2)] == [3, 1, 3, 3]


@pytest.mark.parametrize(
    ("outer", "number", "expected"),
    [
        (None, 2, ["0", "1"]),
        ("", 0, []),
        ("-1", 0, []),
        ("5, GPU-7,-1,3", 2, ["5", "GPU-7"]),
        ("MIG-a,MIG-b", 1, ["MIG-a", "MIG-b"]),  # CUDA shows the first instance alone
    ],
)
def test_names_of_gpus_are_those_of_the_environment(outer, number, expected, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: number)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if outer is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", outer)
    assert visible_gpus() == expected


def test_devices_of_jobs_are_those_that_their_configurations_choose():
    composed = []

    class Loader:
        def load_sweep_config(self, config, overrides):
            composed.append(overrides)
            return OmegaConf.create({"device": "cuda" if "hardware=gpu" in overrides else "cpu"})

    context = SimpleNamespace(config_loader=Loader())
    config = OmegaConf.create({"seed": 0, "device": "cpu", "optimizer": {"lr": 0.1}})
    sweep = LocalSweep(context, None, config)
    given = [
        [choice, f"seed={seed}", "optimizer.lr=1"]
        for choice in ("hardware=cpu", "hardware=gpu")
        for seed in range(3)
    ]
    assert [job.device for job in sweep._jobs(given, 0)] == ["cpu"] * 3 + ["cuda"] * 3
    assert len(composed) == 2  # a composition takes a while


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
