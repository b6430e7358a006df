"""Part ``smoke``: tiny runs of the training recipe with the preset of a GPU, side by side."""

import os
import subprocess
import tempfile
import time
from pathlib import Path

from gpu.job import Job

RECIPE = Path(__file__).parents[2] / "recipes/train.py"
SMALL = ("encoder.d_model=32", "encoder.num_layers=1", "encoder.num_heads=2")


def runs(job: Job) -> dict[str, list[str]]:
    """Return the arguments of the recipe, by name of the run."""
    shortest = ["debug=tiny", "logger=none", f"device={job.device}", "evaluation.num_episodes=2"]
    preset = [*shortest, "hardware=gpu"] if job.cuda else shortest
    # Enough updates and steps that recordings are made and replayed.
    preset += [
        "budget.updates=12",
        "schedule.updates_per_step=0.1",
        "schedule.num_envs=4",
        "schedule.steps_per_iteration=64",
    ]
    door = ["experiment=dark_key_to_door", "schedule.learning_starts=0", "budget.env_steps=null"]
    return {
        "door": [*door, *preset, "env.time_limit=60", *SMALL],
        "maze": ["env=mazerunner", *preset, "env.time_limit=60", *SMALL],
        "gru": ["env=tmaze", "encoder=gru", *preset],
        "muon": ["env=tmaze", "optimizer=muon", *preset, *SMALL],
        "float32": ["env=tmaze", *shortest, *SMALL],
    }


def run(job: Job) -> None:
    """Run as many recipes at a time as there are cores, and write how each ended."""
    waiting = [(name, arguments) for name, arguments in runs(job).items() if job.chosen(name)]
    going: dict[str, tuple[subprocess.Popen[bytes], Path, float]] = {}
    together = max(1, (os.cpu_count() or 1) // 3)
    with tempfile.TemporaryDirectory() as folder:
        while waiting or going:
            while waiting and len(going) < together:
                name, arguments = waiting.pop(0)
                output = Path(folder) / f"{name}.txt"
                command = [
                    *job.launcher,
                    str(RECIPE),
                    f"run.root={folder}",
                    f"run.name={name}",
                    *arguments,
                ]
                with output.open("w") as file:
                    process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
                going[name] = process, output, time.monotonic()
            for name, (process, output, begin) in list(going.items()):
                if process.poll() is None:
                    continue
                del going[name]
                text = output.read_text(errors="replace")
                value = "ok"
                if process.returncode != 0:
                    value = f"status {process.returncode}: {text[-700:]}"
                elif job.cuda and name != "float32" and "CUDA graphs" not in text:
                    value = "no update was recorded"
                seconds = round(time.monotonic() - begin, 1)
                job.note(name, value, wrong=value != "ok", seconds=seconds)
            time.sleep(0.2)
