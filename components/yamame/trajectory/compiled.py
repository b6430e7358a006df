"""Attention of single queries over a cache, compiled into one kernel.

What acting reads most is its memory, and products for a single query leave a processor waiting: libraries make them for
many. A kernel made for one query reads keys and values in the order in which they lie and hides, normalises and sums on
the way, in float32 whatever the dtype of the cache.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]
"""Queries ``[n, H, d]``, keys and values ``[n, H, slots, d]``, ages ``[n]``, number of slots to read -> ``[n, H, d]``.

A query sees the slots up to the age of its row.
"""


@functools.cache
def attention_kernel(num_heads: int, head_size: int, dtype: torch.dtype, device: torch.device) -> Kernel:
    """The kernel for heads of one size, for any number of rows and slots.

    Args:
        num_heads: H.
        head_size: d.
        dtype: Of queries, keys and values.
        device: Where all of them are.

    Raises:
        ValueError: If it cannot be compiled.
    """

    def attend(q: Tensor, keys: Tensor, values: Tensor, age: Tensor, used: int) -> Tensor:
        # Sizes that are constants make shorter loops.
        shape = (-1, num_heads, keys.shape[2], head_size)
        keys, values = (part.view(shape)[:, :, :used].float() for part in (keys, values))
        scores = (q.view(-1, num_heads, 1, head_size).float() * keys).sum(-1)
        unused = torch.arange(used, device=age.device) > age.unsqueeze(1)
        scores = scores.masked_fill(unused.unsqueeze(1), -torch.inf)
        weights = (scores - scores.amax(2, keepdim=True)).exp()
        found = (weights.unsqueeze(-1) * values).sum(2)
        return found / weights.sum(2).unsqueeze(-1)

    kernel: Kernel = torch.compile(attend, dynamic=True)
    # First for sizes of which no two are equal, for equal ones would be taken for one and the same.
    num_rows, slots = max(num_heads, head_size) + 1, max(num_heads, head_size) + 3
    q = torch.zeros(num_rows, num_heads, head_size, dtype=dtype, device=device)
    keys = q.new_zeros(num_rows, num_heads, slots, head_size)
    age = torch.zeros(num_rows, dtype=torch.int64, device=device)
    try:
        with torch.no_grad():
            kernel(q, keys, keys.clone(), age, slots - 1)
    except Exception as error:
        needed = "a C++ compiler, such as g++" if device.type == "cpu" else "Triton and a C compiler"
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"compile_policy must be false without {needed}, got true; compiling ended with {reason!r}"
        ) from error
    return kernel
