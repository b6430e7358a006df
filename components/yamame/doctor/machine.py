"""What the machine has, and what of it a configuration cannot use or wastes."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch
from omegaconf import DictConfig

_GROUP = Path("/sys/fs/cgroup")
"""Where Linux says how much memory a container may take."""
GIGABYTE = 1e9


def memory_left() -> float:
    """Bytes that this process may still take; of a container what its limit leaves."""
    left = float(psutil.virtual_memory().available)
    try:
        limit, used = (
            (_GROUP / f"memory.{name}").read_text().strip() for name in ("max", "current")
        )
        return left if limit == "max" else min(left, float(limit) - float(used))
    except (OSError, ValueError):
        return left


def disk_left(folder: Path) -> float:
    """Bytes that are free where a folder is, or will be."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return float(shutil.disk_usage(there).free)


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def described(cfg: DictConfig) -> str:
    """The machine in a line."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    idle = (
        ["which device=cpu leaves idle"] if gpus and torch.device(cfg.device).type == "cpu" else []
    )
    return ", ".join(
        [
            f"{num_cores()} cores, of which torch uses {torch.get_num_threads()}",
            f"{memory_left() / GIGABYTE:.1f} GB of memory",
            f"{disk_left(Path(cfg.run.root)) / GIGABYTE:.1f} GB of disk at {cfg.run.root}",
            *(gpus or ["no GPU"]),
            *idle,
        ]
    )


def problems(cfg: DictConfig) -> Iterator[str]:
    """What stands in the way of a run, a line each."""
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    if not threads.isdecimal() or not 0 < int(threads) <= num_cores():
        yield f"OMP_NUM_THREADS: must be from 1 to the {num_cores()} cores there are, got {threads!r}; unset it"
    if not torch.cuda.is_available() and shutil.which("nvidia-smi"):
        why = "was built without CUDA" if torch.version.cuda is None else "does not get at it"
        yield (
            f"torch: there is a GPU, and torch {torch.__version__} {why}; https://pytorch.org says which build "
            "fits its driver"
        )
    workers = cfg.workers.num_processes
    if workers >= num_cores() > 1:
        yield f"workers.num_processes: must leave a core to the learner, got {workers} of {num_cores()}"
    folder = Path(cfg.run.root)
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        yield f"run.root: must be a folder to write into, got {cfg.run.root}, where {there} is none"
