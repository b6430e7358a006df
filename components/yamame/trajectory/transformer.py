"""The default trajectory encoder: a causal Transformer, stabilised for reinforcement learning.

A linear map of the features, positions of ``step_index``, dropout, layers, LayerNorm. One layer
is::

    x = x + LN2(out(scale_h * attention(qkv(LN1(x)))))
    x = x + dropout(ff2(LN4(act(ff1(LN3(x))))))

Training and acting apply the same layers. Only the attention passed to them differs: over the
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

from yamame.checks import (
    ArgumentError,
    NonNegativeInt,
    NumLayers,
    PositiveInt,
    check_bounds,
    require,
    require_choice,
)
from yamame.trajectory.attention import Attend, sequence_attention
from yamame.trajectory.base import (
    Activation,
    Device,
    DropoutRate,
    TrajectoryEncoder,
    TrajectoryKeys,
    activation_function,
)
from yamame.trajectory.kv_cache import CacheStep, grow_cache, init_cache
from yamame.trajectory.positions import Float32Sinusoids, Sinusoids, rotate
from yamame.trajectory.sigma import SigmaReparamLinear, iterate_together, power_iteration

Positions = Literal["sinusoidal", "learned", "rotary"]
PositionPrecision = Literal["float64", "float32"]


class TransformerLayer(nn.Module):
    """One pre-norm layer.

    Args:
        d_model: Size D of the residual stream.
        num_heads: Number H of attention heads; divides ``d_model``.
        d_ff: Hidden size of the feed-forward part.
        dropout: Dropout probability on the feed-forward branch.
        activation: Activation of the feed-forward part.
        norm_attention, norm_feedforward, head_scaling, sigma_reparam: As for `TransformerEncoder`.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        d_ff: int,
        dropout: float,
        activation: Activation,
        norm_attention: bool,
        norm_feedforward: bool,
        head_scaling: bool,
        sigma_reparam: bool,
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
        """Apply the layer.

        Args:
            x: ``[B, L, D]``, or ``[B, D]`` for one timestep.
            attend: Function that maps queries, keys and values, each ``[B, H, L, d]``, to
                ``[B, H, L, d]``.
            rotation: Sinusoids ``[B, 1, L, d]`` that rotate queries and keys, or None.

        Returns:
            As ``x``.
        """
        qkv = self.qkv(self.norm1(x))  # [B, L, 3 D]
        qkv = qkv.unflatten(-1, (3, self.num_heads, -1))  # [B, L, 3, H, d]
        # A linear map of [B, D] has half as many operations around it as one of [B, 1, D].
        is_step = x.ndim == 2
        qkv = qkv.unsqueeze(-2) if is_step else qkv.permute(0, 2, 3, 1, 4)  # [B, 3, H, L, d]
        q, k, v = qkv.unbind(1)
        if rotation is not None:
            q = rotate(q, rotation)
            k = rotate(k, rotation)
        heads = attend(q, k, v)  # [B, H, L, d]
        if self.head_scale is not None:
            heads = heads * self.head_scale
        merged = heads.flatten(1) if is_step else heads.transpose(1, 2).flatten(-2)
        out = self.out(merged)  # [B, L, D]
        x = x + self.norm2(out)

        hidden = self.ff1(self.norm3(x))  # [B, L, d_ff]
        hidden = self.activation(hidden)
        out = self.ff2(self.norm4(hidden))  # [B, L, D]
        return x + self.dropout(out)


class TransformerEncoder(TrajectoryEncoder):
    """Causal attention over the whole history (AMAGO, arXiv 2310.09971); layers as in the module.

    While acting, the memory is a cache of the keys and values of the last ``context_length``
    timesteps. Up to that length acting equals the parallel pass. In longer episodes acting forgets
    the oldest timestep, which the parallel pass still attends to. A ``window`` restricts both
    passes alike, so that they agree at any length.

    In the TensorDict (``TrajectoryKeys(memory="memory")``) the cache has its full size from the
    start, ``2 * num_layers * context_length * d_model`` numbers per env (with a window, ``window +
    sinks`` instead of ``context_length``). TorchRL stores it twice with each step, and copies it at
    each step and at each reset of any env: a choice for short contexts.

    Args:
        in_features: Size E of the features.
        d_model: Width D of the layers and of the context.
        num_heads: Number of attention heads; divides ``d_model``.
        num_layers: Number of layers.
        ff_factor: Hidden size of the feed-forward part, in multiples of ``d_model``.
        d_ff: Hidden size of the feed-forward part, in place of ``ff_factor``; None to use that.
        dropout: Dropout probability on the embedded input and on every feed-forward branch, in
            [0, 1).
        activation: Activation of the feed-forward parts: ``leaky_relu``, ``gelu``, ``relu`` or
            ``mish``.
        context_length: Longest history, in timesteps, that the agent remembers while acting; older
            timesteps are forgotten. None: all, with a cache that grows.
        window: Number of latest timesteps that each layer attends to, the present one included.
            None: all timesteps.
        sinks: Number of first timesteps of an episode that stay visible although they are older
            than ``window`` or ``context_length`` (arXiv 2309.17453).
        positions: Encoding of the number of a timestep in its episode. ``sinusoidal``: sines and
            cosines are added to the input. ``learned``: a learnt table of ``num_positions``
            entries, which limits the length of an episode, is added. ``rotary``: queries and keys
            are rotated. See `yamame.trajectory.positions.Sinusoids`.
        num_positions: Size of the learnt table, only with ``positions=learned``; else None.
        position_precision: Precision of the angles of sines and cosines. ``float64``: exact in
            float32. ``float32``: as AMAGO's code computes them, off by about 1e-7 of
            ``step_index``; see `yamame.trajectory.positions.Float32Sinusoids`.
        norm_attention: Whether to apply LayerNorm after attention (NormFormer, arXiv 2110.09456).
        norm_feedforward: Whether to apply LayerNorm after the activation (NormFormer).
        head_scaling: Whether to learn one factor per head (NormFormer).
        sigma_reparam: Whether the layers use sigma-reparametrised linear maps (arXiv 2303.06296):
            more stable in very long training, slower at first.
        checkpoint_layers: Whether to store only the input of each layer for the backward pass and
            recompute the rest: a third more computation for a fraction of the memory. Results are
            unchanged.
        keys: Keys to read and write; None for the defaults.

    Raises:
        ArgumentError: An argument is out of range, or sizes do not fit together.
        ValueError: At a call on the CPU, ``step_index`` exceeds the learnt table.

    >>> encoder = TransformerEncoder(3, d_model=8, num_heads=2, num_layers=1).eval()
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(envs)["context"].shape
    torch.Size([5, 8])
    """

    @check_bounds
    def __init__(
        self,
        in_features: PositiveInt,
        *,
        d_model: PositiveInt = 128,
        num_heads: PositiveInt = 8,
        num_layers: NumLayers = 1,
        ff_factor: PositiveInt = 2,
        d_ff: PositiveInt | None = None,
        dropout: DropoutRate = 0.0,
        activation: Activation = "leaky_relu",
        context_length: PositiveInt | None = 1024,
        window: PositiveInt | None = None,
        sinks: NonNegativeInt = 0,
        positions: Positions = "sinusoidal",
        num_positions: PositiveInt | None = None,
        position_precision: PositionPrecision = "float64",
        norm_attention: bool = True,
        norm_feedforward: bool = True,
        head_scaling: bool = True,
        sigma_reparam: bool = False,
        checkpoint_layers: bool = False,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        _check_sizes(d_model, num_heads, context_length, window, sinks)
        # With a window, steps reproduce a history of any length, because both passes see the same.
        exact_length = context_length if window is None else None
        capacity = context_length if window is None else window + sinks
        super().__init__(in_features, d_model, context_length=exact_length, keys=keys)
        self.limit_memory(capacity, "context_length or window")
        self.num_heads = num_heads
        self.window, self.sinks, self.capacity = window, sinks, capacity
        self.checkpoint_layers = checkpoint_layers
        if checkpoint_layers:
            # checkpoint() copies the random state to the host, which a CUDA graph cannot capture.
            self.capture_obstacle = "checkpoint_layers"

        self.embed = nn.Linear(in_features, d_model)
        self.rotary = positions == "rotary"
        self.positions = _position_module(
            positions, num_positions, d_model, num_heads, precision=position_precision
        )
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList()
        for _ in range(num_layers):
            layer = TransformerLayer(
                d_model,
                num_heads,
                d_ff=ff_factor * d_model if d_ff is None else d_ff,
                dropout=dropout,
                activation=activation,
                norm_attention=norm_attention,
                norm_feedforward=norm_feedforward,
                head_scaling=head_scaling,
                sigma_reparam=sigma_reparam,
            )
            self.layers.append(layer)
        self.norm = nn.LayerNorm(d_model)
        # `power_iteration` in `_encode` updates all of them in one batched product.
        self._sigma_layers = iterate_together(self)

    def parallel(
        self, x: Tensor, step_index: Tensor, is_init: Tensor, num_segments: int | None = None
    ) -> Tensor:
        """Encode whole sequences; see `TrajectoryEncoder.parallel`.

        Args:
            x: ``[B, L, E]``.
            step_index: ``[B, L]`` int64.
            is_init: ``[B, L]`` bool, starts of episodes.
            num_segments: Upper bound of the number of starts; None to count them.

        Returns:
            ``[B, L, D]``.
        """
        attend = sequence_attention(
            is_init, window=self.window, sinks=self.sinks, num_segments=num_segments
        )
        return self._encode(x, step_index, lambda layer: attend)

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """Return an empty cache; see `yamame.trajectory.kv_cache`."""
        num_slots = 0
        if capacity is not None:
            num_slots = capacity
            if self.capacity is not None:
                num_slots = min(capacity, self.capacity)
        head_size = self.out_features // self.num_heads
        shape = (num_envs, len(self.layers), self.num_heads, num_slots, head_size)
        return init_cache(shape, like=self.norm.weight, device=device)

    def grow_by(self, memory: TensorDict, num_steps: int) -> tuple[TensorDict, int]:
        """Return a cache with slots for more timesteps; see `TrajectoryEncoder.grow_by`."""
        return grow_cache(memory, num_steps, capacity=self.capacity)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """Encode one timestep; see `TrajectoryEncoder.step`."""
        self.check_step(x, memory, is_init)
        num_slots = memory["keys"].shape[3]
        condition = "be positive: grow(memory) adds some"
        require("TransformerEncoder", "slots of memory", num_slots, num_slots > 0, condition)
        cache = CacheStep(memory, is_init, capacity=self.capacity, sinks=self.sinks)
        position = cache.position if step_index is None else step_index
        context = self._encode(x, position, cache.attention)
        return context, cache.next_cache()

    def _encode(self, x: Tensor, step_index: Tensor, attention: Callable[[int], Attend]) -> Tensor:
        """Apply the network.

        Args:
            x: ``[B, L, E]``, or ``[B, E]`` for one timestep.
            step_index: ``[B, L]`` or ``[B]`` int64.
            attention: Attention function of each layer, by its index.

        Returns:
            ``[B, L, D]`` or ``[B, D]``.
        """
        if self.training:
            # Once per training forward, and not inside of the layers: under checkpoint_layers a
            # layer runs again in the backward pass and must find the same u and v.
            power_iteration(self._sigma_layers)
        x = self.embed(x)  # [B, L, D]
        rotation = None
        if self.rotary:
            # [B, 1, L, d]
            rotation = self.positions(step_index).view(len(x), 1, -1, self.positions.size)
        else:
            x = x + self._added_positions(step_index)
        x = self.dropout(x)
        for index, layer in enumerate(self.layers):
            attend = attention(index)
            if self.checkpoint_layers and torch.is_grad_enabled():
                x = checkpoint(layer, x, attend, rotation, use_reentrant=False)
            else:
                x = layer(x, attend, rotation)
        return self.norm(x)

    def _added_positions(self, step_index: Tensor) -> Tensor:
        """Return the positions that are added to the embedded input: ``[*] -> [*, D]``."""
        try:
            positions: Tensor = self.positions(step_index)
        except IndexError as error:
            # CPU only: on CUDA this is a device-side assert, and a check before the lookup would
            # synchronize.
            size = self.positions.num_embeddings
            raise ArgumentError(
                "TransformerEncoder",
                "step_index",
                int(step_index.max()),
                f"be below num_positions {size}",
                remedy="set encoder.num_positions above the longest episode, or a limit of "
                "episodes, as env.time_limit",
            ) from error
        # Sinusoids are float32, which would promote the input of a bfloat16 network.
        return positions.to(self.norm.weight.dtype)


def _check_sizes(
    d_model: int, num_heads: int, context_length: int | None, window: int | None, sinks: int
) -> None:
    owner = "TransformerEncoder"
    divides = d_model % num_heads == 0
    require(owner, "d_model", d_model, divides, f"be a multiple of num_heads {num_heads}")
    # At least one slot must be left for the present timestep.
    needed = sinks + (window or 1)
    fits = context_length is None or context_length >= needed
    condition = f"hold sinks {sinks} and window {window}"
    require(owner, "context_length", context_length, fits, condition)


def _position_module(
    positions: Positions,
    num_positions: int | None,
    d_model: int,
    num_heads: int,
    *,
    precision: PositionPrecision,
) -> nn.Module:
    owner = "TransformerEncoder"
    require_choice(owner, "positions", positions, get_args(Positions))
    require_choice(owner, "position_precision", precision, get_args(PositionPrecision))
    if positions == "learned":
        condition = "be at least 1 for learned positions"
        require(owner, "num_positions", num_positions, num_positions is not None, condition)
        assert num_positions is not None
        return nn.Embedding(num_positions, d_model)

    condition = f"be None for {positions} positions"
    require(owner, "num_positions", num_positions, num_positions is None, condition)
    # A rotation turns pairs of numbers within a head; added sinusoids come in pairs, too.
    name, size = "d_model", d_model
    if positions == "rotary":
        name, size = "d_model / num_heads", d_model // num_heads
    require(owner, name, size, size % 2 == 0, f"be even for {positions} positions")
    return Float32Sinusoids(size) if precision == "float32" else Sinusoids(size)
