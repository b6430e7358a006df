"""Costs of a run: CPU and wall-clock seconds, and the load of the machine."""

import math
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import psutil
import torch

from yamame import distributed

_MEBIBYTE = 2**20
_LONGEST_AGE_S = 1.0
"""Age up to which a reading of the descendants is used again: finding them takes milliseconds."""
_process_is_run: ContextVar[bool] = ContextVar("process_is_run", default=False)


@contextmanager
def process_is_run() -> Iterator[None]:
    """Within the block, the first `CostMeter` counts everything since the process began.

    The command line uses this for a process that does a single run. Imports, and everything else
    that stands before the run, belong to its costs.
    """
    token = _process_is_run.set(True)
    try:
        yield
    finally:
        _process_is_run.reset(token)


def _own_cpu_seconds() -> float:
    """Return user and system seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _descendants_cpu_seconds() -> float:
    """Return user and system seconds of all descendants, ended ones included."""
    finished = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = finished.ru_utime + finished.ru_stime
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:  # it has ended meanwhile
            continue
        total += times.user + times.system
    return total


class CostMeter:
    """Counts CPU and wall-clock seconds of a run, former sessions of a resumed run included.

    A session is counted from the creation of the meter, or from the start of the process within
    `process_is_run`.

    Args:
        is_part: Whether the run is one of several that a process does, so that what stands before
            it belongs to none of them.
    """

    def __init__(self, *, is_part: bool = False) -> None:
        self._earlier = {"cpu_s": 0.0, "wall_s": 0.0}
        self._elsewhere_s = 0.0
        # Descendants that have ended and those that live are read together: one that ends between
        # two readings would count twice.
        self._descendants_s = 0.0
        self._read_at = -math.inf
        self._cpu_start = 0.0
        self._wall_start = psutil.Process().create_time()
        if _process_is_run.get() and not is_part:
            # Only the first run of the process: each second belongs to one run.
            _process_is_run.set(False)
        else:
            self._cpu_start = self._read(0.0)
            self._wall_start = time.time()
        self._cpu_now = self._cpu_start

    def _read(self, longest_age_s: float) -> float:
        """Return the seconds of this process and its descendants, as of some age at most."""
        now = time.monotonic()
        if now - self._read_at >= longest_age_s:
            self._descendants_s = _descendants_cpu_seconds()
            self._read_at = now
        return _own_cpu_seconds() + self._descendants_s

    def _session_s(self, longest_age_s: float) -> float:
        """Return the CPU-seconds of this session of this process."""
        # An ended grandchild is in no count while its parent lives, but was in earlier ones.
        self._cpu_now = max(self._cpu_now, self._read(longest_age_s))
        return self._cpu_now - self._cpu_start

    @property
    def cpu_s(self) -> float:
        """User plus system seconds of this process and its descendants, and of other ranks."""
        return self._earlier["cpu_s"] + self._session_s(0.0) + self._elsewhere_s

    def recent_cpu_s(self) -> float:
        """Return `cpu_s` without looking for descendants more than once a second."""
        return self._earlier["cpu_s"] + self.session_cpu_s

    @property
    def session_cpu_s(self) -> float:
        """CPU-seconds of this session alone, as recent as `recent_cpu_s`."""
        return self._session_s(_LONGEST_AGE_S) + self._elsewhere_s

    def gather(self) -> None:
        """Add the seconds of the other ranks of torchrun until now; call it on all ranks."""
        if distributed.world_size() > 1:
            own_s = self._session_s(_LONGEST_AGE_S)
            self._elsewhere_s = sum(distributed.all_gather(own_s, waits_long=False)) - own_s

    @property
    def wall_s(self) -> float:
        """Wall-clock seconds. The time between two sessions of a run does not count."""
        return self._earlier["wall_s"] + time.time() - self._wall_start

    def state_dict(self) -> dict[str, float]:
        """Return both costs so far."""
        return {"cpu_s": self.cpu_s, "wall_s": self.wall_s}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Add the costs of former sessions."""
        self._earlier = dict(state)

    def include_summary(self, summary: Mapping[str, Any]) -> None:
        """Add the end of the former session, which came after its last checkpoint.

        Args:
            summary: Summary of that session, or of one before it.
        """
        for name, value in self._earlier.items():
            total = summary.get(name)
            if isinstance(total, int | float):
                self._earlier[name] = max(value, total)


class SystemMetrics:
    """Load and memory of the machine and of this process, under MLflow's prefix ``system/``."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        # The first reading of a percentage has no interval to refer to and is always 0.
        psutil.cpu_percent()
        self._process.cpu_percent()

    def sample(self) -> dict[str, float]:
        """Return percentages since the previous sample, and mebibytes now.

        The percentage of the process is of one core.
        """
        metrics = {
            "system/cpu_utilization_percentage": psutil.cpu_percent(),
            "system/system_memory_usage_percentage": psutil.virtual_memory().percent,
            "system/process_cpu_percentage": self._process.cpu_percent(),
            "system/process_memory_mebibytes": self._process.memory_info().rss / _MEBIBYTE,
        }
        # Not in a process without a CUDA context: asking would create one.
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            free, total = torch.cuda.mem_get_info()
            allocated = torch.cuda.max_memory_allocated()
            metrics["system/gpu_memory_usage_percentage"] = 100 * (1 - free / total)
            metrics["system/process_gpu_memory_mebibytes"] = allocated / _MEBIBYTE
        return metrics
