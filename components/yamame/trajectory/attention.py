"""Causal multi-head self-attention whose keys and values may come from the sequence or from a cache.

Shapes: B sequences (or acting rows), L timesteps, H heads, d size of a head, D = H d.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from yamame.capturing import capturing
from yamame.trajectory.base import segment_positions
from yamame.trajectory.causal_kernel import causal_attention
from yamame.trajectory.positions import rotate
from yamame.trajectory.sigma import SigmaReparamLinear

_LARGEST_MASK, _FEWEST_QUERIES = 2**25, 64
"""Entries of a mask made at once, and queries for which one is made in any case."""

Map = Callable[[Tensor], Tensor]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys and values of new timesteps ``[B, H, L, d]`` -> what the queries find ``[B, H, L, d]``."""


def linear(in_features: int, out_features: int, *, sigma_reparam: bool, bias: bool = True) -> nn.Module:
    """A linear layer, sigma-reparametrised or plain."""
    kind = SigmaReparamLinear if sigma_reparam else nn.Linear
    return kind(in_features, out_features, bias=bias)


def fixed(layer: nn.Module, num_rows: int) -> Map:
    """The map of a layer made by `linear`, for ``num_rows`` rows in any number of parts."""
    return layer.fixed(num_rows) if isinstance(layer, SigmaReparamLinear) else layer


class SelfAttention(nn.Module):
    """Projections and head scaling around an attention given at the call.

    Args:
        d_model: Size D of the input and the output.
        num_heads: Number of heads H; divides ``d_model``.
        head_scaling: Learn one factor per head, applied before heads are joined (NormFormer, arXiv
            2110.09456).
        sigma_reparam: Use `SigmaReparamLinear` for the projections.
    """

    def __init__(self, d_model: int, num_heads: int, *, head_scaling: bool, sigma_reparam: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = linear(d_model, 3 * d_model, sigma_reparam=sigma_reparam, bias=False)
        self.out = linear(d_model, d_model, sigma_reparam=sigma_reparam)
        self.head_scale = nn.Parameter(torch.ones(num_heads, 1, 1)) if head_scaling else None

    def forward(
        self, x: Tensor, attend: Attend, rotation: Tensor | None, maps: tuple[Map, Map] | None = None
    ) -> Tensor:
        """``[B, L, D] -> [B, L, D]``; ``rotation`` ``[B, 1, L, d]`` turns queries and keys where given.

        ``maps`` stand for ``qkv`` and ``out``, as `fixed` makes them.
        """
        qkv, out = (self.qkv, self.out) if maps is None else maps
        # Apart before their heads are: so their gradients are joined in one copy.
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in qkv(x).chunk(3, -1))
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        found = attend(q, k, v)
        if self.head_scale is not None:
            found = found * self.head_scale
        return out(found.transpose(1, 2).flatten(-2))


def sequence_attention(starts: Tensor, *, window: int | None, sinks: int, compiled: bool = False) -> Attend:
    """Attention within whole sequences: causal, and never past a start.

    Args:
        starts: ``[B, L]`` bool, where fresh memories begin.
        window: How many of the latest timesteps are seen, the present one included; None for all.
        sinks: How many of the first timesteps after a start are seen whatever the window.
        compiled: By a function in C; without sinks, on a CPU.
    """
    if compiled:
        assert not sinks
        return partial(causal_attention, oldest=_oldest(starts, window))
    window, divided = _restrictions(starts, window, sinks)
    batch, length = starts.shape
    rows = max(_FEWEST_QUERIES, _LARGEST_MASK // (length * (batch if divided else 1)))
    if rows < length and (divided or window is not None):
        return _block_attention(starts, rows, window=window, sinks=sinks)
    mask = visibility(starts, window=window, sinks=sinks)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dot_product(q, k, v, mask=mask, causal=mask is None)

    return attend


def _block_attention(starts: Tensor, rows: int, *, window: int | None, sinks: int) -> Attend:
    """Attention that makes its mask for so many queries at a time, and again in the backward pass.

    Memory grows with the length instead of its square.
    """

    def part(q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
        seen = visibility(starts[:, : k.shape[2]], window=window, sinks=sinks, first=first)
        if seen is None:
            return dot_product(q, k, v, mask=None, causal=True)
        oldest = 0 if window is None or sinks else max(0, first - window + 1)
        return dot_product(q, k[:, :, oldest:], v[:, :, oldest:], mask=seen[..., oldest:])

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = []
        for first in range(0, q.shape[2], rows):
            last = min(first + rows, q.shape[2])
            inputs = (q[:, :, first:last], k[:, :, :last], v[:, :, :last], first)
            parts.append(checkpoint(part, *inputs, use_reentrant=False, preserve_rng_state=False))
        return torch.cat(parts, 2)

    return attend


def dot_product(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, causal: bool = False) -> Tensor:
    """Scaled dot-product attention; under autocast on a CPU in float32.

    There the reduced-precision kernel is no faster forward and up to nine times slower backward.
    """
    if q.is_cpu and torch.is_autocast_enabled("cpu"):
        with torch.autocast("cpu", enabled=False):
            q, k, v = q.float(), k.float(), v.float()
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)


def _restrictions(starts: Tensor, window: int | None, sinks: int) -> tuple[int | None, bool]:
    """The window if it hides anything, and whether a fresh memory may begin inside a sequence."""
    if window is not None and window + sinks >= starts.shape[1]:
        window = None
    return window, capturing() or bool(starts[:, 1:].any())


def _oldest(starts: Tensor, window: int | None) -> Tensor:
    """The first timestep that each timestep sees, ``[B, L]``."""
    column = torch.arange(starts.shape[1], device=starts.device)
    oldest = column - segment_positions(starts)
    if window is not None:
        oldest = oldest.maximum(column - window + 1)
    return oldest


def visibility(starts: Tensor, *, window: int | None, sinks: int, first: int = 0) -> Tensor | None:
    """Which keys a query sees, ``[B or 1, 1, L - first, L]`` bool, for queries from ``first`` on.

    None where plain causal attention says the same of all queries.

    >>> visibility(torch.tensor([[True, False, True]]), window=None, sinks=0)[0, 0].int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    window, divided = _restrictions(starts, window, sinks)
    if first == 0 and window is None and not divided:
        return None
    column = torch.arange(starts.shape[1], device=starts.device)
    behind = column[first:].unsqueeze(1) - column
    seen = (behind >= 0).unsqueeze(0)
    if window is not None:
        position = segment_positions(starts if divided else starts[:1])
        seen = seen & ((behind < window) | (position.unsqueeze(1) < sinks))
    if divided:
        segment = starts.cumsum(1)
        seen = seen & (segment[:, first:].unsqueeze(2) == segment.unsqueeze(1))
    return seen.unsqueeze(1)
