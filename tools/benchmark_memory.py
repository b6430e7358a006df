"""What is measured in processes of their own: the memory of an update, and its time with freed memory kept or not."""

import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

Child = Callable[..., Any]
"""Runs this command once more, with more arguments, and gives the numbers that it prints."""
_ROUNDS, _UPDATES = 3, 3


def memory_parts(child: Child, lengths: list[int]) -> Iterator[tuple[str, str, float, None, str]]:
    """The most memory that an update of one sequence takes: in blocks of rows, and not.

    Yields:
        Name, unit, seconds of the update, no limit, and the memory.
    """
    for length in lengths:
        for name, more in ((f"1 x {length}", []), (f"1 x {length}, all rows at once", ["--at-once"])):
            megabytes, seconds = child("--peak", str(length), *more)
            yield name, "update", seconds, None, f"{megabytes:.0f} MB beyond the agent itself"


def keeping_parts(child: Child, size: int, length: int) -> Iterator[tuple[str, str, float, None, str]]:
    """An update in a process that keeps freed memory, beside one that gives it back, in alternation.

    Raises:
        ValueError: If the two compute different losses.
    """
    name, sides = f"{size} x {length}, freed memory kept", ([], [])  # type: tuple[str, tuple[list[Any], list[Any]]]
    for _ in range(_ROUNDS):
        for side, more in zip(sides, ([], ["--giving-back"]), strict=True):
            side.append(child("--updates", str(length), *more))
    if len({loss for side in sides for loss, _ in side}) > 1:
        raise ValueError(f"{name}: both ways must compute the same loss, got {sides}")
    seconds, other = (statistics.median(seconds for _, seconds in side) for side in sides)
    yield (
        name,
        "update",
        seconds,
        None,
        f"{seconds / other:.2f} of {other * 1e3:.3g} ms (given back to the system)",
    )


def peak(subject: Any, length: int, *, at_once: bool) -> list[float]:
    """The megabytes that one update adds to what the process had, and its seconds."""
    from yamame.rows import in_row_blocks
    from yamame.runs import NonFiniteGuard

    if at_once:
        in_row_blocks.__kwdefaults__["rows_per_thread"] = sys.maxsize
    guard = NonFiniteGuard(Path(tempfile.mkdtemp()))
    subject.learner.update(subject.batch(1, 16), guard, step=0, seed=0)
    batch = subject.batch(1, length)
    before, start = used(subject.device), time.process_time()
    subject.learner.update(batch, guard, step=0, seed=0)
    return [(used(subject.device) - before) / 2**20, time.process_time() - start]


def timed_updates(subject: Any, length: int) -> list[float]:
    """The loss of the last of some updates, and the median seconds of all but the first."""
    from yamame.runs import NonFiniteGuard

    guard, batch = (
        NonFiniteGuard(Path(tempfile.mkdtemp())),
        subject.batch(subject.cfg.schedule.batch_size, length),
    )
    times = []
    for _ in range(1 + _UPDATES):
        start = time.process_time()
        loss = subject.learner.update(batch, guard, step=0, seed=0)["loss"].item()
        times.append(time.process_time() - start)
    return [loss, statistics.median(times[1:])]


def used(device: str) -> float:
    """Bytes that this process has held at the same time so far."""
    if device.startswith("cuda"):
        return float(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
