"""Print hashes of the results of short seeded runs, to see whether a change changes numbers.

    python tools/fingerprint.py                    # all cases, a line each
    python tools/fingerprint.py transformer ppo    # some
    python tools/fingerprint.py --root /tmp/other_checkout

Every case is a run of a recipe in a process of its own. Its line has a hash of the agent's tensors
(parameters and statistics, whatever they are called) and one of what the run counted and evaluated.
Equal hashes: the same run to the last bit. They hold for one machine, one thread and one version of
torch. The case ``resumed`` ends after half of its updates and is resumed: its agent must be that of
``transformer`` (its run has one evaluation more).
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

_SMALL = (
    *("logger=none", "debug=tiny", "schedule.num_envs=8", "schedule.steps_per_iteration=256"),
    *("evaluation.interval=2000", "evaluation.num_episodes=16", "budget.minutes=null"),
)
_FORMER = (
    *("optimizer=adamw", "agent=amago_paper", "schedule.regulator=null"),
    *("schedule.average_decay=null", "schedule.autocast=null"),
    "schedule.batch_timesteps=null",
)
"""Settings that the cases were made with; the case ``default`` has those of the recipe."""
_TRAIN = (
    "train",
    *_SMALL,
    *_FORMER,
    "schedule.updates_per_step=0.01",
    "schedule.anneal_lr=false",
    "exploration.anneal_steps=60000",
    "budget.updates=24",
)
_DEEP = ("encoder=transformer_deep",)
_OFFLINE = (
    *("logger=none", "debug=tiny", "data=runs", "budget.updates=24", "budget.minutes=null"),
    *("evaluation.interval=8", "evaluation.num_episodes=16", "schedule.anneal_lr_from=null"),
)
CASES: dict[str, tuple[str, ...]] = {
    "default": (
        *("train", "logger=none", "budget.minutes=null", "budget.env_steps=8192"),
        *("evaluation.num_episodes=16", "evaluation.video_frames=1"),
    ),
    "transformer": (*_TRAIN, *_DEEP),
    "sigma": (*_TRAIN, *_DEEP, "encoder.sigma_reparam=true"),
    "gru": (*_TRAIN, "encoder=gru", "encoder.num_layers=2"),
    "lstm": (*_TRAIN, "encoder=lstm", "encoder.num_layers=2"),
    "linear_recurrent": (*_TRAIN, "encoder=linear_recurrent"),
    "memoryless": (*_TRAIN, "encoder=memoryless"),
    "window": (*_TRAIN, "encoder=window"),
    "wind": (*_TRAIN, *_DEEP, "env=wind", "relabel=none"),
    "bfloat16": (*_TRAIN, *_DEEP, "schedule.autocast=bfloat16"),
    "ppo": (
        "ppo",
        "logger=none",
        "debug=tiny",
        "encoder.num_layers=2",
        "budget.updates=24",
        "schedule.steps_per_iteration=256",
    ),
    "distill": (
        *("distill", "logger=none", "debug=tiny", "budget.updates=12"),
        "schedule.anneal_lr_from=null",
    ),
    "offline": ("offline", *_OFFLINE),
    "resumed": (*_TRAIN, *_DEEP),
}
"""Recipe and overrides of every case. ``offline`` learns from the replay of ``transformer``."""


def tensors(value: Any) -> list[torch.Tensor]:
    """Return all tensors of nested containers."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        items = list(value.values())
    elif isinstance(value, list | tuple):
        items = list(value)
    else:
        items = []
    return [tensor for item in items for tensor in tensors(item)]


def digest(parts: list[bytes]) -> str:
    """Return a short hash of parts in any order."""
    hashes = sorted(hashlib.sha256(part).digest() for part in parts)
    return hashlib.sha256(b"".join(hashes)).hexdigest()[:12]


def fingerprint(run: Path) -> str:
    """Return the two hashes of a finished run."""
    last = max((run / "checkpoints").glob("step-*.pt"))
    components = torch.load(last, weights_only=True)["components"]
    agent = []
    for tensor in tensors(components["agent"]):
        # NumPy has no bfloat16, so the bytes are compared.
        agent.append(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())

    progress = components["progress"]
    counts = [progress[name] for name in ("env_steps", "updates", "aborted", "outcomes")]
    counted = [repr(sorted(point.items())).encode() for point in progress["curve"]]
    counted.append(repr(counts).encode())
    return f"agent {digest(agent)}  run {digest(counted)}"


def execute(root: Path, folder: Path, name: str, recipe: str, overrides: list[str]) -> None:
    """Run a recipe of a checkout in a process of its own, with one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(str(root / name) for name in ("components", "envs"))
    script = str(root / "recipes" / f"{recipe}.py")
    command = [sys.executable, script, *overrides, f"run.root={folder}", f"run.name={name}"]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr}")


def play(case: str, root: Path, folder: Path) -> str:
    """Run one case and return its hashes."""
    recipe, *overrides = CASES[case]
    if case == "resumed":
        execute(root, folder, "run", recipe, [*overrides, "budget.updates=12"])
        execute(root, folder, "run", recipe, [*overrides, "budget.updates=24", "resume=true"])
    elif case == "offline":
        _, *training = CASES["transformer"]
        execute(root, folder, "data", "train", training)
        execute(root, folder, "run", recipe, [*overrides, f"data.path={folder / 'data'}"])
    else:
        execute(root, folder, "run", recipe, overrides)
    return fingerprint(folder / "run")


def main() -> None:
    """Print a line for every case."""
    parser = argparse.ArgumentParser(description="hashes of the results of short seeded runs")
    parser.add_argument("cases", nargs="*", help=", ".join(CASES))
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    arguments = parser.parse_args()
    if unknown := set(arguments.cases) - set(CASES):
        parser.error(f"cases must be among {', '.join(CASES)}, got {', '.join(sorted(unknown))}")
    for case in arguments.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{case:18s}{play(case, arguments.root.resolve(), Path(folder))}", flush=True)


if __name__ == "__main__":
    main()
