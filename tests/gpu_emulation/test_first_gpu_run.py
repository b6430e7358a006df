"""The script that measures on a GPU, as it is called there, on the emulated device."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from emulated_cuda.building import missing

HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "tools/first_gpu_run.py"

HANGING = """
import subprocess, sys, time
from pathlib import Path

if "machine" in sys.orig_argv:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = subprocess.Popen(command, start_new_session=True)
    Path({pid!r}).write_text(str(child.pid))
    time.sleep(600)
"""
"""Executed when an interpreter starts: the part ``machine`` starts a process, and hangs."""

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no emulated device: {missing()}")


def run(out, *arguments):
    """Runs it: its exit status, and its results by part and name."""
    command = [
        sys.executable,
        str(HERE / "program.py"),
        "run",
        str(SCRIPT),
        "run",
        "--tiny",
        f"--out={out}",
    ]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    lines = (out / "results.jsonl").read_text().splitlines()
    return done.returncode, {
        (line["part"], line["name"]): line["value"] for line in map(json.loads, lines)
    }


def test_parts_and_the_recipes_that_they_start_get_the_device(tmp_path):
    status, found = run(tmp_path, "--minutes=20", "--parts=machine:launches,smoke:door")
    assert (tmp_path / "table.md").exists()
    assert status == 0, (tmp_path / "output.txt").read_text()[-5000:]
    assert found["machine", "kernel in a graph"] > 0
    assert found["smoke", "door"] == "ok"  # and its updates were recorded


def test_a_part_that_hangs_leaves_no_process_behind(tmp_path, monkeypatch):
    pid, out = tmp_path / "pid", tmp_path / "out"
    (tmp_path / "sitecustomize.py").write_text(HANGING.format(pid=str(pid)))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    )
    command = [
        sys.executable,
        str(HERE / "program.py"),
        "run",
        str(SCRIPT),
        "--tiny",
        "--minutes=0.3",
    ]
    subprocess.run([*command, f"--out={out}"], capture_output=True, check=False)
    child = int(pid.read_text())
    time.sleep(1)
    alive = psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE
    if alive:
        psutil.Process(child).kill()
    assert not alive


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_runs_of_recipes_are_recorded(tmp_path):
    status, found = run(tmp_path, "--minutes=60", "--parts=smoke")
    assert status == 0, (tmp_path / "output.txt").read_text()[-5000:]
    assert [value for (part, _), value in found.items() if part == "smoke"] == ["ok"] * 5
