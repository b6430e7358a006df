"""The laws of this folder, each file in a process of its own: the emulated device is there for a whole process."""

import subprocess
import sys
from pathlib import Path

import pytest
from emulated_cuda.building import missing

HERE = Path(__file__).parent
LAWS = sorted(path.stem for path in HERE.glob("laws_of_*.py"))

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no emulated device: {missing()}")


def laws(name: str, *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(HERE / "program.py"), "laws", str(HERE / f"{name}.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parents[1])


@pytest.mark.parametrize("name", LAWS)
def test_laws_hold_on_the_emulated_device(name):
    done = laws(name, "-m", "not slow")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
