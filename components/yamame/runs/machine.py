"""Checks of settings against the machine, before a run begins."""

import torch

from yamame import distributed
from yamame.checks import require_setting
from yamame.cli.nodes import select
from yamame.cli.sections import AnyConfig
from yamame.deploy.build import check_device
from yamame.execution.recorder import missing_compiler


def check_machine(cfg: AnyConfig) -> None:
    """Check the device, and settings that need a GPU, a compiler or a single process.

    Raises:
        SettingError: The device is not available, or a setting cannot be used with it.
    """
    device = torch.device(check_device(cfg.device))
    for part in ("schedule", "collector"):
        graph, compiles = f"{part}.cuda_graph", f"{part}.compile"
        if select(cfg, graph):
            is_cuda = device.type == "cuda"
            require_setting(graph, True, is_cuda, f"be false on {device.type}")
        if select(cfg, compiles):
            _check_processes(compiles)
            missing = missing_compiler(device)
            require_setting(compiles, True, missing is None, f"be false with {missing}")

    num_gpus = select(cfg, "collector.resources.num_gpus")
    if num_gpus and cfg.collector.address is None:  # a cluster elsewhere may have GPUs
        has_gpu = torch.cuda.is_available()
        condition = "be 0 on a machine without a GPU"
        require_setting("collector.resources.num_gpus", num_gpus, has_gpu, condition)


def _check_processes(key: str) -> None:
    # Sums over ranks divide an update, which is compiled as one graph.
    is_allowed = distributed.world_size() == 1 or not key.startswith("schedule.")
    require_setting(key, True, is_allowed, "be false under torchrun")
