"""The default trajectory encoder: a causal Transformer, stabilised for reinforcement learning.

A linear map of the features, positions of ``step_index``, dropout, layers, LayerNorm. One layer
is::

    x = x + LN2(out(scale_h * attention(qkv(LN1(x)))))
    x = x + dropout(ff2(LN4(act(ff1(LN3(x))))))

Training and acting run the same layers. Only the attention differs that they are handed: over the
sequence, or over a cache of keys and values. Shapes: B sequences, L timesteps (1 in a step), H
heads, d size of a head, D = H d.

Source: AMAGO, arXiv 2310.09971, appendix A, with NormFormer (LN2, LN4, per-head scale_h; arXiv
2110.09456) and sigma-reparametrised linear maps (arXiv 2303.06296). Sliding window with sinks:
arXiv 2309.17453.
"""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from yamame.checks import require, require_at_least, require_choice
from yamame.trajectory.attention import Attend, sequence_attention
from yamame.trajectory.base import (
    Activation,
    Device,
    TrajectoryEncoder,
    TrajectoryKeys,
    activation_function,
)
from yamame.trajectory.kv_cache import CacheStep, grow_cache, init_cache
from yamame.trajectory.positions import Sinusoids, rotate
from yamame.trajectory.sigma import SigmaReparamLinear, iterate_together, power_iteration

Positions = Literal["sinusoidal", "learned", "rotary"]


class TransformerLayer(nn.Module):
    """One pre-norm layer, whose arguments are those of `TransformerEncoder`; ``d_ff`` is the
    feed-forward hidden size."""

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        d_ff: int,
        dropout: float,
        activation: Activation,
        norm_attention: bool = True,
        norm_feedforward: bool = True,
        head_scaling: bool = True,
        sigma_reparam: bool = False,
    ) -> None:
        super().__init__()
        linear: Callable[..., nn.Module] = SigmaReparamLinear if sigma_reparam else nn.Linear
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(d_model)
        self.qkv = linear(d_model, 3 * d_model, bias=False)
        self.out = linear(d_model, d_model)
        self.head_scale = nn.Parameter(torch.ones(num_heads, 1, 1)) if head_scaling else None
        self.norm2 = nn.LayerNorm(d_model) if norm_attention else nn.Identity()
        self.norm3 = nn.LayerNorm(d_model)
        self.ff1 = linear(d_model, d_ff)
        self.norm4 = nn.LayerNorm(d_ff) if norm_feedforward else nn.Identity()
        self.ff2 = linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)
        self.activation = activation_function("TransformerLayer", activation)

    def forward(self, x: Tensor, attend: Attend, rotation: Tensor | None) -> Tensor:
        """``[B, L, D] -> [B, L, D]``; ``rotation`` ``[B, 1, L, d]`` turns queries and keys where
        given.
        """
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        heads = attend(q, k, v)
        if self.head_scale is not None:
            heads = heads * self.head_scale
        x = x + self.norm2(self.out(heads.transpose(1, 2).flatten(-2)))
        hidden = self.norm4(self.activation(self.ff1(self.norm3(x))))
        return x + self.dropout(self.ff2(hidden))


class TransformerEncoder(TrajectoryEncoder):
    """Attention over the whole history; see the module for the exact network.

    The memory of acting is a cache of the keys and values of the last ``context_length`` timesteps.
    As long as an episode is no longer, acting equals the parallel pass; afterwards the oldest is
    forgotten while the parallel pass still sees it. With a ``window`` both see the same at any
    length, since the parallel pass is restricted too.

    Args:
        in_features: Size E of the features.
        d_model: Size D of the residual stream and of the context.
        num_heads: Number of heads; divides ``d_model``.
        num_layers: Number of layers.
        ff_factor: Hidden size of the feed-forward part, in multiples of ``d_model``.
        dropout: Probability on the embedded input and on every feed-forward branch.
        activation: Of the feed-forward parts.
        context_length: How many timesteps acting remembers; None for all, with a cache that grows.
        window: How many of the latest timesteps, the present one included, a timestep sees in each
            layer; None for all.
        sinks: How many of the first timesteps after a start stay visible for ever, beside the
            window or the latest ``context_length - sinks``.
        positions: How ``step_index`` enters: added sines and cosines (``sinusoidal``), an added
            learnt table (``learned``) or rotated queries and keys (``rotary``). Only a learnt table
            ends; of the others see `yamame.trajectory.positions.Sinusoids`.
        num_positions: Size of the learnt table; only with ``positions="learned"``.
        norm_attention: LayerNorm after attention (NormFormer).
        norm_feedforward: LayerNorm after the activation (NormFormer).
        head_scaling: One learnt factor per head (NormFormer).
        sigma_reparam: Sigma-reparametrised linear maps in the layers: for very long training; slow
            at first.
        checkpoint_layers: Keep of every layer only its input for the backward pass and compute the
            rest again there: a third more computation, for a fraction of the memory. Changes no
            number.
        keys: Where to read and write, if not under the usual names.

    Raises:
        ValueError: If sizes do not fit together, or at a call whose ``step_index`` the learnt table
            lacks.

    >>> encoder = TransformerEncoder(3, d_model=8, num_heads=2, num_layers=1).eval()
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(envs)["context"].shape
    torch.Size([5, 8])
    """

    takes_num_segments = True

    def __init__(
        self,
        in_features: int,
        *,
        d_model: int = 128,
        num_heads: int = 8,
        num_layers: int = 2,
        ff_factor: int = 4,
        dropout: float = 0.05,
        activation: Activation = "leaky_relu",
        context_length: int | None = 1024,
        window: int | None = None,
        sinks: int = 0,
        positions: Positions = "sinusoidal",
        num_positions: int | None = None,
        norm_attention: bool = True,
        norm_feedforward: bool = True,
        head_scaling: bool = True,
        sigma_reparam: bool = False,
        checkpoint_layers: bool = False,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        owner, needed = "TransformerEncoder", sinks + (window or 1)
        sizes = {
            "d_model": d_model,
            "num_heads": num_heads,
            "num_layers": num_layers,
            "ff_factor": ff_factor,
        }
        require_at_least(owner, 1, **sizes, window=1 if window is None else window)
        require_at_least(owner, 0, sinks=sinks)
        require(
            owner,
            "d_model",
            d_model,
            d_model % num_heads == 0,
            f"be a multiple of num_heads {num_heads}",
        )
        require(owner, "dropout", dropout, 0 <= dropout < 1, "lie in [0, 1)")
        super().__init__(
            in_features,
            d_model,
            context_length=context_length if window is None else None,
            keys=keys,
        )
        fits = context_length is None or context_length >= needed
        require(
            owner, "context_length", context_length, fits, f"hold sinks {sinks} and window {window}"
        )
        self.num_heads, self.checkpoint_layers = num_heads, checkpoint_layers
        if (
            checkpoint_layers
        ):  # a layer is computed again from the state of a generator that is read back
            self.capture_obstacle = "checkpoint_layers"
        self.window, self.sinks = window, sinks
        self.capacity = context_length if window is None else window + sinks
        self.embed = nn.Linear(in_features, d_model)
        self.rotary = positions == "rotary"
        self.positions = _position_module(positions, num_positions, d_model, num_heads)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            TransformerLayer(
                d_model,
                num_heads,
                d_ff=ff_factor * d_model,
                dropout=dropout,
                activation=activation,
                norm_attention=norm_attention,
                norm_feedforward=norm_feedforward,
                head_scaling=head_scaling,
                sigma_reparam=sigma_reparam,
            )
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model)
        self._sigma_layers = iterate_together(self)

    def parallel(
        self, x: Tensor, step_index: Tensor, is_init: Tensor, num_segments: int | None = None
    ) -> Tensor:
        """``[B, L, E]``, ``[B, L]``, ``[B, L]`` -> ``[B, L, D]``."""
        attend = sequence_attention(
            is_init, window=self.window, sinks=self.sinks, num_segments=num_segments
        )
        return self._encode(x, step_index, lambda layer: attend)

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """An empty cache; see `yamame.trajectory.kv_cache`."""
        slots = 0 if capacity is None else min(capacity, self.capacity or capacity)
        shape = (
            num_envs,
            len(self.layers),
            self.num_heads,
            slots,
            self.out_features // self.num_heads,
        )
        return init_cache(shape, self.norm.weight, device)

    def grow_by(self, memory: TensorDict, num_steps: int) -> tuple[TensorDict, int]:
        """``memory`` with slots for some timesteps more; see `TrajectoryEncoder.grow_by`."""
        return grow_cache(memory, num_steps, capacity=self.capacity)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """``[N, E]``, ``[N]``, ``[N]``, ``[N]`` -> ``[N, D]``, ``[N]``; see
        `TrajectoryEncoder.step`.
        """
        self.check_step(x, memory, is_init)
        slots, condition = memory["keys"].shape[3], "be positive: grow(memory) adds some"
        require("TransformerEncoder", "slots of memory", slots, slots > 0, condition)
        cache = CacheStep(memory, is_init, capacity=self.capacity, sinks=self.sinks)
        position = cache.position if step_index is None else step_index
        context = self._encode(x.unsqueeze(1), position.unsqueeze(1), cache.attention)
        return context.squeeze(1), cache.next_cache()

    def _encode(self, x: Tensor, step_index: Tensor, attention: Callable[[int], Attend]) -> Tensor:
        """``[B, L, E]``, ``[B, L]`` -> ``[B, L, D]``, with the attention of each layer by its
        index.
        """
        if self.training:
            power_iteration(self._sigma_layers)
        x = self.embed(x)
        rotation = None
        if self.rotary:
            rotation = self.positions(step_index).unsqueeze(1)
        else:
            try:
                x = x + self.positions(step_index).to(self.norm.weight.dtype)
            except IndexError as error:
                name, largest = (
                    f"num_positions {self.positions.num_embeddings}",
                    int(step_index.max()),
                )
                message = f"TransformerEncoder: step_index must be below {name}, got {largest}"
                raise ValueError(message) from error
        x = self.dropout(x)
        for index, layer in enumerate(self.layers):
            inputs = x, attention(index), rotation
            if self.checkpoint_layers and torch.is_grad_enabled():
                x = checkpoint(layer, *inputs, use_reentrant=False)
            else:
                x = layer(*inputs)
        return self.norm(x)


def _position_module(
    positions: Positions, num_positions: int | None, d_model: int, num_heads: int
) -> nn.Module:
    owner = "TransformerEncoder"
    require_choice(owner, "positions", positions, get_args(Positions))
    if positions == "learned":
        given = num_positions is not None and num_positions >= 1
        require(owner, "num_positions", num_positions, given, "be at least 1 for learned positions")
        return nn.Embedding(num_positions or 1, d_model)
    fits = num_positions is None
    require(owner, "num_positions", num_positions, fits, f"be None for {positions} positions")
    size = d_model if positions == "sinusoidal" else d_model // num_heads
    name = "d_model" if positions == "sinusoidal" else "d_model / num_heads"
    require(owner, name, size, size % 2 == 0, f"be even for {positions} positions")
    return Sinusoids(size)
