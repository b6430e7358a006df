"""The doctor: what it tells of a sound set-up, what it names of broken ones, and that it leaves
nothing behind.
"""

import os
import runpy
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from yamame.doctor import machine, trial

RECIPE = Path(__file__).parents[2] / "recipes" / "doctor.py"
TINY = (
    "debug=tiny",
    "encoder=memoryless",
    "env=bandits",
    "env.time_limit=9",
    "logger=none",
    "measure.seconds=1",
)
OWN = """
import gymnasium
import numpy as np
from yamame.trajectory import MemorylessEncoder

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault="none"):
        self.fault = fault
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.fault == "raises" and self.steps == 3:
            raise RuntimeError("out of ink")
        reward = float("nan") if self.fault == "unknown" else 1.0
        is_last = self.fault != "endless" and self.steps == 5
        return np.zeros(2, np.float32), reward, is_last, False, {}

class Encoder(MemorylessEncoder):
    def forward(self, *args, **kwargs):
        raise RuntimeError("out of thread")

if "Doctors-v0" not in gymnasium.registry:
    gymnasium.register("Doctors-v0", "doctors:Env")
"""
OWN_ENV = ("env=gym", "env.id=doctors:Doctors-v0", "env.time_limit=null", "trust=[doctors.]")


@pytest.fixture
def doctor(runner):
    return runner("doctor")


def problems(told):
    return [
        line.removeprefix("problem:").strip()
        for line in told.splitlines()
        if line.startswith("problem:")
    ]


def test_a_sound_set_up_is_measured_and_runs_that_are_there_stay_as_they_are(doctor, tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "summary.json").write_text("{}")
    status, out, err = doctor(*TINY, "run.name=mine")
    assert (status, err, problems(out)) == (0, "", [])
    rows = [line.partition(":")[0] for line in out.splitlines()]
    assert rows == ["packages", "machine", "trial", "speed", "memory", "disk", "time", "end"]
    assert "budget.updates, with 40 steps and 2 updates" in out
    assert [path.name for path in (tmp_path / "runs").rglob("*")] == ["mine", "summary.json"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("schedule.updates_per_step=0", "budget.env_steps=256"), "updates_per_step=0"),
        (("optimizer.lr=1e30",), "loss and grad_norm must be finite"),
        ((*OWN_ENV, "+env.settings.fault=raises"), "doctors.py:21"),
        ((*OWN_ENV, "+env.settings.fault=unknown"), "reward"),
        (("env=gym", "env.id=nowhere:Nowhere-v0", "trust=[nowhere.]"), "nowhere"),
        (("encoder._target_=doctors.Encoder", "trust=[doctors.]"), "doctors.py:28"),
        (
            ("workers.num_processes=4096",),
            "workers.num_processes: must leave a core to the learner, got 4096",
        ),
        (("run.root=taken",), "run.root: must be a folder to write into, got taken"),
        (("env=metaworld",), "metaworld"),
        (("data=npz", "data.path=nowhere/*.npz"), "nowhere"),
        (("encoder=memoryles",), "memoryless"),
        (("device=cuda",), "device"),
    ],
)
def test_a_broken_set_up_is_named_in_one_line(
    arguments, told, doctor, own_module, tmp_path, monkeypatch
):
    own_module("doctors", OWN)
    monkeypatch.setitem(sys.modules, "metaworld", None)  # as if it were not installed
    (tmp_path / "taken").write_text("a file")
    status, out, err = doctor(*TINY, *arguments)
    lines = problems(out) + [line for line in err.splitlines() if "to mend" not in line]
    assert status in (1, 2)
    assert len(lines) == 1
    assert told in lines[0]


def test_a_trial_without_updates_is_given_up_after_some_times_its_seconds(
    doctor, own_module, monkeypatch
):
    own_module("doctors", OWN)
    monkeypatch.setattr(trial, "_PATIENCE", 1)
    status, out, _ = doctor(*TINY, *OWN_ENV, "+env.settings.fault=endless")
    (line,) = problems(out)
    assert status == 1
    assert "no episode has ended" in line


def test_an_unusable_store_is_named_beside_what_else_is_wrong(doctor, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    store = ("logger=mlflow", "logger.tracking_uri=http://127.0.0.1:9")
    schedule = ("schedule.learning_starts=1000000", "budget.env_steps=1000")
    status, out, err = doctor(*TINY, *store, *schedule)
    assert status == 1
    assert err == "doctor: 2 to mend\n"
    store, schedule = problems(out)
    assert store.startswith("tracking_uri:")
    assert schedule.startswith("schedule:")
    assert "learning_starts=1000000" in schedule


def test_parts_that_cannot_be_built_are_named_beside_a_device_that_is_not_there(
    doctor, monkeypatch
):
    monkeypatch.setitem(sys.modules, "metaworld", None)
    status, out, err = doctor(*TINY, "env=metaworld", "device=cuda")
    assert (status, err) == (1, "doctor: 2 to mend\n")
    assert [line.partition(":")[0] for line in problems(out)] == ["device", "env"]
    assert "trial:" not in out


def without_cuda(monkeypatch, folder):
    (folder / "nvidia-smi").write_text("#!/bin/sh\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return "torch: there is a GPU, and torch"


def too_many_threads(monkeypatch, folder):
    monkeypatch.setenv("OMP_NUM_THREADS", "4096")
    return "OMP_NUM_THREADS: must be from 1 to the"


def several_processes(monkeypatch, folder):
    for name, value in {"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    return "torchrun: must start one run of train or offline"


def read_only(monkeypatch, folder):
    monkeypatch.setattr(
        os, "access", lambda path, mode: False
    )  # who tests may be root, who may write anywhere
    return "run.root: must be a folder to write into, got runs"


@pytest.mark.parametrize("spoil", [without_cuda, too_many_threads, several_processes, read_only])
def test_a_machine_that_does_not_fit_is_named_in_one_line(spoil, doctor, tmp_path, monkeypatch):
    told = spoil(monkeypatch, tmp_path)
    status, out, err = doctor(*TINY)
    lines = problems(out) + [line for line in err.splitlines() if "to mend" not in line]
    assert status in (1, 2)
    assert len(lines) == 1
    assert told in lines[0]


def test_a_disk_and_a_memory_that_are_too_small_are_named_and_nothing_is_left_behind(
    doctor, tmp_path, monkeypatch
):
    monkeypatch.setattr(machine, "disk_left", lambda folder: 1e5)
    monkeypatch.setattr(machine, "memory_left", lambda: -1e9)
    status, out, err = doctor(*TINY)
    assert (status, err) == (1, "doctor: 2 to mend\n")
    memory, disk = problems(out)
    assert memory.startswith("memory: must be")
    assert disk.startswith("run.root: must have 0.0")
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_is_refused_before_anything_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(RECIPE), "-m", *TINY, "seed=0,1"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(RECIPE), run_name="__main__")
    told = capsys.readouterr().err
    assert (ended.value.code, told) == (
        2,
        "doctor: -m: must be left out, the doctor looks at one run\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_it_and_leaves_nothing_behind(begin_forked, tmp_path):
    program = "import runpy, sys; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
    settings = (*TINY, "budget.updates=null", "budget.minutes=60", "measure.seconds=600")
    process, until = (
        begin_forked(program, str(RECIPE), *settings, cwd=tmp_path),
        time.monotonic() + 60,
    )
    while not list(tmp_path.glob("runs/.doctor-*/trial/*")):
        assert time.monotonic() < until
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    done = process.wait()
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
