"""Pictures of XLand-MiniGrid."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from yamame_envs.rendering import CELL, Color, Palette, Picture, disc, frame, ring, tile
from yamame_envs.xland.cells import Colour, Tile

_COLOURS: Final[dict[int, Color]] = {
    Colour.RED: (214, 60, 52),
    Colour.GREEN: (66, 160, 74),
    Colour.BLUE: (52, 98, 206),
    Colour.PURPLE: (130, 62, 180),
    Colour.YELLOW: (222, 186, 40),
    Colour.GREY: (120, 124, 132),
    Colour.BLACK: (30, 30, 34),
    Colour.ORANGE: (238, 132, 36),
    Colour.WHITE: (252, 252, 252),
    Colour.BROWN: (134, 84, 44),
    Colour.PINK: (230, 92, 160),
}
_SEEN: Final[Color] = (255, 253, 246)
_UNSEEN: Final[Color] = (226, 222, 212)
_EDGE: Final[Color] = (60, 60, 66)
_SAMPLES: Final = 3
"""Points along a side of a pixel that are tested for a shape."""
_ROOT_3: Final = 3**0.5

_Points = npt.NDArray[np.float64]
_Mask = npt.NDArray[np.bool_]
# Coordinates of points, from -0.5 to 0.5 rightwards and downwards, to those in the shape.
_Shape = Callable[[_Points, _Points], _Mask]


def draw_grid(
    cells: npt.NDArray[np.uint8],
    place: int,
    direction: int,
    pocket: Sequence[int],
    seen: npt.NDArray[np.bool_],
) -> Picture:
    """Draw a grid.

    Args:
        cells: ``[R, C, 2]``, tile and colour.
        place: Cell of the agent, counted row by row.
        direction: Direction of the agent: 0 up, 1 right, 2 down, 3 left.
        pocket: Tile and colour that the agent holds.
        seen: ``[R, C]``, cells that the agent sees.
    """
    picture = frame(cells[..., 0] == Tile.WALL)
    for row in range(cells.shape[0]):
        for column in range(cells.shape[1]):
            kind, colour = (int(value) for value in cells[row, column])
            if kind == Tile.WALL:
                continue
            cell = (row, column)
            tile(picture, cell, _SEEN if seen[row, column] else _UNSEEN)
            _draw_tile(picture, cell, kind, _COLOURS.get(colour, Palette.FLOOR))
    agent = (place // cells.shape[1], place % cells.shape[1])
    _paint(picture, agent, Palette.AGENT, _arrow(direction))
    if pocket[0] != Tile.EMPTY:
        disc(picture, agent, _COLOURS.get(pocket[1], Palette.FLOOR), 0.16)
        ring(picture, agent, _EDGE, 0.16)
    return picture


def _draw_tile(picture: Picture, cell: tuple[int, int], kind: int, color: Color) -> None:
    if kind == Tile.GOAL:
        tile(picture, cell, color)
    elif kind in (Tile.DOOR_LOCKED, Tile.DOOR_CLOSED):
        tile(picture, cell, color)
        ring(picture, cell, _EDGE, 0.3 if kind == Tile.DOOR_CLOSED else 0.15)
    elif kind == Tile.DOOR_OPEN:
        _paint(picture, cell, color, lambda x, y: x > 0.36)
    elif kind in _SHAPES:
        shape = _SHAPES[kind]
        # An edge, because some colours are close to that of the floor.
        _paint(picture, cell, _EDGE, lambda x, y: shape(x / 1.16, y / 1.16))
        _paint(picture, cell, color, shape)


def _paint(picture: Picture, cell: tuple[int, int], color: Color, shape: _Shape) -> None:
    """Paint a shape into a cell, in place."""
    points = (np.arange(CELL * _SAMPLES) + 0.5) / (CELL * _SAMPLES) - 0.5
    y, x = np.meshgrid(points, points, indexing="ij")
    mask = shape(x, y).astype(np.float64)
    cover = mask.reshape(CELL, _SAMPLES, CELL, _SAMPLES).mean((1, 3))[..., None]
    top, left = cell[0] * CELL, cell[1] * CELL
    window = picture[top : top + CELL, left : left + CELL]
    window[:] = np.rint(window + cover * (np.array(color) - window)).astype(np.uint8)


def _arrow(direction: int) -> _Shape:
    def shape(x: _Points, y: _Points) -> _Mask:
        forward = (-y, x, y, -x)[direction]
        sideways = (x, y, x, y)[direction]
        return (forward > -0.3) & (forward < 0.36 - 1.6 * np.abs(sideways))

    return shape


def _ball(x: _Points, y: _Points) -> _Mask:
    return x**2 + y**2 < 0.31**2


def _square(x: _Points, y: _Points) -> _Mask:
    return np.maximum(np.abs(x), np.abs(y)) < 0.27


def _pyramid(x: _Points, y: _Points) -> _Mask:
    return (y < 0.28) & (np.abs(x) < 0.36 * (y + 0.32) / 0.6)


def _hexagon(x: _Points, y: _Points) -> _Mask:
    return (np.abs(y) < 0.29) & (np.abs(x) + np.abs(y) / _ROOT_3 < 0.335)


def _star(x: _Points, y: _Points) -> _Mask:
    up = (y < 0.17) & (np.abs(x) * _ROOT_3 - 0.34 < y)
    down = (y > -0.17) & (np.abs(x) * _ROOT_3 - 0.34 < -y)
    return up | down


def _key(x: _Points, y: _Points) -> _Mask:
    distance = np.hypot(x, y + 0.17)
    bow = (distance < 0.18) & (distance > 0.07)
    shaft = (np.abs(x) < 0.06) & (y > 0) & (y < 0.36)
    teeth = (x > -0.18) & (x < 0) & ((np.abs(y - 0.14) < 0.04) | (np.abs(y - 0.3) < 0.04))
    return bow | shaft | teeth


_SHAPES: Final[dict[int, _Shape]] = {
    Tile.BALL: _ball,
    Tile.SQUARE: _square,
    Tile.PYRAMID: _pyramid,
    Tile.KEY: _key,
    Tile.HEX: _hexagon,
    Tile.STAR: _star,
}
