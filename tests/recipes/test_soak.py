"""A run of minutes that grows nowhere: memory, descriptors, threads, its directory, MLflow's
database.

``SOAK_MINUTES`` is how long it takes:

    SOAK_MINUTES=10 pytest -m slow -s tests/recipes/test_soak.py
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "train.py"
MINUTES = float(os.environ.get("SOAK_MINUTES", "10"))
SETTINGS = [
    "env=mazerunner",
    "env.size=9",
    "encoder=transformer",
    "schedule.steps_per_iteration=64",
    "schedule.batch_size=8",
    "schedule.learning_starts=512",
    "replay.capacity=20000",
    "checkpoint.interval=2000",
    "evaluation.interval=20000",
    "evaluation.num_episodes=16",
    "budget.env_steps=1000000000",
    "run.name=soak",
]
MIB = 2**20


def size(path: Path) -> int:
    """Bytes of all files below a directory, or of a file; those that are gone in the meantime count
    nothing.
    """
    total = 0
    for file in path.rglob("*") if path.is_dir() else [path]:
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            continue
    return total


def sample(process: Path, folder: Path) -> dict[str, float]:
    """What a running process takes, in MiB and pieces."""
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return {
        "memory": int(status["VmRSS"].split()[0]) / 1024,
        "descriptors": len(list((process / "fd").iterdir())),
        "threads": int(status["Threads"]),
        # The log grows by a line per iteration.
        "run directory": (size(folder / "runs/soak") - size(folder / "runs/soak/metrics.jsonl"))
        / MIB,
        "mlflow.db": size(folder / "mlflow.db") / MIB,
    }


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES + 300)
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_a_run_grows_nowhere(tmp_path):
    command = [sys.executable, str(RECIPE), *SETTINGS, f"budget.minutes={MINUTES}"]
    samples, began = [], time.monotonic()
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as run:
        while (
            run.poll() is None and time.monotonic() < began + 54 * MINUTES
        ):  # its end draws pictures
            time.sleep(5)
            if time.monotonic() > began + 18 * MINUTES:  # replay is full and everything is imported
                samples.append(sample(Path(f"/proc/{run.pid}"), tmp_path))
    assert run.returncode == 0
    done = json.loads((tmp_path / "runs/soak/summary.json").read_text())
    half = len(samples) // 2
    first, last = (
        {k: float(np.median([s[k] for s in part])) for k in samples[0]}
        for part in (samples[:half], samples[half:])
    )
    print(f"{done['env_steps']} steps, {done['updates']} updates in {MINUTES} minutes")
    for name in first:
        print(f"{name}: {first[name]:.1f} in the first half, {last[name]:.1f} in the second")
    assert last["memory"] < 1.02 * first["memory"]
    assert last["descriptors"] <= first["descriptors"] + 2
    assert last["threads"] <= first["threads"]
    assert last["run directory"] < 1.1 * first["run directory"] + 1
    assert (
        last["mlflow.db"] < first["mlflow.db"] + 3
    )  # 256 points of every metric per doubling of the steps
