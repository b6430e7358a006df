"""Transformers that process their history in segments: common base of `RSMEncoder`, `MemoEncoder`.

A segment is one causal attention over memory slots, up to C timesteps and M write slots::

    [ memory slots | timesteps | write slots ]

Write slots start as learnt queries. When the segment is full and the next timestep arrives, their
outputs become memory slots of the next segment: the only way from one segment to the next.
Positions are places in the segment, so the length of an episode cannot be read from them. Gradients
pass every boundary. ``step_index`` is not used.

Training and acting apply the same layers (`TransformerLayer`). The parallel pass encodes the first
segments of all episodes at once, then all second ones, and so on, at any place in their rows: the
timesteps of one turn stand side by side, and attend to those of the same episode. So packed rows
cost no more than others. A step attends to a cache.

The memory of acting is a TensorDict ``[N]`` with S slots, C timesteps followed by the memory slots:

==============  =========================  =================================================
key             shape                      meaning
==============  =========================  =================================================
``keys``        ``[N, layers, H, S, d]``   keys visible to the present segment
``values``      ``[N, layers, H, S, d]``   their values
``filled``      ``[N]`` int64              timesteps in the present segment
``boundaries``  ``[N]`` int64              boundaries passed since the start
==============  =========================  =================================================
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from yamame.checks import Bounds, require
from yamame.execution.capturing import capturing
from yamame.trajectory.attention import Attend, dot_product
from yamame.trajectory.base import (
    Activation,
    Device,
    TrajectoryEncoder,
    TrajectoryKeys,
)
from yamame.trajectory.kv_cache import init_cache
from yamame.trajectory.positions import Sinusoids
from yamame.trajectory.steps import segment_positions
from yamame.trajectory.transformer import TransformerLayer

Jitter = Annotated[float, Bounds(least=0, below=1)]
"""Largest relative deviation of the length of a segment."""
SPREAD = 3**-0.5
"""Initial standard deviation of learnt slots: that of a new linear map of normalised values."""
EVERYONE = -1
"""Owner of slots that every episode sees. Episodes are numbered from 1; unused slots have 0."""


class Slots(NamedTuple):
    """Memory slots of a turn, for R episodes of each row.

    Attributes:
        tokens: ``[B, R, M, D]``.
        owner: ``[B, R]`` int64, numbers of the episodes in their row.
    """

    tokens: Tensor
    owner: Tensor


class SegmentEncoder(TrajectoryEncoder):
    """Base class of segment encoders; see the module.

    A subclass defines the memory slots: `first_slots` and `next_slots` of whole sequences,
    `needs_slots` and `write_slots` of steps, and `slot_position` of both. The arguments are those
    of `RSMEncoder` and `MemoEncoder`.
    """

    parameter_roles: ClassVar[Mapping[str, str]] = {"queries": "table"}
    keeps_slots = False
    """Whether the slots of earlier boundaries stay visible."""

    def __init__(
        self,
        in_features: int,
        *,
        d_model: int,
        num_heads: int,
        num_layers: int,
        ff_factor: int,
        dropout: float,
        activation: Activation,
        segment_length: int,
        num_slots: int,
        jitter: float,
        context_length: int | None,
        keys: TrajectoryKeys | None,
    ) -> None:
        fits = d_model % num_heads == 0 and d_model % 2 == 0
        condition = f"be an even multiple of num_heads {num_heads}"
        require(type(self).__name__, "d_model", d_model, fits, condition)
        super().__init__(in_features, d_model, context_length=context_length, keys=keys)
        self.num_heads = num_heads
        self.segment_length = segment_length
        self.num_slots = num_slots
        self.jitter = jitter
        if jitter:
            # Lengths are drawn on the host: a recording would repeat those of its capture.
            self.capture_obstacle = "jitter"

        self.embed = nn.Linear(in_features, d_model)
        self.queries = nn.Parameter(SPREAD * torch.randn(num_slots, d_model))
        self.positions = Sinusoids(d_model)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList()
        for _ in range(num_layers):
            layer = TransformerLayer(
                d_model,
                num_heads,
                d_ff=ff_factor * d_model,
                dropout=dropout,
                activation=activation,
                norm_attention=True,
                norm_feedforward=True,
                head_scaling=True,
                sigma_reparam=False,
            )
            self.layers.append(layer)
        self.norm = nn.LayerNorm(d_model)

    @abstractmethod
    def first_slots(self, num_rows: int) -> Slots:
        """Return the memory slots of first segments."""

    @abstractmethod
    def next_slots(self, written: Slots, read: Slots) -> Slots:
        """Return the memory slots of the next segment.

        Args:
            written: Outputs of the write slots of this segment.
            read: Memory slots of this segment.
        """

    @abstractmethod
    def slot_position(self, boundaries: Tensor) -> Tensor:
        """Return the number of memory slots visible in a segment after ``boundaries`` boundaries.

        The number is also the place of the first timestep in the segment.
        """

    @abstractmethod
    def needs_slots(self, memory: TensorDict, full: Tensor) -> Tensor:
        """Return the envs ``[N]`` for which `write_slots` has an effect."""

    @abstractmethod
    def write_slots(self, memory: TensorDict, full: Tensor) -> None:
        """Write the memory slots of the next segment into ``memory``.

        Args:
            memory: ``[N]``.
            full: ``[N]`` bool, envs whose segment ends.
        """

    # Whole sequences.

    def parallel(self, x: Tensor, step_index: Tensor, is_init: Tensor) -> Tensor:
        """Encode ``[B, L, E]``, with starts ``[B, L]``, as ``[B, L, D]``."""
        batch, length, _ = x.shape
        x = self.embed(x)
        position = segment_positions(is_init)  # [B, L], timestep in the episode
        episode = is_init.cumsum(1)  # [B, L], number of the episode in its row, from 1
        bounds = self._bounds(length)
        ends = position.new_tensor(bounds[1:])
        turn = torch.bucketize(position, ends, right=True)  # [B, L], number of the segment
        sizes = _turn_sizes(turn, position, bounds)

        read = self.first_slots(batch)
        attention = _TurnAttention(len(self.layers))
        contexts = []
        place = torch.zeros_like(position)  # [B, L], place of each timestep among the contexts
        num_before = 0
        for index, (num_timesteps, _) in enumerate(sizes):
            # Timesteps of this turn, side by side. A row with fewer of them is filled with columns
            # that have no owner; no output of these is used.
            here = turn == index
            column, owner = _first(here, num_timesteps, episode)  # [B, T]
            timesteps = _gather(x, column)
            offset = position.gather(1, column) - bounds[index]
            offset = offset.clamp_min(0)  # of columns without an owner
            # Write slots for each episode that continues after this segment.
            num_writers = sizes[index + 1][1] if index + 1 < len(sizes) else 0
            continues = position == bounds[index + 1]
            _, writer = _first(continues, num_writers, episode)  # [B, W]
            queries = self.queries.expand(batch, num_writers, -1, -1)

            # Memory slots end where the timesteps begin; write slots begin where these end.
            base = self.slot_position(position.new_tensor(index))
            slot = torch.arange(self.num_slots, device=x.device)
            slots_read = read.tokens.shape[2]
            read_at = base - slots_read + slot[:slots_read]
            read_at = read_at.expand(read.tokens.shape[:3])
            write_at = base + bounds[index + 1] - bounds[index] + slot
            write_at = write_at.expand(batch, num_writers, -1)

            read_tokens = read.tokens.flatten(1, 2)
            read_owner = _repeat(read.owner, slots_read)
            writer_owner = _repeat(writer, self.num_slots)
            num_read = read_owner.shape[1]
            tokens = torch.cat((read_tokens, timesteps, queries.flatten(1, 2)), 1)
            at = torch.cat((read_at.flatten(1), base + offset, write_at.flatten(1)), 1)
            owners = torch.cat((read_owner, owner, writer_owner), 1)
            attend = attention.of_turn(owners, keep=num_read if self.keeps_slots else 0)
            out = self._encode(tokens, at, attend)

            _, context, written = out.tensor_split((num_read, num_read + num_timesteps), 1)
            contexts.append(context)
            place = torch.where(here, here.cumsum(1) - 1 + num_before, place)
            num_before += num_timesteps
            written = written.unflatten(1, (num_writers, self.num_slots))
            read = self.next_slots(Slots(written, writer), read)

        return _gather(torch.cat(contexts, 1), place)

    def _bounds(self, length: int) -> list[int]:
        """Return the first timestep of every segment of an episode, and the end of the last one."""
        spread = 0
        if self.training:
            spread = int(self.jitter * self.segment_length)
        bounds = [0]
        while bounds[-1] < length:
            size = self.segment_length
            if spread:
                size += int(torch.randint(-spread, spread + 1, ()))
            bounds.append(bounds[-1] + size)
        return bounds

    def _encode(self, tokens: Tensor, at: Tensor, attention: Callable[[int], Attend]) -> Tensor:
        """Apply the layers.

        Args:
            tokens: ``[B, T, D]``.
            at: ``[B, T]`` int64, places of the tokens in their segment.
            attention: Attention function of each layer, by its index.

        Returns:
            ``[B, T, D]``.
        """
        positions = self.positions(at).to(self.norm.weight.dtype)
        x = self.dropout(tokens + positions)
        for index, layer in enumerate(self.layers):
            x = layer(x, attention(index), None)
        return self.norm(x)

    # Steps.

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """Return an empty memory; see the module."""
        num_slots = self.segment_length + self.memory_slots(capacity)
        head_size = self.out_features // self.num_heads
        shape = (num_envs, len(self.layers), self.num_heads, num_slots, head_size)
        counts = ("filled", "boundaries")
        return init_cache(shape, like=self.norm.weight, device=device, counts=counts)

    def memory_slots(self, capacity: int | None) -> int:
        """Return the number of memory slots of a new memory."""
        return self.num_slots

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """Encode one timestep; see `TrajectoryEncoder.step`."""
        self.check_step(x, memory, is_init)
        memory = memory.copy()
        for name in ("filled", "boundaries"):
            memory[name] = memory[name].masked_fill(is_init, 0)
        full = memory["filled"] == self.segment_length

        # Most steps pass no boundary and skip the slots. Captured code cannot branch and computes
        # them for all envs, which changes no context.
        if capturing() or bool(self.needs_slots(memory, full).any()):
            self.write_slots(memory, full)
        filled = memory["filled"].masked_fill(full, 0)
        memory["filled"] = filled
        memory["boundaries"] = memory["boundaries"] + full.to(torch.int64)

        num_slots = self.slot_position(memory["boundaries"])
        tokens = self.embed(x).unsqueeze(1)  # [N, 1, D]
        at = (num_slots + filled).unsqueeze(1)
        store_at = filled.unsqueeze(1)
        everywhere = torch.ones_like(full)
        context = self.attend(memory, tokens, at, num_slots, store_at, everywhere)
        memory["filled"] = filled + 1
        return context.squeeze(1), memory

    def attend(
        self,
        memory: TensorDict,
        tokens: Tensor,
        at: Tensor,
        visible_slots: Tensor,
        store_at: Tensor | None = None,
        where: Tensor | None = None,
    ) -> Tensor:
        """Encode T tokens of every env, which attend to each other causally and to the memory.

        Args:
            memory: ``[N]``; its first ``filled`` timesteps are visible.
            tokens: ``[N, T, D]``.
            at: ``[N, T]``, places of the tokens.
            visible_slots: ``[N]``, number of its memory slots that are visible.
            store_at: ``[N, T]`` slots in which keys and values are stored; None to store nothing.
            where: ``[N]`` bool, envs whose keys and values are stored.

        Returns:
            ``[N, T, D]``.
        """
        num_envs, num_tokens = at.shape
        num_held = memory["keys"].shape[3]
        slot = torch.arange(num_held, device=at.device)
        is_timestep = slot < memory["filled"].unsqueeze(1)  # [N, S]
        memory_slot = slot - self.segment_length
        is_visible = memory_slot < visible_slots.unsqueeze(1)
        is_slot = (memory_slot >= 0) & is_visible
        visible = (is_timestep | is_slot).view(num_envs, 1, 1, num_held)
        visible = visible.expand(-1, -1, num_tokens, -1)  # [N, 1, T, S]
        causal = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=at.device)
        causal = causal.tril().expand(num_envs, 1, -1, -1)  # [N, 1, T, T]
        mask = torch.cat((visible, causal), -1)

        def attention(layer: int) -> Attend:
            def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                held_keys = memory["keys"][:, layer]  # [N, H, S, d]
                held_values = memory["values"][:, layer]
                k = k.to(held_keys.dtype)
                v = v.to(held_values.dtype)
                keys = torch.cat((held_keys, k), 2)
                values = torch.cat((held_values, v), 2)
                # After the copies above, which must not contain the new keys twice.
                if store_at is not None and where is not None:
                    _store(held_keys, k, store_at, where)
                    _store(held_values, v, store_at, where)
                q = q.to(keys.dtype)
                return dot_product(q, keys, values, mask=mask)

            return attend

        return self._encode(tokens, at, attention)


class _TurnAttention:
    """Attention of the turns of a parallel pass.

    Holds keys and values of memory slots that stay visible in later turns.
    """

    def __init__(self, num_layers: int) -> None:
        self.held: list[tuple[Tensor, Tensor] | None] = [None] * num_layers
        self.owner: Tensor | None = None

    def of_turn(self, owner: Tensor, *, keep: int) -> Callable[[int], Attend]:
        """Return the attention of each layer among tokens with the same owner.

        Args:
            owner: ``[B, T]``, owners of the tokens of this turn.
            keep: Number of first tokens that stay visible in later turns.
        """
        num_held = 0
        key_owner = owner
        if self.owner is not None:
            num_held = self.owner.shape[1]
            key_owner = torch.cat((self.owner, owner), 1)
        is_same = owner.unsqueeze(2) == key_owner.unsqueeze(1)  # [B, T, held + T]
        is_shared = (key_owner == EVERYONE).unsqueeze(1)
        # Causal among the tokens of this turn; all held keys are earlier.
        mask = (is_same | is_shared).tril(num_held).unsqueeze(1)
        num_kept = num_held + keep
        if keep:
            self.owner = key_owner[:, :num_kept]

        def of_layer(layer: int) -> Attend:
            def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                held = self.held[layer]
                if held is not None:
                    k = torch.cat((held[0], k), 2)
                    v = torch.cat((held[1], v), 2)
                if keep:
                    kept_keys = k[:, :, :num_kept]
                    kept_values = v[:, :, :num_kept]
                    self.held[layer] = (kept_keys, kept_values)
                return dot_product(q, k, v, mask=mask)

            return attend

        return of_layer


def _turn_sizes(turn: Tensor, position: Tensor, bounds: list[int]) -> list[tuple[int, int]]:
    """Return the most timesteps and the most episodes of a row, for every turn.

    While capturing, these are upper bounds that do not depend on values of tensors.
    """
    length = turn.shape[1]
    if capturing():
        return [(length - first, length // (first + 1)) for first in bounds[:-1]]

    counts = []
    for index, first in enumerate(bounds[:-1]):
        num_timesteps = (turn == index).sum(1).amax()
        num_episodes = (position == first).sum(1).amax()
        counts.append(torch.stack((num_timesteps, num_episodes)))
    sizes = torch.stack(counts).tolist()  # one synchronisation for all turns
    return [(timesteps, episodes) for timesteps, episodes in sizes if timesteps]


def _first(flag: Tensor, count: int, episode: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first columns in which a flag is set.

    Args:
        flag: ``[B, L]`` bool.
        count: Number of columns.
        episode: ``[B, L]`` int64, number of the episode of each column.

    Returns:
        The columns ``[B, count]``, and their episodes, 0 if a row has fewer.
    """
    if not count:
        return episode[:, :0], episode[:, :0]
    # A stable sort keeps the order in time.
    order = flag.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
    column = order[:, :count]
    is_set = flag.gather(1, column)
    owner = episode.gather(1, column) * is_set
    return column, owner


def _gather(x: Tensor, column: Tensor) -> Tensor:
    """Return the timesteps ``[B, T, D]`` of ``[B, L, D]`` in the columns ``[B, T]``."""
    index = column.unsqueeze(-1).expand(-1, -1, x.shape[-1])
    return x.gather(1, index)


def _repeat(owner: Tensor, times: int) -> Tensor:
    """Repeat each owner for all of its slots: ``[B, R] -> [B, R * times]``."""
    repeated = owner.unsqueeze(2).expand(-1, -1, times)
    return repeated.flatten(1)


def _store(cache: Tensor, new: Tensor, slot: Tensor, where: Tensor) -> None:
    """Store keys or values in a layer of the cache.

    Args:
        cache: ``[N, H, S, d]``, written in place.
        new: ``[N, H, T, d]``.
        slot: ``[N, T]`` int64.
        where: ``[N]`` bool, envs that are written.
    """
    # An env that is not written may have a slot beyond the memory.
    slot = slot.clamp(max=cache.shape[2] - 1)
    index = slot.view(len(slot), 1, -1, 1).expand_as(new)
    old = cache.gather(2, index)
    # NaN and Inf would reach other timesteps even through an attention weight of zero.
    finite = new.nan_to_num()
    value = torch.where(where.view(-1, 1, 1, 1), finite, old)
    cache.scatter_(2, index, value)
