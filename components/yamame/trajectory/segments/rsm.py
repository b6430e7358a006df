"""Recurrent summary memory: a Transformer over short segments, and a summary of fixed size that it
rewrites.

The memory does not grow: see `yamame.trajectory.segments.base`, of which it has ``num_slots``
memory slots, and

===========  ==============  ============================================
key          shape           meaning
===========  ==============  ============================================
``summary``  ``[N, M, D]``   what the present segment reads of all before
===========  ==============  ============================================
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from yamame.trajectory.base import Activation, Device, TrajectoryKeys
from yamame.trajectory.segments.base import EVERYONE, SPREAD, SegmentEncoder, Slots


class RSMEncoder(SegmentEncoder):
    """Segments of ``segment_length`` timesteps, and a summary that is replaced between them (RSM).

    A segment reads the summary through its memory slots; the first one reads a learnt summary. What
    its write slots come out as passes a linear map and takes the summary's place. Recurrent memory
    Transformers: arXiv 2207.06881.

    Args:
        in_features: Size E of the features.
        d_model: Size D of the residual stream, of the summary's slots and of the context.
        num_heads: Number of heads; divides ``d_model``.
        num_layers: Number of layers.
        ff_factor: Hidden size of the feed-forward part, in multiples of ``d_model``.
        dropout: Probability on the embedded input and on every feed-forward branch.
        activation: Of the feed-forward parts.
        segment_length: Timesteps C of a segment.
        num_slots: Slots M of the summary.
        residual: Add to the summary instead of replacing it (RSM-R): a new network passes more over
            a boundary.
        carry: Pass the summary on. If not, every segment reads the first one: the control without
            memory.
        jitter: Lengths of segments are drawn within this share of ``segment_length`` in training.
        keys: Where to read and write, if not under the usual names.

    Raises:
        ValueError: If sizes do not fit together.

    >>> encoder = RSMEncoder(3, d_model=8, num_heads=2, num_layers=1, segment_length=4)
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(envs)["context"].shape, encoder.memory["summary"].shape
    (torch.Size([5, 8]), torch.Size([5, 4, 8]))
    """

    parameter_roles: ClassVar[Mapping[str, str]] = {"queries": "table", "start": "table"}

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
        residual: bool = False,
        carry: bool = True,
        jitter: float = 0.0,
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
            context_length=None,
            keys=keys,
        )
        self.residual, self.carry = residual, carry
        self.start = nn.Parameter(SPREAD * torch.randn(num_slots, d_model))
        self.write = nn.Linear(d_model, d_model)

    def first_slots(self, num_rows: int) -> Slots:
        """The learnt summary, for every episode."""
        owner = torch.full((num_rows, 1), EVERYONE, device=self.start.device)
        return Slots(self.start.expand(num_rows, 1, -1, -1), owner)

    def next_slots(self, written: Slots, read: Slots) -> Slots:
        """The next summaries."""
        if not self.carry:
            return Slots(self.start.expand_as(written.tokens), written.owner)
        summary = self.write(written.tokens)
        if self.residual:
            summary = summary + _read_by(written.owner, read)
        return Slots(summary, written.owner)

    def slot_position(self, boundaries: Tensor) -> Tensor:
        """The same after any number of boundaries."""
        return torch.full_like(boundaries, self.num_slots)

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """See the module."""
        memory = super().init_memory(num_envs, capacity=capacity, device=device)
        summary = torch.zeros(
            num_envs, *self.start.shape, dtype=self.start.dtype, device=memory.device
        )
        return memory.set("summary", summary)

    def needs_slots(self, memory: TensorDict, full: Tensor) -> Tensor:
        """Where a segment ends or an episode begins."""
        return full | (memory["filled"] == 0)

    def write_slots(self, memory: TensorDict, full: Tensor) -> None:
        """Writes the summary, and what it is to the layers."""
        read_at = torch.arange(self.num_slots, device=full.device).expand(len(full), -1)
        write_at = self.num_slots + self.segment_length + read_at
        starts, summary = memory["filled"] == 0, memory["summary"]
        all_slots = torch.full_like(memory["filled"], self.num_slots)
        queries = self.queries.expand(len(full), -1, -1)
        written = self.write(self.attend(memory, queries, write_at, all_slots))
        written = (written + summary if self.residual else written).to(summary.dtype).nan_to_num()
        summary = torch.where(full.view(-1, 1, 1), written, summary)
        fresh = starts if self.carry else full | starts
        memory["summary"] = torch.where(fresh.view(-1, 1, 1), self.start.to(summary.dtype), summary)
        alone = memory.copy().set("filled", torch.zeros_like(all_slots))
        store_at = self.segment_length + read_at
        self.attend(
            alone, memory["summary"], read_at, torch.zeros_like(all_slots), store_at, full | starts
        )


def _read_by(owner: Tensor, read: Slots) -> Tensor:
    """What episodes ``[B, W]`` have read: ``[B, W, M, D]``."""
    place = (owner.unsqueeze(2) == read.owner.unsqueeze(1)).to(torch.int64).argmax(2)
    return read.tokens.gather(
        1, place.view(*place.shape, 1, 1).expand(-1, -1, *read.tokens.shape[2:])
    )
