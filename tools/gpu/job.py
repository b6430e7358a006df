"""Settings and results of the part of a GPU run that this process executes."""

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
        """Return whether the device is a GPU (or emulates one)."""
        return self.device.startswith("cuda")

    def chosen(self, group: str) -> bool:
        """Return whether a group of measurements is selected."""
        self.groups.add(group)
        return self.choice in ("", group)

    def check_choice(self) -> None:
        """Fail the part if it has no group of the selected name; call it after the part."""
        if self.choice and self.choice not in self.groups:
            self.note("unknown group", self.choice, wrong=True, groups=sorted(self.groups))

    def left(self) -> float:
        """Return the seconds until the part is stopped."""
        return self.until - time.time()

    def note(self, name: str, value: Any, *, wrong: bool = False, **more: Any) -> None:
        """Write a result; a wrong one fails the part."""
        results.append(self.out, self.part, name, value, **more)
        print(f"{self.part}: {name}: {json.dumps(value, default=str)} {more or ''}", flush=True)
        if wrong:
            self.failures.append(name)

    @contextlib.contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Write an error of the measurements inside as their result, and continue the part."""
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
        """Wait for the GPU."""
        if self.cuda:
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any], number: int) -> float:
        """Return the wall-clock seconds of one of ``number`` calls, without a first one.

        The device is synchronized only at the end, as in a run, where the host continues meanwhile.
        """
        call()
        self.synchronize()
        begin = time.perf_counter()
        for _ in range(number):
            call()
        self.synchronize()
        return (time.perf_counter() - begin) / number
