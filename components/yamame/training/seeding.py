"""One seed for every global random number generator, and their joint state.

`GlobalRNGState` holds the states of Python, NumPy, Torch's CPU and every initialised accelerator
behind ``state_dict`` and ``load_state_dict``, so it is a checkpoint component like any other.
"""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torchrl import checkpoint

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


class GlobalRNGState(checkpoint.GlobalRNGState):
    """The state of every global random number generator, as TorchRL saves it.

    TorchRL refuses the state of a device that is missing. Here it is left out, so that a run may be
    continued on another machine.
    """

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores the generators of the devices that are there; others stay as they are."""
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        present = {
            "torch_cuda": count > 0,
            "torch_xpu": torch.xpu.is_available(),
            "torch_mps": torch.backends.mps.is_available(),
        }
        state = {name: value for name, value in state_dict.items() if present.get(name, True)}
        if "torch_cuda" in state:
            state["torch_cuda"] = state["torch_cuda"][:count]
        super().load_state_dict(state)
