"""The laws of this folder, in processes of their own: the emulated device is there for a whole process."""

import subprocess
import sys
from pathlib import Path

import pytest
from emulated_cuda.building import missing

HERE = Path(__file__).parent
PROCESSES = (("device", "recording", "refusals", "synchronisation"), ("recipes",))
"""Laws that share a process, which takes seconds to begin."""

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no emulated device: {missing()}")


def assert_laws(names: tuple[str, ...], marks: str) -> None:
    files = [str(HERE / f"laws_of_{name}.py") for name in names]
    command = [sys.executable, str(HERE / "program.py"), "laws", *files, "-m", marks]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_all_laws_are_there():
    assert {path.stem for path in HERE.glob("laws_of_*.py")} == {f"laws_of_{n}" for p in PROCESSES for n in p}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("names", PROCESSES, ids="+".join)
def test_laws_hold_on_the_emulated_device(names):
    assert_laws(names, "not slow")


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_laws_hold_for_every_combination():
    assert_laws(("recipes", "recording"), "slow")


def test_a_law_that_does_not_hold_is_found(tmp_path):
    broken = tmp_path / "laws_of_nothing.py"
    broken.write_text("import torch\n\ndef test_it():\n    torch.zeros(1, device='cuda') + torch.zeros(1)\n")
    command = [sys.executable, str(HERE / "program.py"), "laws", str(broken)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "same device" in done.stdout
