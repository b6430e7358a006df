"""A block of steps, from where they were taken to the CPU."""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

K = TypeVar("K")


def on_host(tensors: Mapping[K, Tensor]) -> dict[K, Tensor]:
    """The tensors on the CPU. Those of a device are copied as one, so that the host waits once."""
    far = {key: value for key, value in tensors.items() if not value.is_cpu}
    if not far:
        return dict(tensors)
    flat = packed(far)
    host = torch.empty_like(flat, device="cpu")
    if flat.is_cuda:
        host = host.pin_memory()
    return {**tensors, **unpacked(host.copy_(flat), far)}


def packed(tensors: Mapping[K, Tensor]) -> Tensor:
    """The bytes of tensors, one after the other.

    >>> tensors = {"a": torch.tensor([True]), "b": torch.tensor([[1.5]])}
    >>> unpacked(packed(tensors), tensors)
    {'a': tensor([True]), 'b': tensor([[1.5000]])}
    """
    return torch.cat(
        [tensors[key].contiguous().view(-1).view(torch.uint8) for key in _order(tensors)]
    )


def unpacked(flat: Tensor, like: Mapping[K, Tensor]) -> dict[K, Tensor]:
    """Undoes `packed`, without a copy; ``like`` are tensors of the same shapes and dtypes."""
    order = _order(like)
    parts = flat.split([like[key].numel() * like[key].element_size() for key in order])
    whole = dict(zip(order, parts, strict=True))
    return {key: whole[key].view(value.dtype).view(value.shape) for key, value in like.items()}


def _order(tensors: Mapping[K, Tensor]) -> list[K]:
    """The widest first, so that each begins at a multiple of its width."""
    return sorted(tensors, key=lambda key: -tensors[key].element_size())
