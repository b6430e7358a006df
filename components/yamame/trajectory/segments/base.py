"""Transformers that read their history in segments: what `RSMEncoder` and `MemoEncoder` have in
common.

A segment is one causal attention over memory slots, up to C timesteps and M write slots::

    [ memory slots | timesteps | write slots ]

Write slots begin as learnt queries. What they come out as, when the segment is full and the next
timestep arrives, becomes memory slots of the next segment: the only way from one to the next.
Positions are places in the segment, so nothing tells how long an episode is. Gradients pass every
boundary. ``step_index`` is not used.

Training and acting run the same layers (`TransformerLayer`). The parallel pass takes the first
segments of all episodes at once, then all second ones, and so on, wherever they lie in their rows:
timesteps of one turn stand side by side, and see what belongs to the same episode. So packed rows
cost no more than others. A step attends to a cache.

The memory of acting is a TensorDict ``[N]``, slots being C timesteps and then the memory slots:

==============  =========================  =====================================================
key             shape                      meaning
==============  =========================  =====================================================
``keys``        ``[N, layers, H, S, d]``   of what the present segment sees
``values``      ``[N, layers, H, S, d]``   likewise
``filled``      ``[N]`` int64              timesteps in the present segment
``boundaries``  ``[N]`` int64              boundaries passed since the start
==============  =========================  =====================================================
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from yamame.checks import require, require_at_least
from yamame.execution.capturing import capturing
from yamame.trajectory.attention import Attend, dot_product
from yamame.trajectory.base import (
    Activation,
    Device,
    TrajectoryEncoder,
    TrajectoryKeys,
    segment_positions,
)
from yamame.trajectory.kv_cache import init_cache
from yamame.trajectory.positions import Sinusoids
from yamame.trajectory.transformer import TransformerLayer

SPREAD = 3**-0.5
"""Of learnt slots in the beginning: that of a new linear map of normalised values."""
EVERYONE = -1
"""Owner of slots that every episode sees; of nobody's it is 0."""


class Slots(NamedTuple):
    """Memory slots of a turn: ``tokens`` ``[B, R, M, D]`` of R episodes, ``owner`` ``[B, R]`` their
    numbers.
    """

    tokens: Tensor
    owner: Tensor


class SegmentEncoder(TrajectoryEncoder):
    """See the module. A subclass says what memory slots are: `first_slots` and `next_slots` of
    whole sequences, `needs_slots` and `write_slots` of steps, and `slot_position`."""

    parameter_roles: ClassVar[Mapping[str, str]] = {"queries": "table"}
    keeps_slots = False
    """Whether the slots of earlier boundaries stay."""

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
        owner = type(self).__name__
        sizes = {
            "d_model": d_model,
            "num_heads": num_heads,
            "num_layers": num_layers,
            "ff_factor": ff_factor,
        }
        require_at_least(owner, 1, **sizes, segment_length=segment_length, num_slots=num_slots)
        condition = f"be an even multiple of num_heads {num_heads}"
        require(owner, "d_model", d_model, d_model % num_heads == d_model % 2 == 0, condition)
        require(owner, "dropout", dropout, 0 <= dropout < 1, "lie in [0, 1)")
        require(owner, "jitter", jitter, 0 <= jitter < 1, "lie in [0, 1)")
        super().__init__(in_features, d_model, context_length=context_length, keys=keys)
        self.num_heads, self.segment_length, self.num_slots = num_heads, segment_length, num_slots
        self.jitter = jitter
        if jitter:  # its lengths are drawn on the host
            self.capture_obstacle = "jitter"
        self.embed = nn.Linear(in_features, d_model)
        self.queries = nn.Parameter(SPREAD * torch.randn(num_slots, d_model))
        self.positions = Sinusoids(d_model)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            TransformerLayer(
                d_model, num_heads, d_ff=ff_factor * d_model, dropout=dropout, activation=activation
            )
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model)

    @abstractmethod
    def first_slots(self, num_rows: int) -> Slots:
        """What first segments see of a memory."""

    @abstractmethod
    def next_slots(self, written: Slots, read: Slots) -> Slots:
        """The memory slots of the next segment, from what write slots came out as and what this one
        has read.
        """

    @abstractmethod
    def slot_position(self, boundaries: Tensor) -> Tensor:
        """Place of the first timestep in a segment after so many boundaries: how many memory slots
        it sees.
        """

    @abstractmethod
    def needs_slots(self, memory: TensorDict, full: Tensor) -> Tensor:
        """For which envs ``[N]`` `write_slots` does anything."""

    @abstractmethod
    def write_slots(self, memory: TensorDict, full: Tensor) -> None:
        """Writes into ``memory`` what its next segment sees where ``full`` ``[N]`` says that one
        ends.
        """

    # Whole sequences.

    def parallel(self, x: Tensor, step_index: Tensor, is_init: Tensor) -> Tensor:
        """``[B, L, E]``, ``[B, L]``, ``[B, L]`` -> ``[B, L, D]``."""
        x, position, episode = self.embed(x), segment_positions(is_init), is_init.cumsum(1)
        bounds = self._bounds(x.shape[1])
        turn = torch.bucketize(position, position.new_tensor(bounds[1:]), right=True)
        sizes = _turn_sizes(turn, position, bounds)
        read, held = self.first_slots(len(x)), _Held(len(self.layers))
        contexts, place, before = [], torch.zeros_like(position), 0
        for index, (num_timesteps, _) in enumerate(sizes):
            here, base = turn == index, self.slot_position(position.new_tensor(index))
            column, owner = _first(here, num_timesteps, episode)
            timesteps = x.gather(1, column.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
            # Where a row has fewer timesteps in this segment, columns without an owner are filled:
            # nothing reads them.
            offset = (position.gather(1, column) - bounds[index]).clamp_min(0)
            num_writers = sizes[index + 1][1] if index + 1 < len(sizes) else 0
            _, writer = _first(position == bounds[index + 1], num_writers, episode)
            count = torch.arange(self.num_slots, device=x.device)
            read_at = base - read.tokens.shape[2] + count[: read.tokens.shape[2]]
            write_at = base + bounds[index + 1] - bounds[index] + count
            tokens = (read.tokens, timesteps, self.queries.expand(len(x), num_writers, -1, -1))
            at = (
                read_at.expand(read.tokens.shape[:3]),
                base + offset,
                write_at.expand(len(x), num_writers, -1),
            )
            owners = (
                _repeated(read.owner, read.tokens.shape[2]),
                owner,
                _repeated(writer, self.num_slots),
            )
            out = self._encode(
                torch.cat([part.reshape(len(x), -1, x.shape[-1]) for part in tokens], 1),
                torch.cat([part.reshape(len(x), -1) for part in at], 1),
                held.attention(
                    torch.cat(owners, 1), keep=owners[0].shape[1] if self.keeps_slots else 0
                ),
            )
            num_read = owners[0].shape[1]
            contexts.append(out[:, num_read : num_read + num_timesteps])
            place = torch.where(here, here.cumsum(1) - 1 + before, place)
            before += num_timesteps
            written = out[:, num_read + num_timesteps :].unflatten(1, (num_writers, self.num_slots))
            read = self.next_slots(Slots(written, writer), read)
        return torch.cat(contexts, 1).gather(
            1, place.unsqueeze(-1).expand(-1, -1, self.out_features)
        )

    def _bounds(self, length: int) -> list[int]:
        """Where segments begin in an episode of ``length`` timesteps, and where the last one
        ends.
        """
        spread, bounds = int(self.jitter * self.segment_length) if self.training else 0, [0]
        while bounds[-1] < length:
            drawn = int(torch.randint(-spread, spread + 1, ())) if spread else 0
            bounds.append(bounds[-1] + self.segment_length + drawn)
        return bounds

    def _encode(self, tokens: Tensor, at: Tensor, attention: Callable[[int], Attend]) -> Tensor:
        """``[B, T, D]`` at places ``[B, T]`` -> ``[B, T, D]``, with the attention of each layer by
        its index.
        """
        x = self.dropout(tokens + self.positions(at).to(self.norm.weight.dtype))
        for index, layer in enumerate(self.layers):
            x = layer(x, attention(index), None)
        return self.norm(x)

    # Steps.

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """See the module."""
        slots = self.segment_length + self.memory_slots(capacity)
        shape = (
            num_envs,
            len(self.layers),
            self.num_heads,
            slots,
            self.out_features // self.num_heads,
        )
        return init_cache(shape, self.norm.weight, device, counts=("filled", "boundaries"))

    def memory_slots(self, capacity: int | None) -> int:
        """How many memory slots a new memory has."""
        return self.num_slots

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """``[N, E]``, ``[N]``, ``[N]`` -> ``[N, D]``, ``[N]``; see `TrajectoryEncoder.step`.

        It looks whether any env passes a boundary, and does nothing about it where none does;
        captured, compiled and exported it does all for everyone. That changes no context.
        """
        self.check_step(x, memory, is_init)
        memory = memory.copy()
        for name in ("filled", "boundaries"):
            memory[name] = memory[name].masked_fill(is_init, 0)
        full = memory["filled"] == self.segment_length
        if capturing() or bool(self.needs_slots(memory, full).any()):
            self.write_slots(memory, full)
        memory["filled"] = filled = memory["filled"].masked_fill(full, 0)
        memory["boundaries"] = memory["boundaries"] + full.to(torch.int64)
        base = self.slot_position(memory["boundaries"])
        tokens, at = self.embed(x).unsqueeze(1), (base + filled).unsqueeze(1)
        context = self.attend(memory, tokens, at, base, filled.unsqueeze(1), torch.ones_like(full))
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
        """Encodes T tokens of every env, which see one another causally and what the memory holds.

        Args:
            memory: ``[N]``; of its timesteps those that are ``filled`` are seen.
            tokens: ``[N, T, D]``.
            at: ``[N, T]``, their places.
            visible_slots: ``[N]``, how many of its memory slots are seen.
            store_at: ``[N, T]`` slots in which keys and values are stored; None: nowhere.
            where: ``[N]`` bool, the envs of which they are.

        Returns:
            ``[N, T, D]``.
        """
        num_envs, num_tokens = at.shape
        slot = torch.arange(memory["keys"].shape[3], device=at.device)
        seen = slot < memory["filled"].unsqueeze(1)
        seen |= (slot >= self.segment_length) & (
            slot - self.segment_length < visible_slots.unsqueeze(1)
        )
        causal = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=at.device).tril()
        seen = seen.view(num_envs, 1, 1, -1).expand(-1, -1, num_tokens, -1)
        mask = torch.cat((seen, causal.expand(num_envs, 1, -1, -1)), -1)

        def attention(layer: int) -> Attend:
            def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                held = memory["keys"][:, layer], memory["values"][:, layer]
                new = k.to(held[0].dtype), v.to(held[1].dtype)
                keys, values = (torch.cat(pair, 2) for pair in zip(held, new, strict=True))
                if store_at is not None and where is not None:
                    for cache, value in zip(held, new, strict=True):
                        _store(cache, value, store_at, where)
                return dot_product(q.to(keys.dtype), keys, values, mask=mask)

            return attend

        return self._encode(tokens, at, attention)


class _Held:
    """Attention of the turns of a parallel pass, and the keys and values of memory slots that later
    turns still see.
    """

    def __init__(self, num_layers: int) -> None:
        self.layers: list[tuple[Tensor, Tensor] | None] = [None] * num_layers
        self.owner: Tensor | None = None

    def attention(self, owner: Tensor, *, keep: int) -> Callable[[int], Attend]:
        """That of tokens of ``owner`` ``[B, T]``, the first ``keep`` of which stay visible for
        later turns.
        """
        held = 0 if self.owner is None else self.owner.shape[1]
        keys_owner = owner if self.owner is None else torch.cat((self.owner, owner), 1)
        same = (owner.unsqueeze(2) == keys_owner.unsqueeze(1)) | (keys_owner == EVERYONE).unsqueeze(
            1
        )
        mask = same.tril(held).unsqueeze(1)
        if keep:
            self.owner = keys_owner[:, : held + keep]

        def of_layer(layer: int) -> Attend:
            def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                before = self.layers[layer]
                if before is not None:
                    k, v = torch.cat((before[0], k), 2), torch.cat((before[1], v), 2)
                if keep:
                    self.layers[layer] = k[:, :, : held + keep], v[:, :, : held + keep]
                return dot_product(q, k, v, mask=mask)

            return attend

        return of_layer


def _turn_sizes(turn: Tensor, position: Tensor, bounds: list[int]) -> list[tuple[int, int]]:
    """The most timesteps and episodes that a row has in every turn; captured, the most that it can
    have.
    """
    length = turn.shape[1]
    if capturing():
        return [(length - first, length // (first + 1)) for first in bounds[:-1]]
    counts = [
        ((turn == i).sum(1).amax(), (position == first).sum(1).amax())
        for i, first in enumerate(bounds[:-1])
    ]
    sizes = torch.stack([torch.stack(pair) for pair in counts]).tolist()
    return [(timesteps, episodes) for timesteps, episodes in sizes if timesteps]


def _first(flag: Tensor, count: int, episode: Tensor) -> tuple[Tensor, Tensor]:
    """The first ``count`` columns of ``[B, L]`` where ``flag`` is set, and their episodes; 0 where
    there are less.
    """
    if not count:
        return episode[:, :0], episode[:, :0]
    column = flag.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :count]
    return column, episode.gather(1, column) * flag.gather(1, column)


def _repeated(owner: Tensor, times: int) -> Tensor:
    return owner.unsqueeze(2).expand(-1, -1, times).flatten(1)


def _store(cache: Tensor, new: Tensor, slot: Tensor, where: Tensor) -> None:
    """Writes ``[N, H, T, d]`` into slots ``[N, T]`` of ``[N, H, S, d]`` where ``where`` ``[N]``
    says so.
    """
    index = slot.clamp(max=cache.shape[2] - 1).view(len(slot), 1, -1, 1).expand_as(new)
    # What is not finite would reach other timesteps even through a weight of zero.
    value = torch.where(where.view(-1, 1, 1, 1), new.nan_to_num(), cache.gather(2, index))
    cache.scatter_(2, index, value)
