"""One seed for every global random number generator, and their joint state.

`GlobalRNGState` is TorchRL's: Python, NumPy, Torch CPU and every initialised accelerator behind
``state_dict`` and ``load_state_dict``, so it is a checkpoint component like any other.
"""

import random

import numpy as np
import torch
from torchrl.checkpoint import GlobalRNGState as GlobalRNGState

from yamame.checks import require


def seed_everything(seed: int) -> None:
    """Seeds Python, NumPy and Torch (all devices).

    Args:
        seed: From 0 to 2**32 - 1, the range NumPy accepts.

    Raises:
        ValueError: The seed is not an integer of that range.
    """
    holds = isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**32
    require("seed_everything", "seed", seed, holds, "be an integer from 0 to 2**32 - 1")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
