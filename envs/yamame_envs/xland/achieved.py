"""Goals that a step of XLand-MiniGrid reaches, whichever the hidden goal is.

Goals have numbers from 1, one for all encodings of the same goal: ``a below b`` is ``b above a``.
"""

from typing import Final

import torch
from torch import Tensor

from yamame_envs.xland.cells import Colour, Tile, unpack
from yamame_envs.xland.rules import FORWARD, PICK_UP, PUT_DOWN

_NUM_OBJECTS: Final = len(Tile) * len(Colour)
_HELD, _NEAR, _SIDES, _TWO, _DIRECTED = 0, 1, 2, 6, 7
"""First kinds of goals by their numbers: the agent holds a tile, is next to it, or has it on one of
four sides; two tiles are next to each other, or in one of two directions."""
_ENCODED_KINDS: Final = (1, 3, 11, 12, 13, 14, 4, 7, 8)
NUM_GOALS: Final = len(_ENCODED_KINDS) * _NUM_OBJECTS**2
"""Largest number of a goal."""
NUM_PLACES: Final = 12
"""Largest number of goals that a step reaches."""


def achieved_goals(nearby: Tensor, pocket: Tensor, action: Tensor) -> Tensor:
    """Return the numbers of the goals that a step reaches.

    Args:
        nearby: ``[N, 9]`` int16, codes around the agent after all rules (`Game.nearby`).
        pocket: ``[N]`` int16, code of the tile held.
        action: ``[N]`` int64.

    Returns:
        ``[N, NUM_PLACES]`` int32; 0 in places without a goal.
    """
    codes = torch.cat([nearby, pocket.unsqueeze(-1)], 1)
    tile, colour = unpack(codes).long().unbind(-1)
    # Tiles of goals have consecutive numbers, but for the doors among them.
    is_object = ((tile >= Tile.BALL) & (tile <= Tile.KEY)) | (tile >= Tile.HEX)
    beside, around, ahead, held = (tile * len(Colour) + colour).split([4, 4, 1, 1], 1)
    is_beside, is_around, is_ahead, is_held = is_object.split([4, 4, 1, 1], 1)
    forward, put, pick = ((action == each).unsqueeze(-1) for each in (FORWARD, PUT_DOWN, PICK_UP))
    side = torch.arange(4, device=codes.device)

    sides = _number(_SIDES + side, beside, 0) * (is_beside & (forward | put))
    near = _number(_NEAR, beside, 0) * (is_beside & forward)
    is_pair = is_ahead & is_around & put
    two = _number(_TWO, torch.minimum(ahead, around), torch.maximum(ahead, around)) * is_pair
    is_turned = side >= 2
    first = torch.where(is_turned, around, ahead)
    second = torch.where(is_turned, ahead, around)
    directed = _number(_DIRECTED + side % 2, first, second) * is_pair
    # No step both picks up and puts down.
    directed[:, :1] += _number(_HELD, held, 0) * (is_held & pick)
    return torch.cat([sides, near + two, directed], 1).to(torch.int32)


def _number(kind: Tensor | int, first: Tensor, second: Tensor | int) -> Tensor:
    return (kind * _NUM_OBJECTS + first) * _NUM_OBJECTS + second + 1


def encoded_goals() -> Tensor:
    """Return encodings ``[NUM_GOALS + 1, 5]`` uint8 of goals by their numbers; 0 is no goal."""
    number = torch.arange(NUM_GOALS)
    first, second = number // _NUM_OBJECTS % _NUM_OBJECTS, number % _NUM_OBJECTS
    kind = torch.tensor(_ENCODED_KINDS)[number // _NUM_OBJECTS**2]
    count = len(Colour)
    columns = [kind, first // count, first % count, second // count, second % count]
    goals = torch.stack(columns, 1).to(torch.uint8)
    return torch.cat([torch.zeros(1, 5, dtype=torch.uint8), goals])
