"""Random mazes, drawn in batches by the "aisle" generator.

The generator starts from an empty room with a border and grows walls. It repeats ``num_walks``
times: make a uniformly drawn cell with even coordinates a wall, then try ``num_tries`` times to
extend the wall from there: choose one of the existing cells two away, and if it is free, make it
and the cell between walls and go on from it; if not, stay. Most tries fail, and failing changes
nothing but the number of tries left. So only the successful tries are simulated: how many tries
pass until one succeeds is geometrically distributed, and its direction is uniform over the free
ones. The distribution over mazes is the same; the loop has one turn per wall segment instead of one
per try.

Source of the rules: the aisle generator of mazelab with its complexity and density, as used for the
mazes of AMAGO (arXiv 2310.09971, appendix).
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from yamame_envs.streams import uniform

DIRECTIONS = ((0, -1), (-1, 0), (0, 1), (1, 0))
"""Offsets (row, column) of west, north, east and south."""


@dataclass(frozen=True)
class _Lattice:
    """Tables over nodes, the C cells with even coordinates.

    Node C is "nowhere" and has no free neighbour.
    """

    num_nodes: int
    # [C + 1], cell of the maze.
    cell: Tensor
    # [C + 1, 4], cells two away; nowhere if outside.
    around: Tensor
    # [(C + 1) * 4], node two away.
    node_across: Tensor
    # [(C + 1) * 4], cell passed on the way.
    cell_between: Tensor
    # [(C + 1) * 16], row of `waits` for a node and its set of free neighbours.
    chances: Tensor
    # Flattened; row q holds q + P(at most w tries until one succeeds), w = 1..num_tries.
    waits: Tensor
    # [16 * 12], direction of a set of directions by a number in 0..11.
    choice: Tensor


def _free_in(code: int) -> list[int]:
    return [direction for direction in range(4) if code >> direction & 1]


@lru_cache(maxsize=16)
def _lattice(size: int, num_tries: int, device: torch.device) -> _Lattice:
    side, nowhere = size // 2 + 1, size * size
    nodes = {(i, j): i * side + j for i in range(side) for j in range(side)}
    odds = sorted({(free, all_) for all_ in range(1, 5) for free in range(all_ + 1)})
    cell, around, across, between, chances = [], [], [], [], []
    for i, j in nodes:
        cell.append(2 * i * size + 2 * j)
        inside = [(i + di, j + dj) in nodes for di, dj in DIRECTIONS]
        for (di, dj), exists in zip(DIRECTIONS, inside, strict=True):
            around.append((2 * i + 2 * di) * size + 2 * j + 2 * dj if exists else nowhere)
            across.append(nodes.get((i + di, j + dj), len(nodes)))
            between.append((2 * i + di) * size + 2 * j + dj if exists else nowhere)
        chances += [
            odds.index((min(len(_free_in(code)), sum(inside)), sum(inside))) for code in range(16)
        ]
    cell.append(nowhere)
    around += [nowhere] * 4
    across += [len(nodes)] * 4
    between += [nowhere] * 4
    chances += [odds.index((0, 4))] * 16
    tries = range(1, num_tries + 1)
    waits = [
        q + 1.0 - (1.0 - free / all_) ** w for q, (free, all_) in enumerate(odds) for w in tries
    ]
    choice = [
        _free_in(code)[n * len(_free_in(code)) // 12] if code else 0
        for code in range(16)
        for n in range(12)
    ]

    def table(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return _Lattice(
        num_nodes=len(nodes),
        cell=table(cell),
        around=table(around).view(-1, 4),
        node_across=table(across),
        cell_between=table(between),
        chances=table(chances),
        waits=torch.tensor(waits, dtype=torch.float64, device=device),
        choice=table(choice),
    )


def grow_walls(key: Tensor, size: int, *, num_walks: int, num_tries: int) -> Tensor:
    """Draw mazes with the aisle generator.

    Args:
        key: ``[R]`` int64, one key per maze.
        size: Cells along a side, odd.
        num_walks: Number of walls that are begun.
        num_tries: Number of attempts to extend each of them.

    Returns:
        ``[R, size, size]`` bool, True where there is a wall.
    """
    lattice = _lattice(size, num_tries, key.device)
    # Every turn begins a wall or takes one of the inner nodes.
    turns = num_walks + max(size // 2 - 1, 0) ** 2
    wait_draw, place_draw = uniform(key, 2, turns).permute(1, 2, 0).contiguous()
    starts = (place_draw * lattice.num_nodes).to(torch.int64)
    picks = (place_draw * 12).to(torch.int64)
    free = torch.ones(len(key), size, size, dtype=torch.uint8, device=key.device)
    free[:, [0, -1]] = 0
    free[:, :, [0, -1]] = 0
    # The last cell is nowhere.
    free = torch.cat([free.flatten(1), torch.zeros_like(free[:, :1, 0])], 1)
    weights = torch.tensor([1, 2, 4, 8], dtype=torch.uint8, device=key.device)
    node = torch.full_like(key, lattice.num_nodes)
    tries = torch.zeros_like(key)
    walks_left = torch.full_like(key, num_walks)
    for turn in range(turns):
        code = (free.gather(1, lattice.around[node]) * weights).sum(1)
        chance = lattice.chances[node * 16 + code]
        # Tries that fail before the one that succeeds.
        found = torch.bucketize(chance + wait_draw[turn], lattice.waits, right=True)
        tries = tries + found - chance * num_tries + 1
        ends = tries > num_tries
        walks_left = walks_left - ends.to(torch.int64)
        start = torch.where(walks_left < 0, lattice.num_nodes, starts[turn])
        edge = node * 4 + lattice.choice[code * 12 + picks[turn]]
        node = torch.where(ends, start, lattice.node_across[edge])
        cell = lattice.cell[node]
        between = torch.where(ends, cell, lattice.cell_between[edge])
        free.scatter_(1, cell[:, None], 0)
        free.scatter_(1, between[:, None], 0)
        tries = tries.masked_fill(ends, 0)
    return (free[:, :-1] == 0).view(-1, size, size)


def clear_spawn(walls: Tensor) -> Tensor:
    """Open the area at the bottom where agents start: a room around a corridor one cell wide.

    Args:
        walls: ``[R, n, n]`` bool; not changed.

    Returns:
        ``[R, n, n]`` bool. The start is the bottom of the corridor, row n-2 of column n//2.
    """
    size = walls.shape[-1]
    middle = size // 2
    walls = walls.clone()
    walls[:, max(size - 5, 1) : size - 1, 1 : size - 1] = False
    walls[:, size - 4 : size - 1, middle - 1 : middle + 2 : 2] = True
    return walls


def sight(walls: Tensor) -> Tensor:
    """Count the free cells in sight from every free cell.

    Args:
        walls: ``[R, n, n]`` bool with a closed border.

    Returns:
        ``[R, n, n, 4]`` int16: free cells from the next one to the first wall, to the west, north,
        east and south; 0 in walls.
    """
    counts = torch.empty(*walls.shape, 4, dtype=torch.int16, device=walls.device)
    for direction, dim in enumerate((2, 1)):
        counts[..., direction] = _sight_back(walls, dim)
        counts[..., direction + 2] = _sight_back(walls.flip(dim), dim).flip(dim)
    return counts


def _sight_back(walls: Tensor, dim: int) -> Tensor:
    shape = [1, 1, 1]
    shape[dim] = -1
    index = torch.arange(walls.shape[dim], dtype=torch.int16, device=walls.device).view(shape)
    last_wall = (walls * index).cummax(dim).values
    return (index - last_wall - 1).clamp_(min=0)
