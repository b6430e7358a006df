"""Part ``speed``: updates and steps per second, and where their time goes."""

import os
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from benchmark_sections import Subject
from gpu.job import Job
from gpu.subjects import BFLOAT16, SETTINGS, batch_of, collector_of, subject_of
from speed import counting_flops
from yamame.replay import TrajectoryReplayBuffer, Window, pack
from yamame.training import Prefetcher

PEAK = 989e12
"""FLOP/s of dense products in bfloat16, by the datasheets of the H100 and the H200."""
STEPS, UPDATES = 8_000_000, 127_872
"""Environment steps and updates of the published fit of Dark Key-To-Door."""
BEST = "bfloat16, recorded"
ACTING = ((BEST, 128), ("bfloat16", 128), ("float32", 12), (BEST, 1024), (BEST, 12))
SHAPES = ((24, 501), (96, 501), (256, 501), (24, 1000))


def run(job: Job) -> None:
    """Measure, the most important first."""
    milliseconds: dict[str, float] = {}
    if job.chosen("updates"):
        for name in SETTINGS:
            with job.attempt(f"update, {name}"):
                milliseconds[f"update, {name}"] = update(job, 16, 501, name)
    if job.chosen("acting"):
        for name, num_envs in ACTING[: 3 if job.tiny else None]:
            with job.attempt(f"step of {num_envs} environments, {name}"):
                milliseconds[f"step of {num_envs}, {name}"] = step(job, num_envs, name)
    with job.attempt("recorded against ordinary"):
        compare_recorded(job, milliseconds)
    with job.attempt("whole fit"):
        projected(job, milliseconds)
    if job.chosen("shapes"):
        for size, length in SHAPES[: 1 if job.tiny else None]:
            with job.attempt(f"update of {size} x {length}"):
                update(job, size, length, BEST)
        with job.attempt("packed"):
            update(job, 24, 1000, BEST, halves=True)
    for group in (profile, waits, sampling):
        if job.chosen(group.__name__):
            with job.attempt(group.__name__):
                group(job)


def update(job: Job, size: int, length: int, setting: str, *, halves: bool = False) -> float:
    """Measure an update of ``size x length`` in milliseconds, and its share of the peak rate."""
    name = f"update of {size} x {length}{' in halves' if halves else ''}, {setting}"
    if job.tiny:
        size, length = 4, 33
    longest = f"context_length={max(501, length)}"
    flops = size * flops_of_sequence(job, length, longest, halves)
    subject = subject_of(job, [*SETTINGS[setting], longest])
    batch = batch_of(subject, size, length, halves=halves)
    if job.cuda:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(6):  # ordinary ones, the recording, replays
        subject.update(batch)
    seconds = job.seconds(lambda: subject.update(batch), 3 if job.tiny else 30)
    job.note(
        name,
        round(1e3 * seconds, 3),
        unit="ms",
        updates_per_s=round(1 / seconds, 1),
        timesteps_per_s=round(size * length / seconds),
        gflop=float(f"{flops / 1e9:.4g}"),
        share_of_peak=float(f"{flops / seconds / PEAK:.3g}"),
        memory_mb=round(torch.cuda.max_memory_allocated() / 2**20) if job.cuda else None,
    )
    return 1e3 * seconds


@cache
def flops_of_sequence(job: Job, length: int, longest: str, halves: bool) -> float:
    """Return the floating-point operations of an ordinary update, per sequence.

    Those of a replay cannot be counted.
    """
    subject = subject_of(job, [*BFLOAT16, longest])
    with counting_flops() as total:
        subject.update(batch_of(subject, 2, length, halves=halves))
    return total[0] / 2


def step(job: Job, num_envs: int, setting: str) -> float:
    """Measure a step of all environments in milliseconds, late in an episode."""
    name = f"step of {num_envs} environments, {setting}"
    if job.tiny:
        num_envs = 4
    subject = subject_of(job, SETTINGS[setting])
    collector = collector_of(subject, num_envs)
    # The memory grows for the last time after 384 of 500 steps, which is recorded once more.
    collector.collect(num_envs * (20 if job.tiny else 400))
    steps = 5 if job.tiny else 24
    seconds = job.seconds(lambda: collector.collect(num_envs * steps), 1 if job.tiny else 3) / steps
    job.note(name, round(1e3 * seconds, 3), unit="ms", steps_per_s=round(num_envs / seconds))
    return 1e3 * seconds


def compare_recorded(job: Job, milliseconds: dict[str, float]) -> None:
    """Note how many times faster recorded updates and steps are than ordinary ones.

    Below 1.1 for both, recording is not worth its code.
    """
    for kind in ("update", "step of 128"):
        for precision in ("bfloat16", "float32"):
            ordinary = milliseconds.get(f"{kind}, {precision}")
            recorded = milliseconds.get(f"{kind}, {precision}, recorded")
            if ordinary is None or recorded is None:
                continue
            job.note(
                f"{kind}, {precision}: ordinary time over recorded time",
                round(ordinary / recorded, 2),
                unit="x",
                ordinary_ms=round(ordinary, 3),
                recorded_ms=round(recorded, 3),
            )


def projected(job: Job, milliseconds: dict[str, float]) -> None:
    """Estimate the minutes of the published fit, without evaluations, from update and step."""
    kinds = {"float32, 12 environments": ("float32", 12), "hardware=gpu": (BEST, 128)}
    for name, (setting, num_envs) in kinds.items():
        each = (
            milliseconds.get(f"update, {setting}"),
            milliseconds.get(f"step of {num_envs}, {setting}"),
        )
        if each[0] is not None and each[1] is not None:
            total = UPDATES * each[0] + STEPS / num_envs * each[1]
            job.note(
                f"{STEPS:,} steps and {UPDATES:,} updates, {name}",
                round(total / 6e4, 1),
                unit="minutes",
            )


def profile(job: Job) -> None:
    """Write the kernels that take longest in a recorded update, and the busy time of the device."""
    cuda = (
        job.cuda and torch.version.cuda is not None
    )  # an emulated device has no kernels of its own
    activity = torch.profiler.ProfilerActivity.CUDA if cuda else torch.profiler.ProfilerActivity.CPU
    subject = subject_of(job, SETTINGS[BEST] if cuda else ())
    batch = batch_of(subject, *((4, 33) if job.tiny else (16, 501)))
    for _ in range(6):
        subject.update(batch)
    job.synchronize()
    with torch.profiler.profile(activities=[activity]) as profiler:
        for _ in range(3):
            subject.update(batch)
        job.synchronize()

    def spent(event: Any) -> float:  # microseconds of an update
        return (event.self_device_time_total if cuda else event.self_cpu_time_total) / 3

    events = sorted(profiler.key_averages(), key=spent, reverse=True)
    busy = sum(map(spent, events)) / 1e3
    launches = sum(event.count for event in events if spent(event) > 0) // 3
    job.note("kernels of an update, together", round(busy, 3), unit="ms", launches=launches)
    for place, event in enumerate(events[:10], 1):
        milliseconds = round(spent(event) / 1e3, 3)
        name = f"kernel {place} of an update"
        job.note(name, milliseconds, unit="ms", kernel=event.key[:80], launches=event.count // 3)


def waits(job: Job) -> None:
    """Count how often the host waits for the device, by line of the project."""
    if not job.cuda:
        return
    # Short episodes, so that the memory has its full size before anything is counted.
    lengths = "env.time_limit=40", "context_length=41"
    subject = subject_of(job, [*SETTINGS["float32, recorded"], *lengths])
    batch = batch_of(subject, 4, 33)
    for _ in range(6):
        subject.update(batch)
    number = waits_of(lambda: subject.update(batch))
    wrong = number.total() > 1
    job.note(
        "waits of the host in a recorded update", number.total(), wrong=wrong, lines=dict(number)
    )

    collector = collector_of(subject, 12)
    for _ in range(3):
        collector.collect(12 * 64)
    longer, shorter = (
        waits_of(lambda steps=steps: collector.collect(12 * steps)) for steps in (64, 32)
    )
    more = (longer.total() - shorter.total()) / 32
    job.note(
        "waits of the host in a recorded step", more, wrong=more > 0, lines_of_64_steps=dict(longer)
    )


def waits_of(call: Callable[[], Any]) -> Counter[str]:
    """Return the lines of the project at which PyTorch reports that the host waits."""
    lines: Counter[str] = Counter()

    def note(message: Any, *_: Any, **__: Any) -> None:
        # The mode also warns, once, that it may miss some.
        if "called a synchronizing" in str(message):
            stack = [
                frame for frame in traceback.extract_stack() if f"{os.sep}yamame" in frame.filename
            ]
            lines[
                f"{Path(stack[-1].filename).name}:{stack[-1].lineno}" if stack else "elsewhere"
            ] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return lines


def sampling(job: Job) -> None:
    """Measure the milliseconds in which the host samples a batch and begins to copy it."""
    subject = Subject(["experiment=dark_key_to_door", "env.time_limit=500"], "cpu")
    steps = 60 if job.tiny else 500
    data = pack(subject.make_env(4 if job.tiny else 64).rollout(steps, break_when_any_done=False))
    with tempfile.TemporaryDirectory() as folder:
        buffer = TrajectoryReplayBuffer(
            Path(folder) / "replay", capacity=10**6, batch_size=16, transform=Window(501)
        )
        buffer.extend(data)
        batches = Prefetcher(buffer.sample, job.device)

        def fetch() -> None:
            batches.fetch()
            batches.take()

        for name, call in {"sampling": buffer.sample, "sampling and pinning": fetch}.items():
            seconds = job.seconds(call, 3 if job.tiny else 50)
            job.note(f"{name} 16 x 501", round(1e3 * seconds, 2), unit="ms")
