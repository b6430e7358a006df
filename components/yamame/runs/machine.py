"""Settings that this machine cannot keep: each is refused before a run begins, in a line with its
key and value.
"""

import torch
from omegaconf import DictConfig, OmegaConf

from yamame import distributed
from yamame.checks import UsageError
from yamame.deploy.build import check_device
from yamame.execution.recorder import missing_compiler


def check_machine(cfg: DictConfig) -> None:
    """Refuses a device that is not there, and what needs another device, a compiler or a single
    process.

    Raises:
        UsageError: Names the key, what it must be and why.
    """
    device = torch.device(check_device(cfg.device))
    for key in (
        "schedule.cuda_graph",
        "schedule.compile",
        "collector.cuda_graph",
        "collector.compile",
    ):
        if not OmegaConf.select(cfg, key):
            continue
        if key.startswith("schedule") and distributed.world_size() > 1:
            raise UsageError(f"{key} must be false under torchrun, got true")
        if key.endswith("cuda_graph") and device.type != "cuda":
            raise UsageError(f"{key} must be false on {device.type}, got true")
        if key.endswith("compile") and (missing := missing_compiler(device)):
            raise UsageError(f"{key} must be false with {missing}, got true")
    wanted = OmegaConf.select(cfg, "collector.resources.num_gpus")
    if wanted and cfg.collector.address is None and not torch.cuda.is_available():
        raise UsageError(
            f"collector.resources.num_gpus must be 0 on a machine without a GPU, got {wanted}"
        )
