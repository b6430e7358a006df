"""Causal attention within whole sequences, and never past a start.

Shapes: B sequences, L timesteps, H heads, d size of a head.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from yamame.execution.capturing import capturing
from yamame.trajectory.base import segment_positions

_LARGEST_MASK, _FEWEST_QUERIES = 2**25, 64
"""Entries of a mask made at once, and queries for which one is made in any case."""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys and values of new timesteps ``[B, H, L, d]`` -> weighted means of values
``[B, H, L, d]``.
"""


def sequence_attention(
    is_init: Tensor, *, window: int | None, sinks: int, num_segments: int | None = None
) -> Attend:
    """Attention within whole sequences.

    Args:
        is_init: ``[B, L]`` bool, where fresh memories begin.
        window: How many of the latest timesteps are seen, the present one included; None for all.
        sinks: How many of the first timesteps after a start are seen whatever the window.
        num_segments: How many memories begin, at most; None where the host does not know.
    """
    batch, length = is_init.shape
    divided = (
        capturing() or bool(is_init[:, 1:].any()) if num_segments is None else num_segments > batch
    )
    if window is not None and window + sinks >= length:
        window = None
    if window is None and not divided:
        return partial(dot_product, mask=None)
    queries = max(_FEWEST_QUERIES, _LARGEST_MASK // (length * (batch if divided else 1)))
    if queries < length:
        return _block_attention(is_init, queries, window=window, sinks=sinks, divided=divided)
    return partial(
        dot_product, mask=visibility(is_init, window=window, sinks=sinks, divided=divided)
    )


def _block_attention(
    is_init: Tensor, queries: int, *, window: int | None, sinks: int, divided: bool
) -> Attend:
    """Attention in linear memory: it makes its mask for so many queries at a time, and again in the
    backward pass.
    """

    def block(q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
        seen = is_init[:, : k.shape[2]]
        mask = visibility(seen, window=window, sinks=sinks, first=first, divided=divided)
        oldest = 0 if window is None or sinks else max(0, first - window + 1)
        return dot_product(q, k[:, :, oldest:], v[:, :, oldest:], mask=mask[..., oldest:])

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        blocks = []
        for first in range(0, q.shape[2], queries):
            last = min(first + queries, q.shape[2])
            inputs = (q[:, :, first:last], k[:, :, :last], v[:, :, :last], first)
            blocks.append(checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False))
        return torch.cat(blocks, 2)

    return attend


def dot_product(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None) -> Tensor:
    """Scaled dot-product attention, causal without a mask; under autocast on a CPU in float32."""
    # There the reduced-precision kernel is no faster forward and up to nine times slower backward.
    if q.is_cpu and torch.is_autocast_enabled("cpu"):
        with torch.autocast("cpu", enabled=False):
            return dot_product(q.float(), k.float(), v.float(), mask=mask)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)


def visibility(
    is_init: Tensor, *, window: int | None, sinks: int, divided: bool, first: int = 0
) -> Tensor:
    """Which keys a query sees, ``[B or 1, 1, L - first, L]`` bool, for queries from ``first`` on.

    ``divided`` says whether a fresh memory may begin inside a sequence.

    >>> visibility(torch.tensor([[True, False, True]]), window=None, sinks=0, divided=True)[0, 0].int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    column = torch.arange(is_init.shape[1], device=is_init.device)
    behind = column[first:].unsqueeze(1) - column
    visible = (behind >= 0).unsqueeze(0)
    if window is not None:
        position = segment_positions(is_init if divided else is_init[:1])
        visible = visible & ((behind < window) | (position.unsqueeze(1) < sinks))
    if divided:
        segment = is_init.cumsum(1)
        visible = visible & (segment[:, first:].unsqueeze(2) == segment.unsqueeze(1))
    return visible.unsqueeze(1)
