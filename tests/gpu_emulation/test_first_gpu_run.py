"""The script that measures on a GPU, as it is called there, on the emulated device."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from emulated_cuda.building import missing

HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "tools/first_gpu_run.py"

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no emulated device: {missing()}")


def run(out, *arguments):
    """Runs it: its exit status, and its results by part and name."""
    command = [sys.executable, str(HERE / "program.py"), "run", str(SCRIPT), "run", "--tiny", f"--out={out}"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    lines = (out / "results.jsonl").read_text().splitlines()
    return done.returncode, {(line["part"], line["name"]): line["value"] for line in map(json.loads, lines)}


def test_parts_and_the_recipes_that_they_start_get_the_device(tmp_path):
    status, found = run(tmp_path, "--minutes=20", "--parts=machine:launches,smoke:door")
    assert (tmp_path / "table.md").exists()
    assert status == 0, (tmp_path / "output.txt").read_text()[-5000:]
    assert found["machine", "kernel in a graph"] > 0
    assert found["smoke", "door"] == "ok"  # and its updates were recorded


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_runs_of_recipes_are_recorded(tmp_path):
    status, found = run(tmp_path, "--minutes=60", "--parts=smoke")
    assert status == 0, (tmp_path / "output.txt").read_text()[-5000:]
    assert [value for (part, _), value in found.items() if part == "smoke"] == ["ok"] * 5
