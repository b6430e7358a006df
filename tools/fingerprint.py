"""Whether a change changes numbers: hashes of what short seeded runs end with.

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
_TRAIN = (
    "train",
    *_SMALL,
    "schedule.updates_per_step=0.01",
    "schedule.anneal_lr=false",
    "budget.updates=24",
)
CASES: dict[str, tuple[str, ...]] = {
    "transformer": _TRAIN,
    "sigma": (*_TRAIN, "encoder.sigma_reparam=true"),
    "gru": (*_TRAIN, "encoder=gru"),
    "lstm": (*_TRAIN, "encoder=lstm"),
    "linear_recurrent": (*_TRAIN, "encoder=linear_recurrent"),
    "memoryless": (*_TRAIN, "encoder=memoryless"),
    "window": (*_TRAIN, "encoder=window"),
    "wind": (*_TRAIN, "env=wind", "relabel=none"),
    "bfloat16": (*_TRAIN, "schedule.autocast=bfloat16"),
    "ppo": (
        "ppo",
        "logger=none",
        "debug=tiny",
        "budget.updates=24",
        "schedule.steps_per_iteration=256",
    ),
    "distill": ("distill", "logger=none", "debug=tiny", "budget.updates=12"),
    "resumed": _TRAIN,
}
"""Recipe and overrides of every case."""


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors of nested containers."""
    if isinstance(value, torch.Tensor):
        return [value]
    items = (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, list | tuple)
        else ()
    )
    return [tensor for item in items for tensor in tensors(item)]


def digest(parts: list[bytes]) -> str:
    """A short hash of parts in any order."""
    return hashlib.sha256(
        b"".join(sorted(hashlib.sha256(part).digest() for part in parts))
    ).hexdigest()[:12]


def fingerprint(run: Path) -> str:
    """The two hashes of a run that has ended."""
    last = max((run / "checkpoints").glob("step-*.pt"))
    components = torch.load(last, weights_only=True)["components"]
    agent = [
        t.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for t in tensors(components["agent"])
    ]
    progress = components["progress"]
    counted = [repr(sorted(point.items())).encode() for point in progress["curve"]]
    counted.append(
        repr([progress[name] for name in ("env_steps", "updates", "aborted", "outcomes")]).encode()
    )
    return f"agent {digest(agent)}  run {digest(counted)}"


def play(case: str, root: Path, folder: Path) -> str:
    """Runs one case and returns its hashes."""
    recipe, *overrides = CASES[case]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(str(root / name) for name in ("components", "envs"))
    command = [
        sys.executable,
        str(root / "recipes" / f"{recipe}.py"),
        *overrides,
        f"run.root={folder}",
        "run.name=run",
    ]
    parts = (
        [["budget.updates=12"], ["budget.updates=24", "resume=true"]] if case == "resumed" else [[]]
    )
    for part in parts:
        done = subprocess.run(
            [*command, *part], env=environment, cwd=folder, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(
                f"{case}: {' '.join(command)} ended with {done.returncode}\n{done.stderr}"
            )
    return fingerprint(folder / "run")


def main() -> None:
    """Prints a line for every case."""
    parser = argparse.ArgumentParser(description="hashes of what short seeded runs end with")
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
