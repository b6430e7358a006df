"""Kind of machine that a run uses. CPU-seconds mean little without it."""

import platform
from pathlib import Path

from yamame.system.cores import usable_cores

_CPUINFO = Path("/proc/cpuinfo")


def machine() -> dict[str, str]:
    """Describes this machine.

    Returns:
        ``processor`` (model name), ``cores`` (that this process may use), ``threads`` (of torch),
        and ``gpu`` where CUDA has one.
    """
    import torch  # here, since the tracker is imported by commands that need no torch

    described = {
        "processor": processor_name(),
        "cores": str(usable_cores()),
        "threads": str(torch.get_num_threads()),
    }
    if torch.cuda.is_available():
        described["gpu"] = torch.cuda.get_device_name()
    return described


def processor_name() -> str:
    """Returns the model name of the processor, as Linux reports it, or else the name of the
    architecture.
    """
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()
