"""Costs of a run, forecast from a trial, and whether the machine can bear them."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
import torch

from yamame.cli.sections import AnyConfig
from yamame.doctor import machine
from yamame.doctor.machine import GIGABYTE
from yamame.doctor.trial import Forecast, Stopwatch


@dataclass(frozen=True)
class Costs:
    """Memory and disk of a run.

    Attributes:
        memory: Memory in bytes.
        replay: Part of the disk for replay, in bytes.
        disk: Disk in bytes, checkpoints included.
        gpu_memory: Memory of the GPU in bytes; None without one.
    """

    memory: float
    replay: float
    disk: float
    gpu_memory: float | None


def costs_of(watch: Stopwatch, whole: Forecast, cfg: AnyConfig) -> Costs:
    """Compute the costs of a run.

    Args:
        watch: Stopwatch of a trial that has ended.
        whole: Forecast of the run.
        cfg: Configuration of the run.
    """
    capacity = min(whole.env_steps, cfg.replay.get("capacity") or whole.env_steps)
    replay = watch.replay_bytes / max(1, watch.timesteps) * capacity
    # One checkpoint more than are kept, because the next is written before the oldest is deleted.
    disk = replay + watch.checkpoint_bytes * (cfg.checkpoint.keep + 1)
    gpu_memory = None
    if torch.device(cfg.device).type == "cuda":
        gpu_memory = float(torch.cuda.max_memory_allocated(cfg.device))
    return Costs(watch.memory, replay, disk, gpu_memory)


def describe_costs(watch: Stopwatch, whole: Forecast, costs: Costs) -> dict[str, str]:
    """Describe speed, memory, disk, time and end of a run, each in a line."""
    # A part that did not take place has no time.
    steps_per_s = 1 / max(watch.each("collecting"), 1e-9)
    updates_per_s = 1 / max(watch.each("learning"), 1e-9)
    memory = f"{costs.memory / GIGABYTE:.2f} GB"
    if costs.gpu_memory is not None:
        memory += f", {costs.gpu_memory / GIGABYTE:.2f} GB of the GPU's"
    disk = f"{costs.disk / GIGABYTE:.2f} GB, of which {costs.replay / GIGABYTE:.2f} GB are replay"
    speed = f"{steps_per_s:,.0f} steps/s while it collects"
    steps = f"{whole.env_steps:,} steps"
    time = timedelta(seconds=round(whole.total))
    cpu_s = whole.total * watch.cores
    # Parts of a run differ by orders of magnitude, so they are given as shares.
    parts = [f"{part} {seconds / whole.total:.0%}" for part, seconds in whole.seconds.items()]
    return {
        "speed": f"{speed}, {updates_per_s:,.1f} updates/s while it learns",
        "memory": memory,
        "disk": disk,
        "time": f"{time} ({whole.total:,.0f} s, {cpu_s:,.0f} CPU-seconds): {', '.join(parts)}",
        "end": f"budget.{whole.limit}, with {steps} and {whole.updates:,} updates",
    }


def cost_problems(watch: Stopwatch, whole: Forecast, costs: Costs, cfg: AnyConfig) -> list[str]:
    """Return a line for each resource that the machine lacks, and for a run without updates."""
    problems = []
    # The memory of this process is that of the trial, which the run will not need again.
    memory_left = machine.memory_left() + psutil.Process().memory_info().rss
    if memory_left < costs.memory:
        problems.append(f"memory: must be {costs.memory / GIGABYTE:.1f} GB, and there is less")
    if machine.disk_left(Path(cfg.run.root)) < costs.disk:
        needed = f"{costs.disk / GIGABYTE:.1f} GB of disk"
        problems.append(f"run.root: must have {needed}, and there is less")

    if whole.updates == 0:
        schedule = cfg.schedule
        problems.append(
            f"schedule: must make updates in {whole.env_steps} steps, got "
            f"learning_starts={schedule.learning_starts}, "
            f"updates_per_step={schedule.updates_per_step}"
        )
    elif watch.count("learning") == 0:
        steps = f"in the trial's {watch.count('collecting')} steps"
        if watch.timesteps > 0:
            problems.append(f"measure.seconds: must be longer; no update was made {steps}")
        else:
            problems.append(
                "measure.seconds: must be longer, or episodes bounded by env.time_limit; "
                f"no episode has ended, and so no update was made, {steps}"
            )
    return problems
