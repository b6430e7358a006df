"""Recurrent summary memory: a Transformer over short segments that rewrites a fixed-size summary.

The memory does not grow: see `yamame.trajectory.segments.base`. It has ``num_slots`` memory slots,
and one entry more:

===========  ==============  ======================================================
key          shape           meaning
===========  ==============  ======================================================
``summary``  ``[N, M, D]``   summary that the present segment sees of all earlier ones
===========  ==============  ======================================================

Source: recurrent memory Transformers, Bulatov et al., arXiv 2207.06881.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from yamame.checks import NumLayers, PositiveInt, check_bounds
from yamame.trajectory.base import Activation, Device, DropoutRate, TrajectoryKeys
from yamame.trajectory.segments.base import EVERYONE, SPREAD, Jitter, SegmentEncoder, Slots


class RSMEncoder(SegmentEncoder):
    """A Transformer over segments with a summary replaced between them (cf. arXiv 2207.06881).

    A segment sees the summary in its memory slots; the first one sees a learnt summary. The outputs
    of its write slots pass through a linear map and replace the summary.

    Args:
        in_features: Size E of the features.
        d_model: Width D of the layers, of the slots of the summary and of the context; even.
        num_heads: Number of heads; divides ``d_model``.
        num_layers: Number of layers.
        ff_factor: Hidden size of the feed-forward part, in multiples of ``d_model``.
        dropout: Dropout probability on the embedded input and on every feed-forward branch, in
            [0, 1).
        activation: Activation of the feed-forward parts: ``leaky_relu``, ``gelu``, ``relu`` or
            ``mish``.
        segment_length: Timesteps C of a segment, which are seen as they were.
        num_slots: Number M of slots of the summary.
        residual: Whether to add to the summary instead of replacing it (RSM-R): an untrained
            network then passes more over a boundary.
        carry: Whether to pass the summary on. If False, every segment sees the first one: the
            control without memory.
        jitter: Largest relative deviation of segment lengths from ``segment_length`` in training,
            in [0, 1).
        keys: Keys to read and write; None for the defaults.

    Raises:
        ArgumentError: An argument is out of range, or sizes do not fit together.

    >>> encoder = RSMEncoder(3, d_model=8, num_heads=2, num_layers=1, segment_length=4)
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(envs)["context"].shape, encoder.memory["summary"].shape
    (torch.Size([5, 8]), torch.Size([5, 4, 8]))
    """

    parameter_roles: ClassVar[Mapping[str, str]] = {"queries": "table", "start": "table"}

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
        residual: bool = False,
        carry: bool = True,
        jitter: Jitter = 0.0,
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
        self.residual = residual
        self.carry = carry
        self.start = nn.Parameter(SPREAD * torch.randn(num_slots, d_model))
        self.write = nn.Linear(d_model, d_model)

    def first_slots(self, num_rows: int) -> Slots:
        """Return the learnt summary, visible to every episode."""
        tokens = self.start.expand(num_rows, 1, -1, -1)
        owner = torch.full((num_rows, 1), EVERYONE, device=self.start.device)
        return Slots(tokens, owner)

    def next_slots(self, written: Slots, read: Slots) -> Slots:
        """Return the next summaries."""
        if not self.carry:
            first = self.start.expand_as(written.tokens)
            return Slots(first, written.owner)
        summary = self.write(written.tokens)
        if self.residual:
            summary = summary + _read_by(written.owner, read)
        return Slots(summary, written.owner)

    def slot_position(self, boundaries: Tensor) -> Tensor:
        """Return the number of slots of the summary, after any number of boundaries."""
        return torch.full_like(boundaries, self.num_slots)

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """Return an empty memory; see the module."""
        memory = super().init_memory(num_envs, capacity=capacity, device=device)
        start = self.start.detach()
        summary = start.new_zeros(num_envs, *start.shape, device=memory.device)
        return memory.set("summary", summary)

    def needs_slots(self, memory: TensorDict, full: Tensor) -> Tensor:
        """Return the envs whose segment ends or whose episode begins."""
        return full | (memory["filled"] == 0)

    def write_slots(self, memory: TensorDict, full: Tensor) -> None:
        """Store the summary, and its keys and values."""
        num_envs = len(full)
        slot = torch.arange(self.num_slots, device=full.device)
        read_at = slot.expand(num_envs, -1)  # [N, M]
        write_at = self.num_slots + self.segment_length + read_at
        starts = memory["filled"] == 0  # [N]
        summary = memory["summary"]  # [N, M, D]
        all_slots = torch.full_like(memory["filled"], self.num_slots)

        # 1. The summary of envs whose segment ends.
        queries = self.queries.expand(num_envs, -1, -1)
        written = self.attend(memory, queries, write_at, all_slots)
        written = self.write(written)
        if self.residual:
            written = written + summary
        written = written.to(summary.dtype).nan_to_num()
        ends = full.view(-1, 1, 1)
        summary = torch.where(ends, written, summary)

        # 2. The learnt summary of envs that start.
        fresh = starts if self.carry else full | starts
        start = self.start.to(summary.dtype)
        summary = torch.where(fresh.view(-1, 1, 1), start, summary)
        memory["summary"] = summary

        # 3. Keys and values of the summary, which attends to itself only.
        no_slots = torch.zeros_like(all_slots)
        alone = memory.copy()
        alone["filled"] = no_slots
        store_at = self.segment_length + read_at
        self.attend(alone, summary, read_at, no_slots, store_at, full | starts)


def _read_by(owner: Tensor, read: Slots) -> Tensor:
    """Return the slots that episodes ``[B, W]`` have read: ``[B, W, M, D]``."""
    is_same = owner.unsqueeze(2) == read.owner.unsqueeze(1)  # [B, W, R]
    # Slots of EVERYONE are the only ones of their turn: argmax of all False is their index 0.
    place = is_same.to(torch.int64).argmax(2)  # [B, W]
    slot_shape = read.tokens.shape[2:]  # [M, D]
    index = place.view(*place.shape, 1, 1).expand(-1, -1, *slot_shape)
    return read.tokens.gather(1, index)
