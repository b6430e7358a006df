"""Pictures of grids, ``[H, W, 3]`` uint8 RGB, with smooth shapes in their cells."""

from typing import Final

import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]
Color = tuple[int, int, int]

CELL: Final = 24
"""Pixels along a side of a cell."""


class Palette:
    """Colours of all grid environments."""

    FLOOR: Final[Color] = (244, 241, 234)
    GRID: Final[Color] = (230, 226, 216)
    WALL: Final[Color] = (58, 64, 80)
    WALL_EDGE: Final[Color] = (76, 83, 102)
    AGENT: Final[Color] = (38, 110, 190)
    ACTIVE: Final[Color] = (232, 93, 47)
    ACTIVE_TILE: Final[Color] = (253, 226, 208)
    FUTURE: Final[Color] = (226, 150, 60)
    COMPLETED: Final[Color] = (106, 168, 112)


def frame(walls: npt.NDArray[np.bool_]) -> Picture:
    """Paint a grid of floor and walls: ``[R, C] -> [R * CELL, C * CELL, 3]``."""
    is_wall = walls.astype(int)
    cells = np.array([Palette.FLOOR, Palette.WALL], np.uint8)[is_wall]
    picture = cells.repeat(CELL, 0).repeat(CELL, 1)
    edges = np.array([Palette.GRID, Palette.WALL_EDGE], np.uint8)[is_wall]
    picture[::CELL] = edges.repeat(CELL, 1)
    picture[:, ::CELL] = edges.repeat(CELL, 0)
    return picture


def _window(picture: Picture, cell: tuple[int, int]) -> Picture:
    top, left = cell[0] * CELL, cell[1] * CELL
    return picture[top : top + CELL, left : left + CELL]


def _blend(window: Picture, color: Color, cover: npt.NDArray[np.float64]) -> None:
    mixed = window + cover[..., None] * (np.array(color) - window)
    window[:] = np.rint(mixed).astype(np.uint8)


def _distance() -> npt.NDArray[np.float64]:
    offset = np.arange(CELL) - (CELL - 1) / 2
    return np.hypot(offset[:, None], offset[None])


def tile(picture: Picture, cell: tuple[int, int], color: Color) -> None:
    """Fill a cell (row, column) in place, except its grid lines."""
    _window(picture, cell)[1:, 1:] = color


def disc(picture: Picture, cell: tuple[int, int], color: Color, radius: float) -> None:
    """Paint a disc into a cell, in place; ``radius`` in cells."""
    _blend(_window(picture, cell), color, np.clip(radius * CELL - _distance() + 0.5, 0, 1))


def ring(
    picture: Picture, cell: tuple[int, int], color: Color, radius: float, opacity: float = 1.0
) -> None:
    """Paint a ring two pixels wide into a cell, in place.

    ``radius`` is in cells, ``opacity`` in [0, 1].
    """
    cover = opacity * np.clip(1.5 - np.abs(radius * CELL - _distance()), 0, 1)
    _blend(_window(picture, cell), color, cover)


def goal(picture: Picture, cell: tuple[int, int], rank: int) -> None:
    """Paint a goal into a cell, in place.

    The active goal (``rank`` 0) is a bright disc within a ring, future goals (1, 2, ...) are rings
    that fade with their rank, completed goals (below 0) are small dots.
    """
    if rank < 0:
        disc(picture, cell, Palette.COMPLETED, 0.18)
    elif rank == 0:
        tile(picture, cell, Palette.ACTIVE_TILE)
        ring(picture, cell, Palette.ACTIVE, 0.42)
        disc(picture, cell, Palette.ACTIVE, 0.24)
    else:
        ring(picture, cell, Palette.FUTURE, 0.36, opacity=max(0.35, 1.2 - 0.2 * rank))
