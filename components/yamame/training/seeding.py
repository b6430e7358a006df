"""Seeds and states of the global random number generators."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torchrl import checkpoint

from yamame.checks import require


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and Torch (all devices).

    Args:
        seed: Integer from 0 to 2**32 - 1, the range that NumPy accepts.

    Raises:
        ValueError: The seed is not an integer of that range.
    """
    # A bool is an integer to Python.
    is_integer = isinstance(seed, int) and not isinstance(seed, bool)
    is_in_range = is_integer and 0 <= seed < 2**32
    require("seed_everything", "seed", seed, is_in_range, "be an integer from 0 to 2**32 - 1")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class GlobalRNGState(checkpoint.GlobalRNGState):
    """State of Python's, NumPy's and Torch's global generators, as a component of a checkpoint.

    TorchRL refuses the state of a device that is missing. This class ignores it, so that a run may
    be continued on another machine.
    """

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the generators of the devices that exist; others stay as they are."""
        num_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
        exists = {
            "torch_cuda": num_cuda > 0,
            "torch_xpu": torch.xpu.is_available(),
            "torch_mps": torch.backends.mps.is_available(),
        }
        state = {name: value for name, value in state_dict.items() if exists.get(name, True)}
        if "torch_cuda" in state:
            state["torch_cuda"] = state["torch_cuda"][:num_cuda]
        super().load_state_dict(state)
