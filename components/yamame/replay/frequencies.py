"""Frequencies of achieved goals, for rarity-weighted hindsight relabelling."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from yamame.checks import PositiveFloat, UnitInterval, check_bounds, require_choice
from yamame.goals import GOAL_TOLERANCE
from yamame.system.messages import print_stderr

WEIGHT_RANGE = (1e-3, 1e5)
"""Smallest and largest weight of a goal."""
UNSEEN_COUNT = 0.5
"""Count of a goal that is not in the table; below 1, so its weight is the largest."""
COUNTED_AT_ONCE = 16384
"""Timesteps, including padding, that are read at once for counting, if no trajectory is longer."""


class GoalFrequencies(nn.Module):
    """Counts of achieved goals, and weights that prefer rare ones (AMAGO, arXiv 2310.09971).

    A goal is counted once per timestep and once per trajectory at which it is achieved. Timestep 0
    is excluded. Counts do not decrease when a replay buffer evicts trajectories.

    The table consists of buffers, so it is part of the ``state_dict`` of any module that holds it.
    Loading a state replaces the table, whatever its size. Two goals share an entry if their
    coordinates round to the same multiple of ``resolution``.

    Args:
        per: Unit in which occurrences of a goal are counted: ``timestep`` or ``trajectory``.
        uniform_share: Share of draws that ignore the weights, so that common goals are still drawn.
        resolution: Side of the grid cells in which goals are counted, in goal units. Continuous
            goals need a coarse grid: the table has one entry per visited cell.

    Raises:
        ArgumentError: ``per`` is unknown, ``uniform_share`` is outside of [0, 1] or ``resolution``
            is not positive.

    >>> table = GoalFrequencies()
    >>> positions = torch.tensor([0.0, 1.0, 1.0, 2.0]).reshape(1, 4, 1, 1)
    >>> mask = torch.ones(1, 4, 1, dtype=torch.bool)
    >>> table.update(positions, achieved_mask=mask, mask=mask)
    >>> common, rare, unseen = table.weights(torch.tensor([[1.0], [2.0], [0.0]]))
    >>> bool(common < rare < unseen)
    True
    """

    cells: Tensor
    """Grid coordinates of the entries ``[N, d]``."""
    timesteps: Tensor
    """Counts of timesteps ``[N]``."""
    trajectories: Tensor
    """Counts of trajectories ``[N]``."""
    totals: Tensor
    """Numbers of counted timesteps and trajectories ``[2]``."""
    hashes: Tensor
    """Hashes of the cells ``[N]``, ascending, for binary search."""

    @check_bounds
    def __init__(
        self,
        *,
        per: Literal["timestep", "trajectory"] = "timestep",
        uniform_share: UnitInterval = 0.2,
        resolution: PositiveFloat = GOAL_TOLERANCE,
    ) -> None:
        super().__init__()
        require_choice("GoalFrequencies", "per", per, ("timestep", "trajectory"))
        self.per = per
        self.uniform_share = uniform_share
        self.resolution = resolution
        self._was_checked = False
        self.register_buffer("cells", torch.zeros(0, 0, dtype=torch.int64))
        self.register_buffer("timesteps", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("trajectories", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("totals", torch.zeros(2, dtype=torch.int64))
        # Computed from the cells when a state is loaded.
        self.register_buffer("hashes", torch.zeros(0, dtype=torch.int64), persistent=False)

    def __len__(self) -> int:
        return len(self.cells)

    @torch.no_grad()
    def update(self, achieved: Tensor, achieved_mask: Tensor, mask: Tensor) -> None:
        """Count the goals of new whole trajectories.

        Args:
            achieved: ``[B, L, M, d]``, goals that are achieved at each timestep.
            achieved_mask: ``[B, L, M]`` bool.
            mask: ``[B, L]`` or ``[B, L, 1]`` bool, real timesteps.
        """
        num_trajectories, length = mask.shape[:2]
        counted = mask.reshape(num_trajectories, length).clone()
        # The agent has not achieved what holds at the start.
        counted[:, 0] = False
        self.totals += torch.stack([counted.sum(), counted.any(-1).sum()])

        is_achieved = achieved_mask & counted.unsqueeze(-1)
        trajectory, step, slot = is_achieved.nonzero(as_tuple=True)
        entry = self._find_or_add(self._cells(achieved[trajectory, step, slot]))
        # Several slots may hold the same goal, which counts once.
        timestep = trajectory * length + step
        in_timesteps = _count_distinct(entry, timestep, num_trajectories * length, len(self))
        in_trajectories = _count_distinct(entry, trajectory, num_trajectories, len(self))
        self.timesteps = self.timesteps + in_timesteps
        self.trajectories = self.trajectories + in_trajectories

    @torch.no_grad()
    def weights(self, goals: Tensor) -> Tensor:
        """Return the weight of each goal, ``(-log10 frequency) ** 4`` clipped to `WEIGHT_RANGE`.

        Args:
            goals: ``[*, d]``.

        Returns:
            ``[*]`` float32. A goal that was never counted has a larger weight than any other one.
            Before any trajectory was counted, all weights are equal, and a warning is printed.
        """
        if not self._was_checked:
            if not bool(self.totals.any()):
                print_stderr(
                    "GoalFrequencies: no trajectories were counted, so all goals are drawn alike"
                )
            self._was_checked = True

        total_timesteps, total_trajectories = self.totals.clamp(min=1)
        if self.per == "timestep":
            total, counts = total_timesteps, self.timesteps
        else:
            total, counts = total_trajectories, self.trajectories

        count = torch.full(goals.shape[:-1], UNSEEN_COUNT, device=goals.device)
        if len(self):
            cells = self._cells(goals)
            entry = torch.searchsorted(self.hashes, _hash(cells)).clamp(max=len(self) - 1)
            # The search returns a neighbour for a goal that is not in the table.
            is_known = (self.cells[entry] == cells).all(-1)
            count = torch.where(is_known, counts[entry].to(torch.float32), count)
        rarity = (count / total).log10().neg().clamp(min=0.0)
        return rarity.pow(4).clamp(*WEIGHT_RANGE)

    def probabilities(self, weights: Tensor, options: Tensor) -> Tensor:
        """Return the probabilities of one draw: the normalized weights, mixed with uniform ones.

        Args:
            weights: ``[*, N]``, not negative.
            options: ``[*, N]`` bool, goals that may be drawn.

        Returns:
            ``[*, N]`` with sum 1 over the options; all zero if there are no options.
        """
        weights = weights.masked_fill(~options, 0.0)
        # The clamps avoid 0 / 0 where there are no options.
        rare = weights / weights.sum(-1, keepdim=True).clamp(min=WEIGHT_RANGE[0])
        uniform = options / options.sum(-1, keepdim=True).clamp(min=1)
        return torch.lerp(rare, uniform, self.uniform_share)

    def _cells(self, goals: Tensor) -> Tensor:
        return (goals / self.resolution).round().to(torch.int64)

    def _find_or_add(self, cells: Tensor) -> Tensor:
        """Return the entries ``[N]`` of cells ``[N, d]``; new cells are added with counts of 0."""
        hashes = _hash(cells)
        entry = torch.searchsorted(self.hashes, hashes)
        # 64 bits: two of a million cells share a hash with a probability of 3e-8.
        if len(self):
            is_new = self.hashes[entry.clamp(max=len(self) - 1)] != hashes
        else:
            is_new = torch.ones_like(hashes, dtype=torch.bool)
        if not bool(is_new.any()):
            return entry

        # The table stays sorted by hash, so former entries move as well.
        num_known = len(self)
        size = cells.shape[-1]
        every_hash = torch.cat([self.hashes, hashes[is_new]])
        every_cell = torch.cat([self.cells.reshape(-1, size), cells[is_new]])
        self.hashes, position = every_hash.unique(return_inverse=True)
        table = cells.new_empty(len(self.hashes), size)
        self.cells = table.index_copy_(0, position, every_cell)
        zeros = position.new_zeros(len(self.hashes))
        known = position[:num_known]
        self.timesteps = zeros.index_copy(0, known, self.timesteps)
        self.trajectories = zeros.index_copy(0, known, self.trajectories)
        return torch.searchsorted(self.hashes, hashes)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        # PyTorch copies into buffers of equal shape only.
        for name in ("cells", "timesteps", "trajectories"):
            if prefix + name in state_dict:
                buffer = getattr(self, name)
                setattr(self, name, buffer.new_empty(state_dict[prefix + name].shape))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.hashes = _hash(self.cells)


def _count_distinct(entry: Tensor, place: Tensor, num_places: int, num_entries: int) -> Tensor:
    """Count the distinct places at which each entry occurs: ``[N], [N] -> [num_entries]``."""
    pairs = (entry * num_places + place).unique()
    return (pairs // num_places).bincount(minlength=num_entries)


def _hash(cells: Tensor) -> Tensor:
    """Hash cells ``[*, d] -> [*]`` int64.

    Each coordinate is offset by its position, so that the order counts, then mixed as by SplitMix64
    and summed.
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
        """Return trajectories ``[B, L]`` at positions ``[B]``.

        They are right padded with zeros and have ``mask`` ``[B, L, 1]``.
        """


def counting(transform: Any) -> list[Any]:
    """Return the parts of a transform that count goals, such as `Relabel` with ``rarity``."""
    modules = transform.modules() if isinstance(transform, nn.Module) else ()
    parts = []
    for module in modules:
        if getattr(module, "rarity", None) is not None and hasattr(module, "count_goals"):
            parts.append(module)
    return parts


def count_held(transform: Any, store: Store, *, first: int = 0) -> None:
    """Count the goals of trajectories that a store holds.

    Args:
        transform: Transform of samples of the store. Nothing is read if no part of it counts goals.
        store: Holds whole trajectories.
        first: Position of the first trajectory to count.
    """
    parts = counting(transform)
    if not parts:
        return

    lengths = store.lengths[first:]
    chunk: list[int] = []
    # Trajectories of similar length need little padding.
    for position in lengths.argsort().tolist():
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
