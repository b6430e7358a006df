"""Resources of the machine, and settings that it cannot serve."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from yamame.cli.sections import AnyConfig
from yamame.system.cores import usable_cores

GIGABYTE = 1e9
_GROUP = Path("/sys/fs/cgroup")
"""Folder in which Linux limits the memory of a container."""


def memory_left() -> float:
    """Return the memory in bytes that this process can still allocate."""
    available = float(psutil.virtual_memory().available)
    try:
        limit = (_GROUP / "memory.max").read_text().strip()
        used = (_GROUP / "memory.current").read_text().strip()
        if limit == "max":
            return available
        # psutil reports the memory of the host, of which a container may use less.
        return min(available, float(limit) - float(used))
    except (OSError, ValueError):
        return available


def disk_left(folder: Path) -> float:
    """Return the free space in bytes on the disk of a folder, which need not exist."""
    return float(shutil.disk_usage(_existing(folder)).free)


def _existing(folder: Path) -> Path:
    """Return a path, or the first of its parents that exists."""
    path = folder.absolute()
    while not path.exists():
        path = path.parent
    return path


def describe_machine(cfg: AnyConfig) -> str:
    """Describe the machine in one line."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    parts = [
        f"{usable_cores()} cores, of which torch uses {torch.get_num_threads()}",
        f"{memory_left() / GIGABYTE:.1f} GB of memory",
        f"{disk_left(Path(cfg.run.root)) / GIGABYTE:.1f} GB of disk at {cfg.run.root}",
        *(gpus or ["no GPU"]),
    ]
    if gpus and torch.device(cfg.device).type == "cpu":
        parts.append("which device=cpu leaves idle")
    return ", ".join(parts)


def problems(cfg: AnyConfig) -> Iterator[str]:
    """Yield a line for each setting or variable that keeps a run from beginning."""
    cores = usable_cores()
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    if not threads.isdecimal() or not 0 < int(threads) <= cores:
        allowed = f"must be from 1 to the {cores} cores there are"
        yield f"OMP_NUM_THREADS: {allowed}, got {threads!r}; unset it"

    # The driver's own program is there, so the machine has a GPU.
    if not torch.cuda.is_available() and shutil.which("nvidia-smi"):
        reason = "was built without CUDA" if torch.version.cuda is None else "cannot use it"
        yield (
            f"torch: there is a GPU, and torch {torch.__version__} {reason}; "
            "https://pytorch.org lists the builds for its driver"
        )

    workers = cfg.workers.num_processes
    if workers >= cores > 1:
        allowed = "must leave a core to the learner"
        yield f"workers.num_processes: {allowed}, got {workers} of {cores}"

    existing = _existing(Path(cfg.run.root))
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        allowed = "must be a folder to write into"
        yield f"run.root: {allowed}, got {cfg.run.root}; cannot write into {existing}"
