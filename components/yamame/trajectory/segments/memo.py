"""Accumulated summaries: a Transformer over short segments, each of which leaves some slots that
later ones see.

The memory grows by ``num_slots`` slots per segment: see `yamame.trajectory.segments.base`.

Source: Memo, arXiv 2510.19732.
"""

import sys

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.nn import functional as F

from yamame.trajectory.base import Activation, TrajectoryKeys
from yamame.trajectory.segments.base import SegmentEncoder, Slots

_FEWEST, _MOST_MORE = 8, 32
"""Boundaries for which a memory has slots when it first grows, and for how many more it grows at
most.
"""


class MemoEncoder(SegmentEncoder):
    """Segments of ``segment_length`` timesteps; the summaries of all before are seen, and never
    written again (Memo).

    What a segment's write slots come out as is read as further slots by all segments after it.

    Args:
        in_features, d_model, num_heads, num_layers, ff_factor, dropout, activation: As for
        `RSMEncoder`.
        segment_length: Timesteps C of a segment.
        num_slots: Slots M that a segment leaves.
        jitter: Lengths of segments are drawn within this share of ``segment_length`` in training.
        context_length: How many timesteps acting remembers: later summaries take the places of the
            oldest. None for all, with a memory that grows.
        keys: Where to read and write, if not under the usual names.

    Raises:
        ValueError: If sizes do not fit together.

    >>> encoder = MemoEncoder(3, d_model=8, num_heads=2, num_layers=1, segment_length=4)
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(envs)["context"].shape
    torch.Size([5, 8])
    """

    keeps_slots = True

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
        segment_length: int = 32,
        num_slots: int = 4,
        jitter: float = 0.2,
        context_length: int | None = 1024,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        super().__init__(
            in_features,
            d_model=d_model,
            num_heads=num_heads,
            num_layers=num_layers,
            ff_factor=ff_factor,
            dropout=dropout,
            activation=activation,
            segment_length=segment_length,
            num_slots=num_slots,
            jitter=jitter,
            context_length=context_length,
            keys=keys,
        )
        self.most_slots = None if context_length is None else self.memory_slots(context_length)

    def first_slots(self, num_rows: int) -> Slots:
        """None."""
        queries = self.queries
        return Slots(
            queries.new_zeros(num_rows, 0, *queries.shape),
            torch.zeros(num_rows, 0, dtype=torch.int64, device=queries.device),
        )

    def next_slots(self, written: Slots, read: Slots) -> Slots:
        """What was written, beside all that is there."""
        return written

    def slot_position(self, boundaries: Tensor) -> Tensor:
        """One place more for every slot that was left."""
        return self.num_slots * boundaries

    def memory_slots(self, capacity: int | None) -> int:
        """As many as there are boundaries before the last timestep."""
        if capacity is None:
            return 0
        capacity = min(capacity, self.context_length or capacity)
        return self.num_slots * max(1, (capacity - 1) // self.segment_length)

    def grow_by(self, memory: TensorDict, num_steps: int) -> tuple[TensorDict, int]:
        """``memory`` with slots for the boundaries of some timesteps more; see
        `TrajectoryEncoder.grow_by`.
        """
        held = slots = memory["keys"].shape[3] - self.segment_length
        if held == self.most_slots:
            return memory, sys.maxsize
        passed = int(memory["boundaries"].max())  # which waits for the device
        needed = self.num_slots * (passed + 1 + (num_steps - 1) // self.segment_length)
        while slots < needed and slots != self.most_slots:
            slots += min(max(slots // self.num_slots, _FEWEST), _MOST_MORE) * self.num_slots
            slots = slots if self.most_slots is None else min(slots, self.most_slots)
        room = (slots // self.num_slots - passed) * self.segment_length
        room = sys.maxsize if slots == self.most_slots else room
        if slots == held:
            return memory, room
        larger = {name: F.pad(memory[name], (0, 0, 0, slots - held)) for name in ("keys", "values")}
        return memory.copy().update(larger), room

    def needs_slots(self, memory: TensorDict, full: Tensor) -> Tensor:
        """Where a segment ends."""
        return full

    def write_slots(self, memory: TensorDict, full: Tensor) -> None:
        """Stores what the segment's slots are to the layers."""
        num_held = self.slot_position(memory["boundaries"])
        place = num_held.unsqueeze(1) + torch.arange(self.num_slots, device=full.device)
        queries = self.queries.expand(len(full), -1, -1)
        written = self.attend(memory, queries, place + self.segment_length, num_held)
        alone = memory.copy().set("filled", torch.zeros_like(num_held))
        num_slots = max(1, memory["keys"].shape[3] - self.segment_length)
        self.attend(alone, written, place, num_held, self.segment_length + place % num_slots, full)
