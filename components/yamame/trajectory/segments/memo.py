"""Accumulated summaries: a Transformer over short segments, each of which leaves some slots.

The memory grows by ``num_slots`` slots per segment: see `yamame.trajectory.segments.base`.

Source: Memo, arXiv 2510.19732.
"""

import sys

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.nn import functional as F

from yamame.checks import NumLayers, PositiveInt, check_bounds
from yamame.trajectory.base import Activation, DropoutRate, TrajectoryKeys
from yamame.trajectory.segments.base import Jitter, SegmentEncoder, Slots

_FEWEST_BOUNDARIES = 8
"""Boundaries for which a memory has slots after its first growth."""
_LARGEST_GROWTH = 32
"""Most boundaries by which a memory grows at once; below it a memory doubles."""


class MemoEncoder(SegmentEncoder):
    """A Transformer over segments that sees the summaries of all earlier ones (arXiv 2510.19732).

    The outputs of the write slots of a segment are further memory slots of all later segments. They
    are never rewritten. A memory in the TensorDict has slots for all segments of
    ``context_length`` from the start; see ``memory`` of `yamame.trajectory.TrajectoryKeys`.

    Args:
        in_features, d_model, num_heads, num_layers, ff_factor, dropout, activation: As for
            `yamame.trajectory.RSMEncoder`.
        segment_length: Timesteps C of a segment.
        num_slots: Number M of slots that a segment leaves.
        jitter: Largest relative deviation of segment lengths from ``segment_length`` in training,
            in [0, 1).
        context_length: Longest history, in timesteps, that the agent remembers while acting: later
            summaries replace the oldest ones. None: all, with a memory that grows.
        keys: Keys to read and write; None for the defaults.

    Raises:
        ArgumentError: An argument is out of range, or sizes do not fit together.

    >>> encoder = MemoEncoder(3, d_model=8, num_heads=2, num_layers=1, segment_length=4)
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(envs)["context"].shape
    torch.Size([5, 8])
    """

    keeps_slots = True

    @check_bounds
    def __init__(
        self,
        in_features: PositiveInt,
        *,
        d_model: PositiveInt = 128,
        num_heads: PositiveInt = 8,
        num_layers: NumLayers = 2,
        ff_factor: PositiveInt = 4,
        dropout: DropoutRate = 0.05,
        activation: Activation = "leaky_relu",
        segment_length: PositiveInt = 32,
        num_slots: PositiveInt = 4,
        jitter: Jitter = 0.2,
        context_length: PositiveInt | None = 1024,
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
        self.limit_memory(context_length, "context_length")
        self.most_slots = None if context_length is None else self.memory_slots(context_length)

    def first_slots(self, num_rows: int) -> Slots:
        """Return no slots: a first segment sees itself only."""
        queries = self.queries
        tokens = queries.new_zeros(num_rows, 0, *queries.shape)
        owner = queries.new_zeros(num_rows, 0, dtype=torch.int64)
        return Slots(tokens, owner)

    def next_slots(self, written: Slots, read: Slots) -> Slots:
        """Return the outputs of the write slots; earlier slots stay visible beside them."""
        return written

    def slot_position(self, boundaries: Tensor) -> Tensor:
        """Return the number of slots that earlier segments have left."""
        return self.num_slots * boundaries

    def memory_slots(self, capacity: int | None) -> int:
        """Return the number of slots left at the boundaries before timestep ``capacity``."""
        if capacity is None:
            return 0
        if self.context_length is not None:
            capacity = min(capacity, self.context_length)
        num_boundaries = (capacity - 1) // self.segment_length
        return self.num_slots * max(1, num_boundaries)

    def grow_by(self, memory: TensorDict, num_steps: int) -> tuple[TensorDict, int]:
        """Return a memory with slots for more timesteps; see `TrajectoryEncoder.grow_by`."""
        num_slots = memory["keys"].shape[3] - self.segment_length
        if num_slots == self.most_slots:
            return memory, sys.maxsize

        passed = int(memory["boundaries"].max())  # synchronises with the device
        ahead = 1 + (num_steps - 1) // self.segment_length  # boundaries that the steps may pass
        needed = self.num_slots * (passed + ahead)
        larger = num_slots
        while larger < needed and larger != self.most_slots:
            growth = max(larger // self.num_slots, _FEWEST_BOUNDARIES)
            larger += self.num_slots * min(growth, _LARGEST_GROWTH)
            if self.most_slots is not None:
                larger = min(larger, self.most_slots)

        room = (larger // self.num_slots - passed) * self.segment_length
        if larger == self.most_slots:
            room = sys.maxsize
        if larger == num_slots:
            return memory, room
        grown = memory.copy()
        added = larger - num_slots
        for name in ("keys", "values"):
            grown[name] = F.pad(memory[name], (0, 0, 0, added))
        return grown, room

    def needs_slots(self, memory: TensorDict, full: Tensor) -> Tensor:
        """Return the envs whose segment ends."""
        return full

    def write_slots(self, memory: TensorDict, full: Tensor) -> None:
        """Store keys and values of the slots that the finished segment leaves."""
        num_held = self.slot_position(memory["boundaries"])  # [N]
        slot = torch.arange(self.num_slots, device=full.device)
        place = num_held.unsqueeze(1) + slot  # [N, M]
        queries = self.queries.expand(len(full), -1, -1)  # [N, M, D]
        at = place + self.segment_length
        written = self.attend(memory, queries, at, num_held)

        # Later segments see the summaries without the timesteps that these were made of.
        alone = memory.copy()
        alone["filled"] = torch.zeros_like(num_held)
        num_slots = memory["keys"].shape[3] - self.segment_length
        num_slots = max(1, num_slots)
        # Beyond the capacity the oldest summaries are overwritten.
        store_at = self.segment_length + place % num_slots
        self.attend(alone, written, place, num_held, store_at, full)
