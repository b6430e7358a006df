"""What a run costs: CPU and wall-clock seconds, and the load of the machine."""

import os
import time

import psutil
import torch

_MEBIBYTE = 2**20


def _cpu_seconds() -> float:
    """User and system seconds of this process, its finished children and its living descendants."""
    total = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


class CostMeter:
    """Counts CPU and wall-clock seconds from its creation on, earlier parts of a resumed run
    included.
    """

    def __init__(self) -> None:
        self._cpu_now = 0.0
        self.load_state_dict({"cpu_s": 0.0, "wall_s": 0.0})

    @property
    def cpu_s(self) -> float:
        """User plus system seconds of this process and its children."""
        # What was counted stays so when processes below other children are gone.
        self._cpu_now = max(self._cpu_now, _cpu_seconds())
        return self._earlier["cpu_s"] + self._cpu_now - self._cpu_start

    @property
    def wall_s(self) -> float:
        """Wall-clock seconds; the time between two parts of a run does not count."""
        return self._earlier["wall_s"] + time.monotonic() - self._wall_start

    def state_dict(self) -> dict[str, float]:
        """Both costs so far."""
        return {"cpu_s": self.cpu_s, "wall_s": self.wall_s}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continues from earlier costs."""
        self._earlier = dict(state)
        self._cpu_start, self._wall_start = _cpu_seconds(), time.monotonic()
        self._cpu_now = self._cpu_start


class SystemMetrics:
    """Load and memory of the machine and of this process, under MLflow's prefix ``system/``."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        # The first reading of a percentage has no interval to refer to and is always 0.
        psutil.cpu_percent()
        self._process.cpu_percent()

    def sample(self) -> dict[str, float]:
        """Percentages since the previous sample (of one core for the process) and mebibytes now."""
        metrics = {
            "system/cpu_utilization_percentage": psutil.cpu_percent(),
            "system/system_memory_usage_percentage": psutil.virtual_memory().percent,
            "system/process_cpu_percentage": self._process.cpu_percent(),
            "system/process_memory_mebibytes": self._process.memory_info().rss / _MEBIBYTE,
        }
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            free, total = torch.cuda.mem_get_info()
            metrics["system/gpu_memory_usage_percentage"] = 100 * (1 - free / total)
            metrics["system/process_gpu_memory_mebibytes"] = (
                torch.cuda.max_memory_allocated() / _MEBIBYTE
            )
        return metrics
