"""Transfer of a block of steps from a device to the CPU."""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

K = TypeVar("K")


def on_host(tensors: Mapping[K, Tensor]) -> dict[K, Tensor]:
    """Return tensors on the CPU."""
    remote = {key: value for key, value in tensors.items() if not value.is_cpu}
    if not remote:
        return dict(tensors)
    # Copied as one tensor, so that the host waits once.
    flat = packed(remote)
    host = torch.empty_like(flat, device="cpu")
    if flat.is_cuda:
        host = host.pin_memory()
    host.copy_(flat)
    return {**tensors, **unpacked(host, remote)}


def packed(tensors: Mapping[K, Tensor]) -> Tensor:
    """Return the bytes of tensors, one after the other.

    >>> tensors = {"a": torch.tensor([True]), "b": torch.tensor([[1.5]])}
    >>> unpacked(packed(tensors), tensors)
    {'a': tensor([True]), 'b': tensor([[1.5000]])}
    """
    parts = []
    for key in _order(tensors):
        flat = tensors[key].contiguous().view(-1)
        parts.append(flat.view(torch.uint8))
    return torch.cat(parts)


def unpacked(flat: Tensor, like: Mapping[K, Tensor]) -> dict[K, Tensor]:
    """Return the tensors of `packed` as views.

    Args:
        flat: Result of `packed`.
        like: Tensors of the same keys, shapes and dtypes.
    """
    views: dict[K, Tensor] = {}
    begin = 0
    for key in _order(like):
        value = like[key]
        end = begin + value.numel() * value.element_size()
        views[key] = flat[begin:end].view(value.dtype).view(value.shape)
        begin = end
    # In the order of the arguments, not in that of the bytes.
    return {key: views[key] for key in like}


def _order(tensors: Mapping[K, Tensor]) -> list[K]:
    # The widest dtype first, so that each tensor begins at a multiple of its width.
    return sorted(tensors, key=lambda key: -tensors[key].element_size())
