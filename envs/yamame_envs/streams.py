"""Counter-based random numbers: pure functions of a key, without any generator state.

A key is an int64 tensor of any shape; every element names an independent stream. The same key gives
the same numbers on every device and in a batch of any size, so a task is fully described by the key
that drew it. The hash is the finaliser of splitmix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", 2014): wrapping 64-bit products and logical shifts only, no
transcendental function that could differ between devices.

>>> key = fold(torch.tensor([3, 4]), 0)
>>> torch.equal(uniform(key, 2)[1], uniform(key[1], 2))
True
"""

import torch
from torch import Tensor

_STEP = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64
# Separates the numbers drawn from a key from the keys folded out of it.
_DRAW = 0x6A09E667F3BCC909


def _mixed(x: Tensor, shift: int) -> Tensor:
    # >> is arithmetic, so the copies of the sign bit are cleared.
    shifted = (x >> shift) & ((1 << (64 - shift)) - 1)
    return x ^ shifted


def _hash(x: Tensor) -> Tensor:
    return _mixed(_mixed(_mixed(x, 30) * _FIRST, 27) * _SECOND, 31)


def fold(key: Tensor, *data: int | Tensor) -> Tensor:
    """Derive new keys from keys and data.

    Args:
        key: ``[*]`` int64.
        data: Integers or int64 tensors that broadcast against ``key``, folded in one after the
            other.

    Returns:
        int64 keys of the broadcast shape; different data give unrelated keys.
    """
    for datum in data:
        if isinstance(datum, int):
            datum = torch.full((), datum, dtype=torch.int64, device=key.device)
        key = _hash(_hash(key) + (datum + 1) * _STEP)
    return key


def bits(key: Tensor, *shape: int) -> Tensor:
    """Draw 64 random bits per number: ``[*] -> [*, *shape]`` int64."""
    counter = torch.arange(1, 1 + torch.Size(shape).numel(), device=key.device).view(shape)
    start = _hash(key ^ _DRAW)
    return _hash(start[(...,) + (None,) * len(shape)] + counter * _STEP)


def uniform(key: Tensor, *shape: int) -> Tensor:
    """Draw from [0, 1): ``[*] -> [*, *shape]`` float64, multiples of 2^-53."""
    return ((bits(key, *shape) >> 11) & (2**53 - 1)).to(torch.float64) * 2.0**-53


def integers(key: Tensor, high: int | Tensor, *shape: int) -> Tensor:
    """Draw from {0, ..., high - 1}: ``[*] -> [*, *shape]`` int64.

    Args:
        key: ``[*]`` int64.
        high: Exclusive upper bounds that broadcast against the result; far below 2^53, where the
            unevenness of ``high / 2^53`` cannot be noticed.
        shape: Shape of the numbers of each key.
    """
    return (uniform(key, *shape) * high).to(torch.int64)


def permutation(key: Tensor, n: int) -> Tensor:
    """Draw uniform permutations of 0..n-1: ``[*] -> [*, n]`` int64."""
    return bits(key, n).argsort(dim=-1, stable=True)


def subset(key: Tensor, allowed: Tensor, size: int) -> Tensor:
    """Draw distinct indices without replacement, in random order.

    Args:
        key: ``[*]`` int64.
        allowed: ``[*, n]`` bool with at least ``size`` True entries per key, from which indices are
            drawn.
        size: Number of indices per key.

    Returns:
        ``[*, size]`` int64 indices into the last dimension of ``allowed``.
    """
    rank = uniform(key, allowed.shape[-1]).masked_fill(~allowed, 2.0)
    return rank.topk(size, largest=False, sorted=True).indices
