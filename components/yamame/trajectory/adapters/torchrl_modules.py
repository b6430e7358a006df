"""Transformers of TorchRL's `TransformerModule` as trajectory encoders, and the other way round.

TorchRL 0.15 has a module that runs a causal transformer over windows or step by step. The network
itself, its *backbone*, is any module with

* ``forward(features, positions, mask=None, kv_cache=None) -> (out, kv_cache)``: a window ``[B, T,
  E]`` under a mask ``[B, T, T]``, or one timestep ``[B, 1, E]`` with a cache; ``positions [B, T]``
  count from the start of each episode;
* ``new_kv_cache(batch_size, *, device) -> kv_cache``, whose content only the backbone knows;
* ``reset_kv_cache(kv_cache, mask) -> kv_cache``, which clears the rows ``mask [B]``;
* the attributes ``num_layers``, ``num_heads``, ``head_dim`` and ``max_seq_len``.

`TorchRLEncoder` makes a trajectory encoder of a backbone, `TorchRLBackbone` a backbone of a
trajectory encoder. Neither needs TorchRL 0.15; `causal_transformer` does.

`TransformerModule` begins all streams afresh when its weights change. `TorchRLEncoder` keeps its
memory, as all trajectory encoders do.
"""

import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torchrl.modules
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from yamame.checks import NumLayers, PositiveInt, check_bounds, require
from yamame.execution.capturing import capturing
from yamame.trajectory.adapters.parity import PARITY, difference_of_passes
from yamame.trajectory.base import Device, DropoutRate, TrajectoryEncoder, TrajectoryKeys
from yamame.trajectory.steps import encode_apart, segment_positions

_OWNER = "TorchRLEncoder"
_METHODS = ("forward", "new_kv_cache", "reset_kv_cache")
_CONTRACT = (*_METHODS, "num_layers", "num_heads", "head_dim", "max_seq_len")


class MissingTransformer(ImportError, ValueError):  # noqa: N818
    """Raised if the installed TorchRL has no `CausalTransformer`."""


@check_bounds
def causal_transformer(
    in_features: PositiveInt,
    *,
    d_model: PositiveInt = 128,
    num_heads: PositiveInt = 8,
    num_layers: NumLayers = 2,
    ff_factor: PositiveInt = 4,
    dropout: DropoutRate = 0.0,
    context_length: PositiveInt = 1024,
) -> nn.Module:
    """Return TorchRL's `CausalTransformer`, the backbone that it has of its own.

    Args:
        in_features: Size E of the features.
        d_model: Width, and size of the output.
        num_heads: Number of attention heads; divides ``d_model``.
        num_layers: Number of layers.
        ff_factor: Hidden size of the feed-forward parts, in multiples of ``d_model``.
        dropout: Dropout probability of the feed-forward parts, in [0, 1).
        context_length: Longest episode, in timesteps; a longer one is an error.

    Raises:
        ArgumentError: An argument is out of range.
        MissingTransformer: TorchRL is older than 0.15.
    """
    make = getattr(torchrl.modules, "CausalTransformer", None)
    if make is None:
        raise MissingTransformer(
            "causal_transformer: torchrl 0.15 or later must be installed, run: pip install"
            " 'torchrl>=0.15'"
        )
    backbone: nn.Module = make(
        in_features,
        d_model,
        num_layers,
        num_heads=num_heads,
        max_seq_len=context_length,
        dim_feedforward=ff_factor * d_model,
        dropout=dropout,
    )
    return backbone


class TorchRLEncoder(TrajectoryEncoder):
    """A backbone of TorchRL's `TransformerModule` (pytorch/rl#4193) as trajectory encoder.

    The memory has the tensors of the backbone's cache, and the ``position`` of each env, which
    counts from the start of the memory; ``step_index`` is not used. The constructor compares both
    passes and raises for a backbone in which they differ.

    Args:
        in_features: Size E of the features.
        backbone: Module with the contract described above, a `TransformerModule` that has one, or
            a function that returns it for ``in_features``.
        keys: Keys to read and write; None for the defaults.

    Raises:
        ArgumentError: The backbone lacks a method or attribute, its cache has other parts than
            tensors of N rows in tuples, lists, dictionaries or a TensorDict, or its passes differ.

    >>> from yamame.trajectory import GRUEncoder
    >>> backbone = TorchRLBackbone(GRUEncoder(3, hidden_size=8, out_features=4))
    >>> TorchRLEncoder(3, backbone=backbone).out_features
    4
    """

    capture_obstacle = _OWNER  # backbones compare positions with the length of their cache

    @check_bounds
    def __init__(
        self,
        in_features: PositiveInt,
        *,
        backbone: nn.Module | Callable[[int], nn.Module],
        keys: TrajectoryKeys | None = None,
    ) -> None:
        module: Any = backbone if isinstance(backbone, nn.Module) else backbone(in_features)
        lacking = _lacking(module)
        if lacking and hasattr(module, "transformer"):
            # A TransformerModule has no such methods, and holds its backbone in this attribute.
            module = module.transformer
            lacking = _lacking(module)
        condition = f"have {', '.join(_CONTRACT)}"
        remedy = f"it lacks {', '.join(lacking)}"
        require(_OWNER, "backbone", type(module).__name__, not lacking, condition, remedy=remedy)

        super().__init__(
            in_features,
            _output_size(module, in_features),
            context_length=int(module.max_seq_len),
            keys=keys,
        )
        self.backbone: Any = module
        # A cache of another form is an error here and not at the first step.
        self._names = _names_of(module.new_kv_cache(3), 3)
        self._check_passes()

    def parallel(self, x: Tensor, step_index: Tensor, is_init: Tensor) -> Tensor:
        """Encode ``[B, L, E]``, with starts ``[B, L]``, as ``[B, L, D]``."""
        position = segment_positions(is_init)
        self._check_positions(position)
        context: Tensor
        context, _ = self.backbone(x, position, mask=_causal_mask(is_init))
        return context

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """Return an empty cache, and positions of zero."""
        if device is None:
            device = next(self.backbone.parameters(), torch.empty(0)).device
        cache = self.backbone.new_kv_cache(num_envs, device=device)
        position = torch.zeros(num_envs, dtype=torch.int64, device=device)
        return self._as_memory(cache, position)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """Encode one timestep; see `TrajectoryEncoder.step`."""
        self.check_step(x, memory, is_init)
        position = memory["position"].masked_fill(is_init, 0)
        self._check_positions(position)
        cache = self.backbone.reset_kv_cache(self._as_cache(memory), is_init)
        context, cache = self.backbone(x.unsqueeze(1), position.unsqueeze(1), kv_cache=cache)
        return context.squeeze(1), self._as_memory(cache, position + 1)

    def _as_memory(self, cache: Any, position: Tensor) -> TensorDict:
        """Return a cache as a memory ``[N]``."""
        parts = {"cache": cache}
        if self._names is not None:
            names = pytree.tree_leaves(self._names)
            parts = dict(zip(names, pytree.tree_leaves(cache), strict=True))
        batch_size = [len(position)]
        entries = {"parts": TensorDict(parts, batch_size), "position": position}
        return TensorDict(entries, batch_size, device=position.device)

    def _as_cache(self, memory: TensorDict) -> Any:
        """Return the cache in a memory, as the backbone made it."""
        parts = memory["parts"]
        if self._names is None:
            return parts["cache"]
        return pytree.tree_map(parts.get, self._names)

    def _check_positions(self, position: Tensor) -> None:
        """Raise if a history is longer than the cache; on a device the backbone has to."""
        limit = self.context_length
        if limit is None or not position.is_cpu or capturing():
            return
        longest = int(position.max()) + 1
        condition = f"be at most max_seq_len {limit} of the backbone"
        remedy = "set a longer one, or end episodes before"
        fits = longest <= limit
        require(_OWNER, "timesteps of an episode", longest, fits, condition, remedy=remedy)

    def _check_passes(self) -> None:
        """Raise for a backbone whose two passes differ."""
        length = min(4, self.context_length or 4)
        if length < 2:
            return
        difference = difference_of_passes(self, length)
        condition = (
            f"give equal outputs for windows and for steps (they differ by {difference:.1e})"
        )
        holds = bool(difference <= PARITY)  # not for NaN
        require(_OWNER, "backbone", type(self.backbone).__name__, holds, condition)


class TorchRLBackbone(nn.Module):
    """A trajectory encoder as backbone of TorchRL's `TransformerModule` (pytorch/rl#4193).

    ``TransformerModule(transformer=TorchRLBackbone(encoder), in_key=..., out_key=...)``. The cache
    is a memory of the encoder, a TensorDict ``[B]``; a memory that grows is replaced by a larger
    one. The encoder's own ``keys`` and ``memory`` are not used.

    Args:
        encoder: Encoder of any kind.

    Attributes:
        max_seq_len: ``context_length`` of the encoder, or the largest integer without one.
        num_layers: 1: the cache of an encoder need not have layers or heads.
        num_heads: 1.
        head_dim: Size D of the context.

    >>> from yamame.trajectory import GRUEncoder
    >>> backbone = TorchRLBackbone(GRUEncoder(3, hidden_size=8, out_features=4))
    >>> window, _ = backbone(torch.zeros(2, 5, 3), torch.arange(5).expand(2, 5))
    >>> window.shape
    torch.Size([2, 5, 4])
    """

    num_layers = 1
    num_heads = 1

    def __init__(self, encoder: TrajectoryEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.head_dim = encoder.out_features
        self.max_seq_len = encoder.context_length or sys.maxsize

    def forward(
        self,
        features: Tensor,
        positions: Tensor,
        mask: Tensor | None = None,
        kv_cache: TensorDict | None = None,
    ) -> tuple[Tensor, TensorDict | None]:
        """Encode a window, or one timestep with a cache.

        Args:
            features: ``[B, T, E]``; T is 1 with a cache.
            positions: ``[B, T]`` int64; an episode begins where they are 0, and in the first column
                of a window.
            mask: ``[B, T, T]`` bool, True where a timestep (second dimension) sees another one.
                Only the mask of these positions is possible; on a CPU any other one is an error.
            kv_cache: Cache of `new_kv_cache` or of the last step.

        Returns:
            The context ``[B, T, D]``, and the next cache; None for a window.

        Raises:
            ArgumentError: The mask does not belong to the positions, or a step has several
                timesteps.
        """
        is_init = positions == 0
        if kv_cache is None:
            is_init[:, 0] = True
            if mask is not None and mask.is_cpu and not capturing():
                is_known = torch.equal(mask.bool(), _causal_mask(is_init))
                condition = "be causal within the episodes of positions"
                require("TorchRLBackbone", "mask", "another mask", is_known, condition)
            return encode_apart(self.encoder.parallel, features, positions, is_init), None

        num_steps = features.shape[1]
        condition = "be 1 with a cache"
        require("TorchRLBackbone", "timesteps of a step", num_steps, num_steps == 1, condition)
        memory = self.encoder.grow(kv_cache)
        x = features.squeeze(1)
        context, memory = self.encoder.step(x, memory, is_init.squeeze(1), positions.squeeze(1))
        return context.unsqueeze(1), memory

    def new_kv_cache(
        self, batch_size: int, *, device: Device = None, dtype: torch.dtype | None = None
    ) -> TensorDict:
        """Return a fresh memory of the encoder, which chooses its dtype itself."""
        return self.encoder.init_memory(batch_size, device=device)

    def reset_kv_cache(self, kv_cache: TensorDict, mask: Tensor) -> TensorDict:
        """Return a cache whose rows ``mask [B]`` are those of a fresh one, of the same size."""
        if mask.is_cpu and not capturing() and not bool(mask.any()):
            return kv_cache
        fresh = self.encoder.init_memory(len(kv_cache), device=kv_cache.device)

        def reset(stored: Tensor, new: Tensor) -> Tensor:
            row = mask.view(-1, *[1] * (stored.ndim - 1))
            return torch.where(row, _resized(new, stored), stored)

        return kv_cache.apply(reset, fresh)


def _causal_mask(is_init: Tensor) -> Tensor:
    """Return which timesteps each one sees, ``[B, T, T]``, from starts ``[B, T]``."""
    segment = is_init.cumsum(1)
    is_same = segment.unsqueeze(2) == segment.unsqueeze(1)
    return is_same.tril()


def _resized(new: Tensor, stored: Tensor) -> Tensor:
    """Return an entry of a fresh memory with the shape and dtype of a stored one.

    A memory grows by zeros (`yamame.trajectory.kv_cache`), and so does a fresh one here.
    """
    padding: list[int] = []
    for fresh_size, stored_size in zip(new.shape, stored.shape, strict=True):
        # `pad` begins with the last dimension.
        padding = [0, stored_size - fresh_size, *padding]
    return functional.pad(new, padding).to(stored.dtype)


def _lacking(backbone: nn.Module) -> list[str]:
    """Return the parts of the contract that a backbone has not."""
    return [name for name in _CONTRACT if not hasattr(backbone, name)]


def _names_of(cache: Any, num_envs: int) -> Any:
    """Return a cache with a name in place of each of its tensors; None for a TensorDict.

    Raises:
        ArgumentError: A part of it is no tensor, or has another number of rows.
    """
    is_tensordict = isinstance(cache, TensorDictBase)
    parts = [cache] if is_tensordict else pytree.tree_leaves(cache)
    for part in parts:
        has_rows = isinstance(part, Tensor | TensorDictBase) and part.shape[:1] == (num_envs,)
        found = list(part.shape) if isinstance(part, Tensor) else type(part).__name__
        condition = f"consist of tensors of as many rows as there are envs, {num_envs}"
        require(_OWNER, "new_kv_cache()", found, has_rows, condition)
    if is_tensordict:
        return None
    names = map(str, itertools.count())
    return pytree.tree_map(lambda _: next(names), cache)


@torch.no_grad()
def _output_size(backbone: Any, in_features: int) -> int:
    """Return the size of the output of a backbone."""
    weight = next(backbone.parameters(), torch.empty(0))
    x = weight.new_zeros(1, 1, in_features)
    position = torch.zeros(1, 1, dtype=torch.int64, device=weight.device)
    output, _ = backbone(x, position)
    return int(output.shape[-1])
