"""Causal attention within whole sequences, and never past a start.

Starts inside of a sequence divide it into segments. A mask hides all other segments; on GPUs with
flash attention, a kernel for sequences of different lengths skips them instead.

Shapes: B sequences, L timesteps, H heads, d size of a head, S segments.
"""

import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from yamame.trajectory.steps import count_segments, segment_positions

_LARGEST_MASK = 2**25
"""Most entries of a mask that is built at once: 32 MiB of bool."""
_FEWEST_QUERIES = 64
"""Queries for which a mask is built at once even if it is larger."""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention function: queries, keys and values of new timesteps ``[B, H, L, d]`` -> weighted means
of values ``[B, H, L, d]``.
"""


def sequence_attention(
    is_init: Tensor, *, window: int | None, sinks: int, num_segments: int | None = None
) -> Attend:
    """Return the attention within whole sequences.

    Args:
        is_init: ``[B, L]`` bool, starts of fresh memories.
        window: Number of latest timesteps that are visible, including the present one; None for
            all.
        sinks: Number of first timesteps after a start that are visible beyond the window.
        num_segments: Upper bound of the number of starts, also at the first timestep of each
            sequence; None to count them.
    """
    batch, length = is_init.shape
    if num_segments is None:
        num_segments = count_segments(is_init)
    # Every row starts once. More starts divide a row; an unknown number may do so.
    divided = num_segments is None or num_segments > batch
    if window is not None and window + sinks >= length:
        window = None  # hides nothing
    if window is None and not divided:
        # No mask: kernels for plain causal attention are the fastest.
        return partial(dot_product, mask=None)

    masked = partial(_masked_attention, is_init, window=window, sinks=sinks, divided=divided)
    has_sinks = window is not None and sinks > 0
    if num_segments is not None and divided and not has_sinks:
        kernel = _segment_kernel(is_init.device)
        if kernel is not None:
            return _segment_attention(is_init, num_segments, kernel, window=window, masked=masked)
    return masked()


def _masked_attention(is_init: Tensor, *, window: int | None, sinks: int, divided: bool) -> Attend:
    """Return attention with a mask of visible keys."""
    batch, length = is_init.shape
    num_masks = batch if divided else 1
    queries = max(_FEWEST_QUERIES, _LARGEST_MASK // (length * num_masks))
    if queries < length:
        return _block_attention(is_init, queries, window=window, sinks=sinks, divided=divided)
    mask = visibility(is_init, window=window, sinks=sinks, divided=divided)
    return partial(dot_product, mask=mask)


def _block_attention(
    is_init: Tensor, queries: int, *, window: int | None, sinks: int, divided: bool
) -> Attend:
    """Return attention in memory linear in L, computed for blocks of ``queries`` queries.

    The mask of a block is built in the forward pass and again in the backward pass.
    """

    def block(q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
        starts = is_init[:, : k.shape[2]]
        mask = visibility(starts, window=window, sinks=sinks, first=first, divided=divided)
        oldest = 0
        if window is not None and not sinks:
            # No query of this block sees anything older. Sinks are old and stay visible.
            oldest = max(0, first - window + 1)
        k = k[:, :, oldest:]
        v = v[:, :, oldest:]
        return dot_product(q, k, v, mask=mask[..., oldest:])

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = q.shape[2]
        blocks = []
        for first in range(0, length, queries):
            last = min(first + queries, length)
            q_block = q[:, :, first:last]  # [B, H, queries, d]
            k_block = k[:, :, :last]  # [B, H, last, d]
            v_block = v[:, :, :last]
            # Checkpointing drops the mask until the backward pass.
            out = checkpoint(
                block,
                q_block,
                k_block,
                v_block,
                first,
                use_reentrant=False,
                preserve_rng_state=False,  # attention draws nothing
            )
            blocks.append(out)
        return torch.cat(blocks, 2)

    return attend


def _segment_kernel(device: torch.device) -> Callable[..., Tensor] | None:
    """Return PyTorch's attention for sequences of different lengths; None if a device lacks it."""
    if device.type != "cuda" or torch.compiler.is_compiling():
        return None
    if not torch.backends.cuda.is_flash_attention_available():
        return None
    if torch.cuda.get_device_capability(device) < (8, 0):
        return None
    return _find_kernel()


@cache
def _find_kernel() -> Callable[..., Tensor] | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    kernel: Any = varlen_attn
    # Earlier versions have other arguments.
    return kernel if "window_size" in inspect.signature(kernel).parameters else None


def _segment_attention(
    is_init: Tensor,
    num_segments: int,
    kernel: Callable[..., Tensor],
    *,
    window: int | None,
    masked: Callable[[], Attend],
) -> Attend:
    """Return attention that computes only products within segments.

    Args:
        is_init: ``[B, L]`` bool, starts of fresh memories.
        num_segments: Upper bound of the number of starts.
        kernel: Attention with the arguments of `torch.nn.attention.varlen.varlen_attn`.
        window: Number of latest timesteps that are visible; None for all.
        masked: Returns attention with a mask, for dtypes and sizes that the kernel does not take.
    """
    length = is_init.shape[1]
    masked = cache(masked)
    offsets = cache(partial(segment_offsets, is_init, num_segments))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if torch.is_autocast_enabled(q.device.type):
            dtype = torch.get_autocast_dtype(q.device.type)
            q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        if not _is_supported(q):
            return masked()(q, k, v)
        # The segments of all sequences follow each other.
        flat = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]  # [B L, H, d]
        bounds = offsets()
        oldest = -1 if window is None else window - 1
        out = kernel(*flat, bounds, bounds, length, length, window_size=(oldest, 0))
        return out.unflatten(0, is_init.shape).transpose(1, 2)

    return attend


def _is_supported(q: Tensor) -> bool:
    """Return whether flash attention takes queries ``[B, H, L, d]``."""
    head_size = q.shape[-1]
    return q.dtype in (torch.bfloat16, torch.float16) and head_size % 8 == 0 and head_size <= 256


def segment_offsets(is_init: Tensor, num_segments: int) -> Tensor:
    """Compute where segments begin in the concatenation of all sequences.

    No value is read back.

    Args:
        is_init: ``[B, L]`` bool, starts of fresh memories. Every sequence begins with one.
        num_segments: Number S of offsets, at least that of the starts. Excess segments are empty.

    Returns:
        ``[S + 1]`` int32, the last one is B L.

    >>> is_init = torch.tensor([[True, False, True], [True, False, False]])
    >>> segment_offsets(is_init, 4).tolist()
    [0, 2, 3, 6, 6]
    """
    length = is_init.shape[1]
    place = torch.arange(is_init.numel(), device=is_init.device, dtype=torch.int32)
    starts = is_init.flatten() | (place % length == 0)
    segment = starts.cumsum(0) - 1  # [B L]
    offsets = place.new_full((num_segments + 1,), is_init.numel())
    return offsets.scatter_reduce(0, segment, place, "amin")


def dot_product(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None) -> Tensor:
    """Compute scaled dot-product attention, causal without a mask.

    Args:
        q: ``[B, H, Lq, d]``.
        k: ``[B, H, Lk, d]``.
        v: ``[B, H, Lk, d]``.
        mask: Broadcasts to ``[B, H, Lq, Lk]``: visible keys as bool, or numbers that are added to
            the products (minus infinity hides a key).

    Returns:
        ``[B, H, Lq, d]``; float32 under autocast on a CPU.
    """
    # On a CPU the reduced-precision kernel is no faster forward and up to nine times slower
    # backward.
    if q.is_cpu and torch.is_autocast_enabled("cpu"):
        with torch.autocast("cpu", enabled=False):
            q = q.float()
            k = k.float()
            v = v.float()
            if mask is not None and mask.is_floating_point():
                mask = mask.float()
            return dot_product(q, k, v, mask=mask)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)


def visibility(
    is_init: Tensor, *, window: int | None, sinks: int, divided: bool, first: int = 0
) -> Tensor:
    """Compute the mask of visible keys for queries from ``first`` on.

    Args:
        is_init: ``[B, L]`` bool, starts of fresh memories.
        window: Number of latest timesteps that are visible; None for all.
        sinks: Number of first timesteps after a start that are visible beyond the window.
        divided: Whether a fresh memory may begin inside a sequence.
        first: Index of the first query.

    Returns:
        ``[B or 1, 1, L - first, L]`` bool.

    >>> is_init = torch.tensor([[True, False, True]])
    >>> visibility(is_init, window=None, sinks=0, divided=True)[0, 0].int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    length = is_init.shape[1]
    column = torch.arange(length, device=is_init.device)
    query = column[first:].unsqueeze(1)
    age = query - column  # [Lq, L], timesteps from key to query
    visible = (age >= 0).unsqueeze(0)  # [1, Lq, L]

    if window is not None:
        # Rows that are not divided have the same positions: one mask serves all.
        position = segment_positions(is_init if divided else is_init[:1])
        is_sink = position.unsqueeze(1) < sinks
        visible = visible & ((age < window) | is_sink)
    if divided:
        segment = is_init.cumsum(1)  # [B, L], number of the segment
        query_segment = segment[:, first:].unsqueeze(2)
        is_same = query_segment == segment.unsqueeze(1)
        visible = visible & is_same
    return visible.unsqueeze(1)
