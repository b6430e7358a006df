"""One seed for every global random number generator, and their joint state.

`GlobalRNGState` is TorchRL's: Python, NumPy, Torch CPU and every initialised accelerator behind
``state_dict`` and ``load_state_dict``, so it is a checkpoint component like any other.
"""

import os
import random

import numpy as np
import torch
from torchrl.checkpoint import GlobalRNGState as GlobalRNGState


def seed_everything(seed: int, *, deterministic: bool = False) -> int:
    """Seeds Python, NumPy and Torch (all devices).

    Args:
        seed: From 0 to 2**32 - 1, the range NumPy accepts.
        deterministic: Also demand deterministic kernels of Torch: an operation that has none raises.

    Returns:
        The seed.

    Raises:
        ValueError: The seed is not an integer of that range.

    >>> seed_everything(3)
    3
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(f"seed_everything: seed must be an integer from 0 to 2**32 - 1, got {seed!r}")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if deterministic:
        # cuBLAS reads this when its first handle is made.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = False
    return seed
