"""A block of steps, from where they were taken to the CPU."""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

K = TypeVar("K")


def on_host(tensors: Mapping[K, Tensor]) -> dict[K, Tensor]:
    """The tensors on the CPU. Those of a device are copied as one, so that the host waits once.

    >>> on_host({"a": torch.ones(2)})["a"]
    tensor([1., 1.])
    """
    # The widest first, so that each begins at a multiple of its width.
    far = sorted((k for k, v in tensors.items() if not v.is_cpu), key=lambda k: -tensors[k].element_size())
    if not far:
        return dict(tensors)
    flat = torch.cat([tensors[key].contiguous().view(-1).view(torch.uint8) for key in far])
    host = torch.empty_like(flat, device="cpu")
    if flat.is_cuda:
        host = host.pin_memory()
    parts = host.copy_(flat).split([tensors[key].numel() * tensors[key].element_size() for key in far])
    copies = {
        key: part.view(tensors[key].dtype).view(tensors[key].shape)
        for key, part in zip(far, parts, strict=True)
    }
    return {key: copies.get(key, value) for key, value in tensors.items()}
