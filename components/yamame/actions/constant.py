"""Tensors that never change, wherever they are needed."""

from typing import Any

import torch
from torch import Tensor


class Constant:
    """A tensor that is copied to a device once.

    A copy from the host at every use would wait for the device, and cannot be part of a CUDA graph. Pickles and copies
    of the object hold the tensor as it was given.

    Args:
        value: Any shape; nobody may change it.

    >>> Constant(torch.tensor([1, 2])).on(torch.device("cpu"))
    tensor([1, 2])
    """

    def __init__(self, value: Tensor) -> None:
        self._value = value
        self._copies = {value.device: value}

    def on(self, device: torch.device) -> Tensor:
        """The tensor on a device."""
        if device not in self._copies:
            with torch.inference_mode(False):
                self._copies[device] = self._value.to(device)
        return self._copies[device]

    def __getstate__(self) -> dict[str, Any]:
        return {"_value": self._value, "_copies": {self._value.device: self._value}}
