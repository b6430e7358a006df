"""Contents of a cell: a tile and its colour, also as one number.

A code is an int16 whose bytes are the tile (low) and the colour (high). So comparisons, and writing
a cell, take one operation on one number, and a grid of codes becomes the observation of tiles and
colours without any arithmetic (`unpack`).
"""

from enum import IntEnum
from typing import Final

import torch
from torch import Tensor


class Tile(IntEnum):
    """Tiles, numbered as in xminigrid."""

    EMPTY = 0
    FLOOR = 1
    WALL = 2
    BALL = 3
    SQUARE = 4
    PYRAMID = 5
    GOAL = 6
    KEY = 7
    DOOR_LOCKED = 8
    DOOR_CLOSED = 9
    DOOR_OPEN = 10
    HEX = 11
    STAR = 12


class Colour(IntEnum):
    """Colours, numbered as in xminigrid."""

    EMPTY = 0
    RED = 1
    GREEN = 2
    BLUE = 3
    PURPLE = 4
    YELLOW = 5
    GREY = 6
    BLACK = 7
    ORANGE = 8
    WHITE = 9
    BROWN = 10
    PINK = 11


def code_of(tile: int, colour: int) -> int:
    """Return the code of a tile and a colour."""
    return tile + 256 * colour


EMPTY: Final = code_of(Tile.EMPTY, Colour.EMPTY)
"""Code of a cell outside of the grid, and of an empty pocket."""
FLOOR: Final = code_of(Tile.FLOOR, Colour.BLACK)
"""Code of a free cell."""
WALL: Final = code_of(Tile.WALL, Colour.GREY)
"""Code of a wall."""

CARRIED: Final = (Tile.BALL, Tile.SQUARE, Tile.PYRAMID, Tile.KEY, Tile.STAR, Tile.HEX)
"""Tiles that the agent can pick up."""
OBJECT_COLOURS: Final = (
    Colour.RED,
    Colour.GREEN,
    Colour.BLUE,
    Colour.PURPLE,
    Colour.YELLOW,
    Colour.GREY,
    Colour.WHITE,
    Colour.BROWN,
    Colour.PINK,
    Colour.ORANGE,
)
"""Colours of objects."""
DOOR_COLOURS: Final = (
    Colour.RED,
    Colour.GREEN,
    Colour.BLUE,
    Colour.PURPLE,
    Colour.YELLOW,
    Colour.GREY,
)
"""Colours of doors."""


def pack(pairs: Tensor) -> Tensor:
    """Return codes ``[*]`` int16 of tiles and colours ``[*, 2]``."""
    return pairs[..., 0].to(torch.int16) + 256 * pairs[..., 1].to(torch.int16)


def unpack(codes: Tensor) -> Tensor:
    """Return tiles and colours ``[*, 2]`` uint8 of contiguous codes ``[*]`` int16.

    The result shares the memory of the codes.
    """
    return codes.view(torch.uint8).view(*codes.shape, 2)
