"""Layouts of XLand-MiniGrid: walls of one to nine rooms, doors, and places of objects and agent."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

import torch
from torch import Tensor
from yamame.checks import require, require_choice

from yamame_envs.streams import fold, integers, permutation
from yamame_envs.xland.cells import DOOR_COLOURS, Tile, code_of

RoomsName = Literal["R1", "R2", "R4", "R6", "R9"]
"""Names of layouts: the number of rooms."""

# By name: the condition on the size, and its smallest value, at which every room has a cell.
_SIZES: Final = {"R1": ("", 3), "R2": ("", 5), "R4": ("odd", 5), "R6": ("", 9), "R9": ("3n+1", 7)}


@dataclass(frozen=True)
class Rooms:
    """Walls of a layout, and the cells where its doors may be.

    Cells are numbered row by row.

    Attributes:
        walls: ``[size, size]`` bool, also where doors will be.
        doors: ``[D, C]`` int64, the C cells from which the place of each of the D doors is drawn.
    """

    walls: Tensor
    doors: Tensor

    @property
    def free(self) -> Tensor:
        """Numbers ``[F]`` int64 of the cells without a wall."""
        return (~self.walls).flatten().nonzero().squeeze(-1)


def make_rooms(rooms: RoomsName, size: int, *, owner: str = "make_rooms") -> Rooms:
    """Return the walls and doors of a layout with ``size`` cells along a side, with the border.

    Args:
        rooms: Name of the layout.
        size: Cells along a side.
        owner: Name of the caller in messages.

    Raises:
        ArgumentError: There is no such layout, or it has no such size.

    >>> layout = make_rooms("R2", 5)
    >>> layout.walls.int()[1].tolist(), layout.doors.tolist()
    ([1, 0, 1, 0, 1], [[7, 12, 17]])
    """
    require_choice(owner, "rooms", rooms, get_args(RoomsName))
    least = _SIZES[rooms][1]
    require(owner, "size", size, _has_size(rooms, size), f"be {describe_size(rooms, least)}")

    walls = torch.zeros(size, size, dtype=torch.bool)
    walls[0] = walls[-1] = True
    walls[:, 0] = walls[:, -1] = True
    doors: list[list[tuple[int, int]]] = []
    half, third = size // 2, size // 3
    if rooms == "R2":
        walls[:, half] = True
        doors = [[(row, half) for row in range(1, size - 1)]]
    elif rooms == "R4":
        walls[half] = walls[:, half] = True
        steps = range(1, half)
        for start in (0, half):
            doors.append([(half, start + step) for step in steps])
        for start in (0, half):
            doors.append([(start + step, half) for step in steps])
    elif rooms == "R6":
        left, right = half - 2, half + 2
        walls[:, left] = walls[:, right] = True
        for row in (third, 2 * third):
            walls[row, :left] = walls[row, right:] = True
        for column in (left, right):
            doors += [[(row, column)] for row in (half - third, half, half + third)]
    elif rooms == "R9":
        for line in (third, 2 * third):
            walls[line] = walls[:, line] = True
        steps = range(1, third)
        for line in (third, 2 * third):
            for start in (0, third, 2 * third):
                doors.append([(start + step, line) for step in steps])
                doors.append([(line, start + step) for step in steps])
    cells = [[row * size + column for row, column in places] for places in doors]
    table = torch.tensor(cells, dtype=torch.int64) if cells else torch.zeros(0, 1).long()
    return Rooms(walls, table)


def _has_size(rooms: RoomsName, size: int) -> bool:
    shape, least = _SIZES[rooms]
    fits = {"": True, "odd": size % 2 == 1, "3n+1": size % 3 == 1}[shape]
    return fits and size >= least


def describe_size(rooms: RoomsName, least: int) -> str:
    """Return the sizes of a layout from a smallest one on, in words that follow "be".

    >>> describe_size("R9", 7)
    'a multiple of 3 plus 1 and at least 7 with rooms=R9'
    """
    shape = {"": "", "odd": "odd and ", "3n+1": "a multiple of 3 plus 1 and "}[_SIZES[rooms][0]]
    return f"{shape}at least {least} with rooms={rooms}"


def smallest_size(rooms: RoomsName, num_free: int, most: int) -> int | None:
    """Return the smallest size with so many free cells; None if none up to ``most`` has them.

    >>> smallest_size("R1", 6, 64), smallest_size("R4", 6, 64), smallest_size("R1", 6, 4)
    (5, 7, None)
    """
    for size in range(most + 1):
        if _has_size(rooms, size) and len(make_rooms(rooms, size).free) >= num_free:
            return size
    return None


def draw_layouts(key: Tensor, rooms: Rooms, num_objects: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw layouts: places of objects, doors and agent.

    Objects and agent are on different free cells, drawn uniformly. Each door is closed, and its
    place and colour are drawn uniformly.

    Args:
        key: ``[*]`` int64.
        rooms: Walls and doors.
        num_objects: Number M of objects.

    Returns:
        Cells ``[*, M + D]`` int16 of the objects and of the doors, codes ``[*, D]`` int16 of the
        doors, and the pose ``[*]`` int16 of the agent, ``4 * cell + direction``.
    """
    device = key.device
    free = rooms.free.to(device)
    places = free[draw_distinct(fold(key, 0), len(free), num_objects + 1)]
    direction = integers(fold(key, 1), 4)
    pose = 4 * places[..., -1] + direction

    num_doors, num_choices = rooms.doors.shape
    choice = integers(fold(key, 2), num_choices, num_doors)
    doors = rooms.doors.to(device)[torch.arange(num_doors, device=device), choice]
    colours = torch.tensor([code_of(Tile.DOOR_CLOSED, colour) for colour in DOOR_COLOURS])
    codes = colours.to(device)[integers(fold(key, 3), len(DOOR_COLOURS), num_doors)]
    cells = torch.cat([places[..., :-1], doors], -1)
    return cells.to(torch.int16), codes.to(torch.int16), pose.to(torch.int16)


def draw_distinct(key: Tensor, n: int, size: int) -> Tensor:
    """Draw distinct numbers of ``0 .. n - 1`` in random order: ``[*] -> [*, size]`` int64.

    Its cost does not depend on ``n`` (Floyd's algorithm), unlike that of
    `yamame_envs.streams.subset`.
    """
    highs = torch.arange(n - size, n, device=key.device)
    drawn = integers(fold(key, 0), highs + 1, size)
    for index in range(1, size):
        number = drawn[..., index : index + 1]
        is_taken = (drawn[..., :index] == number).any(-1)
        drawn[..., index] = torch.where(is_taken, highs[index], number.squeeze(-1))
    # The algorithm draws a uniform set, whose order is not uniform.
    return drawn.gather(-1, permutation(fold(key, 1), size))
