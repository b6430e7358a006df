"""Attention of single queries over a cache, compiled into one function: ``attention_kernel.c``.

What acting reads most is its memory, and products for a single query leave a processor waiting: libraries make them for
many. A function made for one query reads the slots of each row once, in the order in which they lie. It is compiled
where it runs, for the sizes and the processor at hand, within half a second.
"""

import ctypes
import functools

import torch
from torch import Tensor

from yamame.native import compile_c, require_acting_dtype


class AttentionKernel:
    """Stores the new keys and values of every row and attends to what the row remembers.

    Args:
        num_heads: H.
        head_size: d.
        dtype: Of queries, keys, values and cache: float32 or bfloat16. Sums are in float32.

    Raises:
        ValueError: If there is no compiler, or it fails, or ``dtype`` is another.
    """

    def __init__(self, num_heads: int, head_size: int, dtype: torch.dtype) -> None:
        require_acting_dtype(dtype)
        self.num_heads, self.head_size, self.dtype = num_heads, head_size, dtype
        macros = {"HEADS": num_heads, "BYTES": dtype.itemsize}
        functions = compile_c(__file__, setting="compile_policy", size=head_size, **macros)
        self._attend = functions.attend
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self._attend.argtypes = [
            *(pointer, integer, pointer, pointer, integer),
            *(pointer, pointer, integer, pointer, pointer, pointer, pointer, integer, ctypes.c_int32),
        ]
        self._attend.restype = None

    def __call__(self, q: Tensor, kv: Tensor, cache: Tensor, slot: Tensor, last: Tensor) -> Tensor:
        """What the queries of n rows find.

        Args:
            q: ``[n, H, d]``, already multiplied by the factor of the scores.
            kv: ``[2, n, H, d]``, new keys and values.
            cache: ``[2, n, slots, H * d]``, keys and values; the new ones are written into it. A row's slots lie one
                after the other, and so do the rows.
            slot: ``[n]`` int64, where the new ones of each row go.
            last: ``[n]`` int64, the last slot that each row reads, beginning with the first.

        Returns:
            ``[n, H, d]``.
        """
        q, kv = (_rows_together(part.to(self.dtype)) for part in (q, kv))
        num_rows, slots = cache.shape[1:3]
        threads = torch.get_num_threads()
        found = torch.empty(q.shape, dtype=self.dtype)
        work = torch.empty(threads, self.num_heads * slots)
        self._attend(
            *(q.data_ptr(), q.stride(0), kv[0].data_ptr(), kv[1].data_ptr(), kv.stride(1)),
            *(cache[0].data_ptr(), cache[1].data_ptr(), slots, slot.data_ptr(), last.data_ptr()),
            *(found.data_ptr(), work.data_ptr(), num_rows, threads),
        )
        return found


attention_kernel = functools.cache(AttentionKernel)
"""The `AttentionKernel` for such heads, compiled when it is first asked for."""


def _rows_together(x: Tensor) -> Tensor:
    """``[*, H, d]`` such that the numbers of a row lie one after the other: itself, or a copy."""
    return x if x.stride(-1) == 1 and x.stride(-2) == x.shape[-1] else x.contiguous()
