"""The default trajectory encoder: a causal Transformer, stabilised for reinforcement learning.

Pipeline: linear map of the features, positions of ``step_index``, dropout, layers (`TransformerLayer`), LayerNorm.

Source: AMAGO, arXiv 2310.09971, appendix A. Sliding window with sinks: arXiv 2309.17453.
"""

import warnings
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from yamame.capturing import capturing
from yamame.trajectory.acting import PreparedLayers
from yamame.trajectory.activation import Activation
from yamame.trajectory.attention import Attend, sequence_attention
from yamame.trajectory.base import TrajectoryEncoder, TrajectoryKeys
from yamame.trajectory.cache import (
    CacheStep,
    CompiledStep,
    arrange,
    make_room,
    num_groups,
    sort_rows,
    unsort_rows,
    wipe_rows,
)
from yamame.trajectory.causal_kernel import causal_kernel
from yamame.trajectory.dropout import Dropout
from yamame.trajectory.positions import Sinusoids
from yamame.trajectory.transformer_layer import TransformerLayer

Positions = Literal["sinusoidal", "learned", "rotary"]


class TransformerEncoder(TrajectoryEncoder):
    """Attention over the whole history; see the module for the exact network.

    Acting keeps keys and values of the last ``context_length`` timesteps. As long as an episode is no longer,
    acting equals the parallel pass; afterwards the oldest is forgotten while the parallel pass still sees it.
    With a ``window`` both see the same at any length, since the parallel pass is restricted too.

    More arguments than a constructor should have, each a setting of its own in an ablation or a
    configuration.

    Args:
        in_features: Size E of the features.
        d_model: Size D of the residual stream and of the context.
        num_heads: Number of heads; divides ``d_model``.
        num_layers: Number of layers.
        ff_factor: Hidden size of the feed-forward part, in multiples of ``d_model``.
        dropout: Probability on the embedded input and on every feed-forward branch.
        activation: Of the feed-forward parts.
        context_length: How many timesteps acting remembers; None for all, with a cache that grows.
        window: How many of the latest timesteps, the present one included, a timestep sees in each layer;
            None for all.
        sinks: How many of the first timesteps after a start stay visible for ever, beside the window or the
            latest ``context_length - sinks``.
        positions: How ``step_index`` enters: added sines and cosines (``sinusoidal``, no limit), an added
            learnt table (``learned``) or rotated queries and keys (``rotary``, no limit).
        num_positions: Size of the learnt table; only with ``positions="learned"``.
        norm_attention: LayerNorm after attention (NormFormer).
        norm_feedforward: LayerNorm after the activation (NormFormer).
        head_scaling: One learnt factor per head (NormFormer).
        sigma_reparam: Sigma-reparametrised linear maps in the layers: for very long training; slow at first.
        checkpoint_layers: Keep of every layer only its input for the backward pass and compute the rest again
            there: a third more computation, for a fraction of the memory. Changes no number.
        compiled: Attend within sequences by a function compiled for this size of heads, in float32 on a CPU: twice
            as fast as PyTorch's, and more where sequences hold several episodes. Changes the last bits.
        keys: Where to read and write, if not under the usual names.

    Raises:
        ValueError: If sizes do not fit together, something is to be compiled and cannot be, or at a call whose
            ``step_index`` the learnt table lacks.

    >>> from tensordict import TensorDict
    >>> encoder = TransformerEncoder(3, d_model=8, num_heads=2, num_layers=1).eval()
    >>> row = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(row)["context"].shape
    torch.Size([5, 8])
    """

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
        compiled: bool = False,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        _check_sizes(d_model, num_heads, num_layers=num_layers, ff_factor=ff_factor, dropout=dropout)
        _check_memory(context_length, window, sinks)
        super().__init__(
            in_features, d_model, context_length=context_length if window is None else None, keys=keys
        )
        self.num_heads = num_heads
        self.checkpoint_layers = checkpoint_layers
        if compiled:
            _compile(d_model // num_heads, sinks)
        self.compiled = compiled
        # Computing a layer again begins with reading the state of the generator of its dropout.
        self.capture_obstacle = "checkpoint_layers" if checkpoint_layers else None
        self.window = window
        self.sinks = sinks
        self.capacity = context_length if window is None else window + sinks
        self.embed = nn.Linear(in_features, d_model)
        self.rotary = positions == "rotary"
        self.positions = _position_module(positions, num_positions, d_model, num_heads)
        self.dropout = Dropout(dropout) if dropout else nn.Identity()
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

    def parallel(self, x: Tensor, step_index: Tensor, starts: Tensor) -> Tensor:
        """``[B, L, E]``, ``[B, L]``, ``[B, L]`` -> ``[B, L, D]``."""
        attend = sequence_attention(starts, window=self.window, sinks=self.sinks, compiled=self.compiled)
        return self._encode(x, step_index, [attend] * len(self.layers))

    def init_memory(self, num_rows: int, like: Tensor) -> dict[str, Tensor]:
        """An empty cache ``entries`` ``[layers, 2, N, G, 0, w]``."""
        dtype, groups = self._cache_layout()
        shape = (len(self.layers), 2, num_rows, groups, 0, self.out_features // groups)
        return {"entries": torch.zeros(shape, dtype=dtype, device=like.device)}

    def make_room(self, memory: dict[str, Tensor]) -> None:
        """Also lays the cache out as this step wants it; see `TrajectoryEncoder.make_room`."""
        dtype, groups = self._cache_layout()
        entries = arrange(memory["entries"], groups, self.out_features // self.num_heads, dtype)
        memory["entries"] = make_room(entries, int(memory["age"].max()) + 1, capacity=self.capacity)

    def advance(self, x: Tensor, step_index: Tensor, starts: Tensor, memory: dict[str, Tensor]) -> Tensor:
        """``[N, E]``, ``[N]``, ``[N]`` -> ``[N, D]``; see `TrajectoryEncoder.advance`."""
        age = memory["age"]
        prepared = self._uses_prepared()
        kernel = self._prepared.kernel if prepared else None
        moved = None
        with torch.inference_mode(False):
            if kernel is None:
                moved = sort_rows(memory, capacity=self.capacity)
            else:
                unsort_rows(memory)
        entries = memory["entries"]
        if moved is not None:
            order, place = moved
            x, step_index, age, starts = (value[order] for value in (x, step_index, age, starts))
        wipe_rows(entries, starts)
        step: CacheStep | CompiledStep
        if kernel is None:
            step = CacheStep(entries, age, capacity=self.capacity, sinks=self.sinks)
        else:
            step = CompiledStep(kernel, entries, age, capacity=self.capacity, sinks=self.sinks)
        if prepared:
            x, rotation = self._enter(x, step_index)
            found = self.norm(self._prepared(x, step, rotation))
        else:
            assert isinstance(step, CacheStep)
            attends = [step.layer(index) for index in range(len(self.layers))]
            found = self._encode(x.unsqueeze(1), step_index.unsqueeze(1), attends).squeeze(1)
        return found if moved is None else found[place]

    def _prepare(self) -> PreparedLayers:
        return PreparedLayers(self.layers, self._compute_dtype, compiled=self._compiled)

    def _encode(self, x: Tensor, step_index: Tensor, attends: list[Attend]) -> Tensor:
        x, rotation = self._enter(x, step_index)
        again = self.checkpoint_layers and torch.is_grad_enabled()
        for layer, attend in zip(self.layers, attends, strict=True):
            run: Callable[..., Tensor] = layer.checkpointed if again else layer  # type: ignore[assignment]
            x = run(x, attend, rotation)
        return self.norm(x)

    def _enter(self, x: Tensor, step_index: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the layers begin with, and the angles of rotary positions."""
        x = self.embed(x)
        if self.rotary:
            return self.dropout(x), self.positions(step_index).unsqueeze(1)
        self._check_positions(step_index)
        return self.dropout(x + self.positions(step_index).to(self.norm.weight.dtype)), None

    def _uses_prepared(self) -> bool:
        return self._prepared is not None and not torch.is_autocast_enabled(self.norm.weight.device.type)

    def _cache_layout(self) -> tuple[torch.dtype, int]:
        """Dtype and number of groups of keys and values as attention wants them."""
        if self._uses_prepared():
            dtype, compiled = self._prepared.dtype, self._prepared.kernel is not None
            return dtype, num_groups(self.num_heads, dtype, compiled=compiled)
        weight = self.norm.weight
        dtype = weight.dtype
        if not weight.is_cpu and torch.is_autocast_enabled(weight.device.type):
            dtype = torch.get_autocast_dtype(weight.device.type)
        return dtype, num_groups(self.num_heads, dtype, compiled=False)

    def _check_positions(self, step_index: Tensor) -> None:
        if isinstance(self.positions, nn.Embedding) and not capturing():
            largest, size = int(step_index.max()), self.positions.num_embeddings
            if largest >= size:
                raise ValueError(
                    f"TransformerEncoder: step_index must be below num_positions {size}, got {largest}"
                )


def _check_sizes(d_model: int, num_heads: int, *, num_layers: int, ff_factor: int, dropout: float) -> None:
    sizes = {"d_model": d_model, "num_heads": num_heads, "num_layers": num_layers, "ff_factor": ff_factor}
    for label, size in sizes.items():
        if size < 1:
            raise ValueError(f"TransformerEncoder: {label} must be at least 1, got {size}")
    if d_model % num_heads:
        raise ValueError(
            f"TransformerEncoder: d_model must be a multiple of num_heads, got d_model {d_model} and"
            f" num_heads {num_heads}"
        )
    if not 0 <= dropout < 1:
        raise ValueError(f"TransformerEncoder: dropout must lie in [0, 1), got {dropout}")


def _check_memory(context_length: int | None, window: int | None, sinks: int) -> None:
    if window is not None and window < 1:
        raise ValueError(f"TransformerEncoder: window must be at least 1 or None, got {window}")
    if sinks < 0:
        raise ValueError(f"TransformerEncoder: sinks must be at least 0, got {sinks}")
    needed = sinks + (1 if window is None else window)
    if context_length is not None and context_length < needed:
        raise ValueError(
            f"TransformerEncoder: context_length must hold sinks and window, got context_length"
            f" {context_length}, sinks {sinks} and window {window}"
        )


def _compile(head_size: int, sinks: int) -> None:
    if sinks:
        raise ValueError(f"TransformerEncoder: compiled must be false with sinks, got true and {sinks} sinks")
    causal_kernel(head_size)


def _position_module(
    positions: Positions, num_positions: int | None, d_model: int, num_heads: int
) -> nn.Module:
    if positions not in get_args(Positions):
        raise ValueError(
            f"TransformerEncoder: positions must be one of {get_args(Positions)}, got {positions!r}"
        )
    if positions == "learned":
        if num_positions is None or num_positions < 1:
            raise ValueError(
                f"TransformerEncoder: num_positions must be at least 1 for learned positions,"
                f" got {num_positions}"
            )
        return nn.Embedding(num_positions, d_model)
    if num_positions is not None:
        warnings.warn(
            f"TransformerEncoder: num_positions {num_positions} is ignored with {positions} positions",
            stacklevel=3,
        )
    size = d_model if positions == "sinusoidal" else d_model // num_heads
    if size % 2:
        kind = "d_model" if positions == "sinusoidal" else "d_model / num_heads"
        raise ValueError(f"TransformerEncoder: {kind} must be even for {positions} positions, got {size}")
    return Sinusoids(size)
