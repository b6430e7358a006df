"""The laws of this folder, in a process of their own: the emulated device is there for a whole
process.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from emulated_cuda.building import missing

HERE = Path(__file__).parent
LAWS = (
    "device",
    "first_gpu_run",
    "jax",
    "precision",
    "ranks",
    "recipes",
    "recording",
    "refusals",
    "synchronisation",
)
BROKEN = "import torch\n\ndef test_it():\n    torch.zeros(1, device='cuda') + torch.zeros(1)\n"

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no emulated device: {missing()}")


def run(names: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess:
    files = [str(HERE / f"laws_of_{name}.py") for name in names]
    command = [sys.executable, str(HERE / "program.py"), "laws", *files, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parents[1])


def test_all_laws_are_there():
    assert {path.stem for path in HERE.glob("laws_of_*.py")} == {f"laws_of_{name}" for name in LAWS}


@pytest.mark.timeout(1800)
def test_laws_hold_on_the_emulated_device_and_one_that_does_not_is_found(tmp_path):
    broken = tmp_path / "laws_of_nothing.py"
    broken.write_text(BROKEN)
    done = run(LAWS, str(broken), "-m", "not slow")
    told = re.findall(r"^(?:FAILED|ERROR) (.*)", done.stdout, re.MULTILINE)
    assert len(told) == 1, done.stdout[-8000:] + done.stderr[-2000:]
    assert "test_it" in told[0]
    assert "same device" in done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 50  # and not skipped
    assert done.returncode == 1


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_laws_hold_for_every_pair():
    done = run(("recipes", "recording"), "-m", "slow")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
