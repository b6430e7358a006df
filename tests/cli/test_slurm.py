"""Sweeps under Slurm, of which programs of the same names stand in: GPUs, and jobs that are ended
in time and go on.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from yamame.checks import UsageError
from yamame.cli import app, jobs
from yamame.cli.slurm import check_requeued, request_gpus, requeued
from yamame.system.signals import Terminated, exit_if_received, handling

SBATCH = """#!{python}
import os, subprocess, sys
from pathlib import Path

place = Path({place!r})
text = Path(sys.argv[-1]).read_text()
(place / "submitted").write_text(text)
if "YAMAME_STAND_IN" not in os.environ:
    # Slurm runs jobs after sbatch has ended.
    own = {{"YAMAME_STAND_IN": "1", "SLURM_JOB_ID": "12", "SLURM_PROCID": "0"}}
    own |= {{"SLURM_STEP_NUM_TASKS": "1"}}
    silent = {{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}}
    subprocess.Popen([sys.executable, *sys.argv], env={{**os.environ, **own}}, **silent)
    print("Submitted batch job 12")
    sys.exit()
for number in range(100):
    (place / "requeued").unlink(missing_ok=True)
    with open(place / f"output-{{number}}", "w") as output:
        subprocess.run(["bash", sys.argv[-1]], stdout=output, stderr=output)
    if not (place / "requeued").exists():
        break
(place / "ended").touch()
"""
SRUN = """#!{python}
import os, subprocess, sys

# The options of srun come first, two of them with a value.
start = next(i for i, text in enumerate(sys.argv[1:], 1) if "python" in text.rpartition("/")[2])
sys.exit(subprocess.run(sys.argv[start:]).returncode)
"""
SACCT = """#!{python}
from pathlib import Path

place = Path({place!r})
print("JobID|State|NodeList")
print("12|" + ("COMPLETED" if (place / "ended").exists() else "RUNNING") + "|here")
"""
SCONTROL = """#!{python}
import sys
from pathlib import Path

if sys.argv[1] == "requeue":
    (Path({place!r}) / "requeued").write_text(sys.argv[2])
"""
PROGRAMS = {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scontrol": SCONTROL}

RECIPE = """
import os, signal, sys
from pathlib import Path

from yamame.cli.app import main
from yamame.system.signals import exit_if_received, handling


def task(cfg):
    starts = Path("starts")
    number = int(starts.read_text()) + 1 if starts.exists() else 1
    starts.write_text(str(number))
    with handling(at_once=False):  # as a run does
        if number == 1:
            os.kill(os.getpid(), signal.SIGUSR2)  # as Slurm does before the time is over
        exit_if_received()
    return number / 10


if __name__ == "__main__":
    main(task, config_name="train", config_dir=Path.cwd(), needs_store=False)
"""


@pytest.fixture
def sweep(tmp_path, monkeypatch, write_recipe):
    """Runs the recipe with ``-m`` and a stand-in for Slurm."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    place = tmp_path / "slurm"
    place.mkdir()
    for name, text in PROGRAMS.items():
        (place / name).write_text(text.format(python=sys.executable, place=str(place)))
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    write_recipe(RECIPE, launcher="slurm")

    def run(*arguments):
        command = [sys.executable, "recipe.py", "-m", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
        )
        return done, place

    return run


@pytest.mark.cluster
def test_a_job_asks_for_a_gpu_and_is_requeued_when_its_time_is_over(sweep, tmp_path):
    done, place = sweep("seed=3")
    outputs = "\n".join(path.read_text() for path in sorted(place.glob("output-*")))
    assert done.returncode == 0, done.stderr + outputs
    submitted = (place / "submitted").read_text()
    assert re.search(r"^#SBATCH --gpus-per-node=1$", submitted, re.MULTILINE)
    assert re.search(r"^#SBATCH --requeue$", submitted, re.MULTILINE)
    assert re.search(r"^#SBATCH --signal=USR2@300$", submitted, re.MULTILINE)
    assert (tmp_path / "starts").read_text() == "2"
    assert len(list(place.glob("output-*"))) == 2
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("0 ")]
    assert (row[1], row[-1]) == ("ran", "0.2")


LAUNCHER = {"gpus_per_node": None, "partition": "gpu"}


@pytest.mark.parametrize(
    ("cfg", "expected"),
    [
        ({"device": "cuda", "hydra": {"launcher": LAUNCHER}}, 1),
        ({"device": "cpu", "hydra": {"launcher": LAUNCHER}}, None),
        ({"hydra": {"launcher": LAUNCHER}}, None),
        ({"device": "cuda", "hydra": {"launcher": {**LAUNCHER, "gpus_per_node": 2}}}, 2),
        ({"device": "cuda:1", "hydra": {"launcher": {**LAUNCHER, "gpus_per_node": 2}}}, 2),
    ],
)
def test_a_gpu_is_asked_for_with_a_device_that_is_one(cfg, expected):
    cfg = OmegaConf.create(cfg)
    OmegaConf.set_struct(cfg, True)
    request_gpus(cfg)
    assert cfg.hydra.launcher.gpus_per_node == expected


def test_a_gpu_is_asked_for_if_any_job_of_the_sweep_uses_one():
    cfg = OmegaConf.create({"device": "cpu", "hydra": {"launcher": LAUNCHER}})
    request_gpus(cfg, ["cpu", "cuda"])
    assert cfg.hydra.launcher.gpus_per_node == 1
    with pytest.raises(UsageError, match=r"device.*cuda:1"):
        request_gpus(OmegaConf.create({"hydra": {"launcher": LAUNCHER}}), ["cpu", "cuda:1"])


def test_an_index_is_refused_where_every_job_has_a_gpu_of_its_own_and_others_are_left_alone():
    with pytest.raises(UsageError, match=r"device.*cuda:1"):
        request_gpus(OmegaConf.create({"device": "cuda:1", "hydra": {"launcher": LAUNCHER}}))
    other = OmegaConf.create({"device": "cuda:1", "hydra": {"launcher": {"n_jobs": 2}}})
    request_gpus(other)
    assert other.hydra.launcher == {"n_jobs": 2}


@pytest.mark.parametrize(
    ("received", "executor", "called"),
    [
        (signal.SIGUSR2, "slurm", True),
        (signal.SIGTERM, "slurm", False),
        (None, "slurm", False),
        (signal.SIGUSR2, None, False),
    ],
)
def test_the_hook_is_that_of_submitit_and_its_signal_alone(received, executor, called, monkeypatch):
    calls = []
    monkeypatch.delenv("SUBMITIT_EXECUTOR", raising=False)
    if executor is not None:
        monkeypatch.setenv("SUBMITIT_EXECUTOR", executor)
    ended = Terminated()
    ended.signal = received
    former = signal.signal(signal.SIGUSR2, lambda number, frame: calls.append(number))
    try:
        with pytest.raises(Terminated), requeued():
            raise ended
    finally:
        signal.signal(signal.SIGUSR2, former)
    assert calls == [signal.SIGUSR2] * called


def end_by_signal():
    with app._reporting("train", OmegaConf.create({})), handling(at_once=False):
        os.kill(os.getpid(), signal.SIGUSR2)
        exit_if_received()


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_job_is_requeued_also_when_the_command_of_its_sweep_has_ended(
    has_folder, tmp_path, monkeypatch
):
    calls = []
    hydra_config = OmegaConf.create({"job": {"num": 0}, "overrides": {"task": []}})
    monkeypatch.setattr(jobs.HydraConfig, "get", lambda: hydra_config)
    monkeypatch.setattr(app, "is_job", lambda: True)
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setenv(jobs.SWEEP_VARIABLE, str(tmp_path if has_folder else tmp_path / "gone"))
    former = signal.signal(signal.SIGUSR2, lambda number, frame: calls.append(number))
    try:
        with pytest.raises(Terminated):
            end_by_signal()
    finally:
        signal.signal(signal.SIGUSR2, former)
    assert calls == [signal.SIGUSR2]
    assert (tmp_path / "0.json").exists() == has_folder


TIMES = {"signal_delay_s": 300, "timeout_min": 60}


@pytest.mark.parametrize(
    ("launcher", "overwrite", "key"),
    [
        (TIMES, False, None),
        (TIMES, True, "run.overwrite"),
        (TIMES | {"timeout_min": 5}, False, "hydra.launcher.signal_delay_s"),
        ({"n_jobs": 2}, True, None),
    ],
)
def test_a_job_that_would_begin_anew_or_end_at_once_is_refused(launcher, overwrite, key):
    cfg = OmegaConf.create({"run": {"overwrite": overwrite}, "hydra": {"launcher": launcher}})
    if key is None:
        check_requeued(cfg)
        return
    with pytest.raises(UsageError, match=re.escape(key)):
        check_requeued(cfg)


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["install.md", "scale.md"])
@pytest.mark.parametrize(("status", "requeued"), [(0, ""), (1, ""), (75, "requeue 12\n")])
def test_a_batch_script_of_the_pages_is_requeued_and_fails_as_the_run_does(
    page, status, requeued, tmp_path
):
    (script,) = re.findall(r"^#!/bin/bash\n.*?(?=^```)", (DOCS / page).read_text(), re.M | re.S)
    venv = tmp_path / "yamame/.venv/bin"
    venv.mkdir(parents=True)
    (venv / "activate").touch()
    calls = tmp_path / "calls"
    calls.touch()
    programs = {"srun": f"exit {status}", "scontrol": f'echo "$@" >>{calls}'}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin", "HOME": str(tmp_path)}
    env |= {"SLURM_JOB_ID": "12", "SLURM_CPUS_PER_TASK": "8"}
    done = subprocess.run(["bash", "-c", script], env=env, timeout=60, check=False)
    assert (done.returncode, calls.read_text()) == (status, requeued)
