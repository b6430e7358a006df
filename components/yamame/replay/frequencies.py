"""How often each goal is achieved: the table behind rarity-weighted hindsight relabelling."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from yamame.checks import require, require_choice
from yamame.goals import GOAL_TOLERANCE
from yamame.system.messages import print_stderr

WEIGHT_RANGE = (1e-3, 1e5)
"""Smallest and largest weight of a goal."""
UNSEEN_COUNT = 0.5
"""Count of a goal that is not in the table: less than any seen one, so its weight is the
largest.
"""
COUNTED_AT_ONCE = 16384
"""Timesteps, padding included, that are read at once to be counted, if no trajectory is longer."""


class GoalFrequencies(nn.Module):
    """Counts of achieved goals and the weights that favour the rare ones (AMAGO, arXiv 2310.09971,
    on Crafter).

    Goals are counted once per timestep and once per trajectory at which they hold, timestep 0
    excluded (what holds there was not achieved by the agent). Nothing is forgotten when a replay
    buffer drops its oldest trajectories.

    The table lives in buffers, so it travels with the ``state_dict`` of whatever module holds it;
    loading a state replaces the table, whatever its size. Two goals are the same entry when their
    coordinates round to the same multiple of ``resolution``.

    Args:
        per: What a frequency is a share of: timesteps at which the goal holds, or trajectories in
            which it does.
        uniform_share: Share of draws in [0, 1] that ignore the weights, so that common goals are
            not forgotten.
        resolution: Side of the grid cell on which goals are counted, in goal units. Continuous
            goals need a coarse one: the table holds one entry per visited cell.

    Raises:
        ValueError: ``per`` is unknown, ``uniform_share`` is outside [0, 1] or ``resolution`` is not
            positive.

    >>> table = GoalFrequencies()
    >>> positions = torch.tensor([0.0, 1.0, 1.0, 2.0]).reshape(1, 4, 1, 1)
    >>> table.update(positions, torch.ones(1, 4, 1, dtype=torch.bool), torch.ones(1, 4, dtype=torch.bool))
    >>> common, rare, unseen = table.weights(torch.tensor([[1.0], [2.0], [0.0]]))
    >>> bool(common < rare < unseen)
    True
    """

    cells: Tensor
    timesteps: Tensor
    trajectories: Tensor
    totals: Tensor
    hashes: Tensor

    def __init__(
        self,
        *,
        per: Literal["timestep", "trajectory"] = "timestep",
        uniform_share: float = 0.2,
        resolution: float = GOAL_TOLERANCE,
    ) -> None:
        super().__init__()
        owner = "GoalFrequencies"
        require_choice(owner, "per", per, ("timestep", "trajectory"))
        require(owner, "uniform_share", uniform_share, 0.0 <= uniform_share <= 1.0, "be in [0, 1]")
        require(owner, "resolution", resolution, resolution > 0.0, "be positive")
        self.per, self.uniform_share, self.resolution = per, uniform_share, resolution
        self._was_checked = False
        self.register_buffer("cells", torch.zeros(0, 0, dtype=torch.int64))
        self.register_buffer("timesteps", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("trajectories", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("totals", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("hashes", torch.zeros(0, dtype=torch.int64), persistent=False)

    def __len__(self) -> int:
        return len(self.cells)

    @torch.no_grad()
    def update(self, achieved: Tensor, achieved_mask: Tensor, mask: Tensor) -> None:
        """Counts the goals of new whole trajectories.

        Args:
            achieved: ``[B, L, M, d]``, goals that hold at each timestep.
            achieved_mask: ``[B, L, M]`` bool.
            mask: ``[B, L]`` or ``[B, L, 1]`` bool, real timesteps.
        """
        num_trajectories, length = mask.shape[:2]
        counted = mask.reshape(num_trajectories, length).clone()
        counted[:, 0] = False
        self.totals += torch.stack([counted.sum(), counted.any(-1).sum()])
        trajectory, step, slot = (achieved_mask & counted.unsqueeze(-1)).nonzero(as_tuple=True)
        entry = self._entries(self._cells(achieved[trajectory, step, slot]))
        places = (
            (trajectory * length + step, num_trajectories * length),
            (trajectory, num_trajectories),
        )
        per_timestep, per_trajectory = (
            _count_distinct(entry, *place, len(self)) for place in places
        )
        self.timesteps = self.timesteps + per_timestep
        self.trajectories = self.trajectories + per_trajectory

    @torch.no_grad()
    def weights(self, goals: Tensor) -> Tensor:
        """How strongly to prefer each goal: ``(-log10 frequency) ** 4``, clipped to `WEIGHT_RANGE`.

        Args:
            goals: ``[*, d]``.

        Returns:
            ``[*]`` float32. A goal that was never counted weighs more than any that was. Before any
            trajectory was counted all goals weigh alike, and a line on the standard error says so.
        """
        if not self._was_checked:
            if not bool(self.totals.any()):
                print_stderr(
                    "GoalFrequencies: no trajectories were counted, so all goals are drawn alike"
                )
            self._was_checked = True
        timesteps, trajectories = self.totals.clamp(min=1)
        by_timestep = self.per == "timestep"
        total, counts = (
            (timesteps, self.timesteps) if by_timestep else (trajectories, self.trajectories)
        )
        count = torch.full(goals.shape[:-1], UNSEEN_COUNT, device=goals.device)
        if len(self):
            cells = self._cells(goals)
            entry = torch.searchsorted(self.hashes, _hash(cells)).clamp(max=len(self) - 1)
            seen = (self.cells[entry] == cells).all(-1)
            count = torch.where(seen, counts[entry].to(torch.float32), count)
        return (count / total).log10().neg().clamp(min=0.0).pow(4).clamp(*WEIGHT_RANGE)

    def probabilities(self, weights: Tensor, options: Tensor) -> Tensor:
        """Probabilities of one draw: proportional to the weights, mixed with the uniform share.

        Args:
            weights: ``[*, N]``, not negative.
            options: ``[*, N]`` bool, what may be drawn.

        Returns:
            ``[*, N]`` that sums to 1 over the options, all zero where there is none.
        """
        weights = weights.masked_fill(~options, 0.0)
        rare = weights / weights.sum(-1, keepdim=True).clamp(min=WEIGHT_RANGE[0])
        uniform = options / options.sum(-1, keepdim=True).clamp(min=1)
        return torch.lerp(rare, uniform, self.uniform_share)

    def _cells(self, goals: Tensor) -> Tensor:
        return (goals / self.resolution).round().to(torch.int64)

    def _entries(self, cells: Tensor) -> Tensor:
        """Where in the table ``[N]`` the cells ``[N, d]`` are; those that are new enter it,
        uncounted.
        """
        hashes = _hash(cells)
        entry = torch.searchsorted(self.hashes, hashes)
        new = (
            self.hashes[entry.clamp(max=len(self) - 1)] != hashes if len(self) else hashes == hashes
        )
        if not bool(new.any()):
            return entry
        size, known = cells.shape[-1], len(self)
        self.hashes, entry = torch.cat([self.hashes, hashes[new]]).unique(return_inverse=True)
        cells = torch.cat([self.cells.reshape(-1, size), cells[new]])
        self.cells = cells.new_empty(len(self.hashes), size).index_copy_(0, entry, cells)
        empty = entry.new_zeros(len(self.hashes))
        self.timesteps = empty.index_copy(0, entry[:known], self.timesteps)
        self.trajectories = empty.index_copy(0, entry[:known], self.trajectories)
        return torch.searchsorted(self.hashes, hashes)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        for name in ("cells", "timesteps", "trajectories"):
            if prefix + name in state_dict:
                buffer = getattr(self, name)
                setattr(self, name, buffer.new_empty(state_dict[prefix + name].shape))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.hashes = _hash(self.cells)


def _count_distinct(entry: Tensor, place: Tensor, num_places: int, num_entries: int) -> Tensor:
    """In how many distinct places each entry occurs: ``[N], [N] -> [num_entries]``."""
    return ((entry * num_places + place).unique() // num_places).bincount(minlength=num_entries)


def _hash(cells: Tensor) -> Tensor:
    """One 64-bit number per cell ``[*, d] -> [*]``: a sum of coordinates, each mixed with its
    position.
    """
    position = torch.arange(1, cells.shape[-1] + 1, device=cells.device)
    mixed = cells + position * 0x1E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 30)) * -0x40A7B892E31B1A47
    mixed = (mixed ^ (mixed >> 27)) * -0x6B2FB644ECCEEE15
    return (mixed ^ (mixed >> 31)).sum(-1)


class Store(Protocol):
    """Trajectories that are read by position."""

    @property
    def lengths(self) -> Tensor:
        """Timesteps of each trajectory ``[n]`` int64."""

    def get(self, index: Any) -> TensorDictBase:
        """Trajectories ``[B, L]`` at positions ``[B]``, right padded with zeros, with ``mask``
        ``[B, L, 1]``.
        """


def counting(transform: Any) -> list[Any]:
    """The parts of a transform that count goals, such as `Relabel` with ``rarity``."""
    parts = transform.modules() if isinstance(transform, nn.Module) else ()
    return [
        part
        for part in parts
        if getattr(part, "rarity", None) is not None and hasattr(part, "count_goals")
    ]


def count_held(transform: Any, store: Store, *, first: int = 0) -> None:
    """Counts the goals of trajectories that a store holds already.

    Args:
        transform: Relabels what is drawn from the store. Nothing is read if no part of it counts
            goals.
        store: Holds whole trajectories.
        first: Position of the first trajectory to count.
    """
    parts = counting(transform)
    if not parts:
        return

    lengths = store.lengths[first:]
    chunk: list[int] = []
    for position in lengths.argsort().tolist():  # by length, so that there is little padding
        if chunk and (len(chunk) + 1) * int(lengths[position]) > COUNTED_AT_ONCE:
            _count(parts, store, chunk)
            chunk = []
        chunk.append(first + position)
    if chunk:
        _count(parts, store, chunk)


def _count(parts: list[Any], store: Store, positions: list[int]) -> None:
    trajectories = store.get(positions)
    for part in parts:
        part.count_goals(trajectories)
