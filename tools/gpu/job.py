"""The part of a run on a GPU that this process executes."""

import contextlib
import json
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from gpu import results


@dataclass(eq=False)
class Job:
    """Settings of a part, and the results that it writes.

    Args:
        part: Name of the part.
        choice: The only group of its measurements that is made; empty for all.
        device: ``cuda``, or ``cpu`` for a rehearsal.
        tiny: Small networks and short sequences, to try the measurements themselves.
        out: Folder of the results.
        until: When the part is stopped, as seconds of `time.time`.
        launcher: Command that runs a script as this one was run.

    Attributes:
        failures: Results that are wrong, and measurements that failed.
        groups: Groups that the part has.
    """

    part: str
    choice: str
    device: str
    tiny: bool
    out: Path
    until: float
    launcher: list[str]
    failures: list[str] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)

    @property
    def cuda(self) -> bool:
        """Whether the device is a GPU (or emulates one)."""
        return self.device.startswith("cuda")

    def chosen(self, group: str) -> bool:
        """Whether a group of measurements is to be made."""
        self.groups.add(group)
        return self.choice in ("", group)

    def check_choice(self) -> None:
        """Makes the part fail if it has no group of the name that was given; to be called after it
        ran.
        """
        if self.choice and self.choice not in self.groups:
            self.note("unknown group", self.choice, wrong=True, groups=sorted(self.groups))

    def left(self) -> float:
        """Seconds until the part is stopped."""
        return self.until - time.time()

    def note(self, name: str, value: Any, *, wrong: bool = False, **more: Any) -> None:
        """Writes a result; a wrong one makes the part fail."""
        results.append(self.out, self.part, name, value, **more)
        print(f"{self.part}: {name}: {json.dumps(value, default=str)} {more or ''}", flush=True)
        if wrong:
            self.failures.append(name)

    @contextlib.contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Measurements inside may fail: the error becomes the result, and the part continues."""
        try:
            yield
        except Exception as error:
            frames = [
                f for f in traceback.extract_tb(error.__traceback__) if "yamame" in f.filename
            ]
            where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
            traceback.print_exc()
            self.note(name, f"{type(error).__name__}: {str(error)[:400]}{where}", wrong=True)

    def synchronize(self) -> None:
        """Waits for the GPU."""
        if self.cuda:
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any], number: int) -> float:
        """Wall-clock seconds of one of ``number`` calls in a row, after a first one that does not
        count.

        The device is awaited at the end alone, as in a run, where the host goes on meanwhile.
        """
        call()
        self.synchronize()
        begin = time.perf_counter()
        for _ in range(number):
            call()
        self.synchronize()
        return (time.perf_counter() - begin) / number
