"""Row-wise computations in blocks of rows, so that what lies between two operations stays in the cache."""

from collections.abc import Callable

import torch
from torch import Tensor

_ALIGNED = 8
"""Rows of which blocks are multiples: matrices that keep rows last are read a quarter slower from uneven places."""


def in_row_blocks(
    function: Callable[..., Tensor], *inputs: Tensor, rows_per_thread: int = 3072, rows_per_input: int = 1
) -> Tensor:
    """``function(*inputs)``, computed by blocks of rows where that is faster: on a CPU, with many rows.

    A chain of operations on a tensor larger than the cache waits for memory at every one of them, and so does its
    backward pass, which autograd runs block by block as well. Gradients of what the blocks share are sums over
    the blocks: the same numbers, added in another order.

    Args:
        function: Computes every row ``[n, *]`` of its result from the same row of its inputs alone.
        inputs: Tensors ``[N, *]``.
        rows_per_thread: How many rows one thread works on at a time, give or take a few.
        rows_per_input: How many rows of work stand behind one row of the inputs.

    >>> in_row_blocks(torch.square, torch.arange(10), rows_per_thread=8)
    tensor([ 0,  1,  4,  9, 16, 25, 36, 49, 64, 81])
    """
    total = inputs[0].shape[0]
    largest = max(1, rows_per_thread * torch.get_num_threads() // rows_per_input)
    if total <= largest or not inputs[0].is_cpu:
        return function(*inputs)
    size = -(-total // -(-total // largest))  # as many blocks as are needed, of about the same size
    size += -size % _ALIGNED
    blocks = zip(*(value.split(size) for value in inputs), strict=True)
    return torch.cat([function(*block) for block in blocks])
