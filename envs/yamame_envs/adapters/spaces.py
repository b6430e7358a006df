"""Descriptions of Gymnasium's observation spaces, and the stored array of each of their parts.

==================================  ====================================================
space                               array of R envs
==================================  ====================================================
``Box``, real numbers               float32 ``[R, *shape]``
``Box``, uint8                      uint8 ``[R, *shape]``
``Box``, other whole numbers        tokens: int64 ``[R, *shape]`` in 0..high, where all
                                    bounds are 0 and one ``high``; else float32
``Discrete``                        one-hot float32 ``[R, n]``
``MultiDiscrete``                   concatenated one-hots float32 ``[R, sum(nvec)]``
``MultiBinary``                     bool ``[R, *shape]``
``Dict``, ``Tuple``                 one array per entry; those of a tuple are "0", "1", ...
==================================  ====================================================

A ``Box`` without dimensions has one of size 1. `yamame.spaces.ObservationEntry` reads the values.
Only NumPy and Gymnasium are needed here.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from yamame.spaces import ObservationEntry
from yamame.spaces.arrays import Array as Array


def read_observation(
    space: spaces.Space[Any], *, owner: str, generic: bool
) -> tuple[ObservationEntry, ...]:
    """Describes the entries of an observation space.

    Args:
        space: The space.
        owner: Name of the environment in messages.
        generic: Whether the space was made without this package in mind: then all entries stand
            below ``observation``, and whole numbers that are no bytes are plain numbers. Otherwise
            entries of a ``Dict`` stand at the root, and anything else is ``observation``.

    Raises:
        ValueError: If the space, or a part of it, has no array.
    """
    name = ("observation",) if generic or not isinstance(space, spaces.Dict) else ()
    entries = tuple(_entries(space, name, (), owner, tokens=not generic))
    if not entries:
        raise ValueError(f"{owner}: observation_space must hold something, got {space}")
    return entries


def _entries(
    space: spaces.Space[Any],
    name: tuple[str, ...],
    path: tuple[str | int, ...],
    owner: str,
    *,
    tokens: bool,
) -> Iterator[ObservationEntry]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            if not isinstance(key, str):
                raise ValueError(f"{owner}: keys of a Dict space must be strings, got {key!r}")
            yield from _entries(part, (*name, key), (*path, key), owner, tokens=tokens)
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _entries(part, (*name, str(index)), (*path, index), owner, tokens=tokens)
    elif isinstance(space, spaces.Discrete):
        yield ObservationEntry(name, path, "one_hot", (), (int(space.n),), (int(space.start),))
    elif isinstance(space, spaces.MultiDiscrete):
        sizes, low = space.nvec.flatten().tolist(), space.start.flatten().tolist()
        yield ObservationEntry(name, path, "one_hot", space.nvec.shape, tuple(sizes), tuple(low))
    elif isinstance(space, spaces.MultiBinary):
        yield ObservationEntry(name, path, "bit", tuple(space.shape))
    elif isinstance(space, spaces.Box):
        yield _box(space, name, path, tokens=tokens)
    else:
        raise ValueError(
            f"{owner}: observation_space must be made of Box, Discrete, MultiDiscrete, MultiBinary, Dict and "
            f"Tuple, got {type(space).__name__} at {'.'.join(name) or 'the root'}; turn it into numbers with "
            "a gymnasium.ObservationWrapper"
        )


def _box(
    space: spaces.Box, name: tuple[str, ...], path: tuple[str | int, ...], *, tokens: bool
) -> ObservationEntry:
    shape, kind = tuple(space.shape), np.dtype(space.dtype).kind
    if space.dtype == np.uint8:
        full = bool((space.low == 0).all() and (space.high == 255).all())
        return ObservationEntry(
            name, path, "byte", shape, bounds=None if full else (space.low, space.high)
        )
    if kind == "b":
        return ObservationEntry(name, path, "bit", shape)
    if tokens and kind in "iu" and space.low.size and space.bounded_above.all():
        high = int(space.high.flat[0])
        if not space.low.any() and (space.high == high).all():
            return ObservationEntry(name, path, "token", shape, (high + 1,))
    whole = kind in "iu"
    if space.low.size and np.isinf([space.low.max(), space.high.min()]).all():  # the tightest ones
        return ObservationEntry(name, path, "number", shape, whole=whole)
    bounds = (space.low.astype(np.float32), space.high.astype(np.float32))
    return ObservationEntry(name, path, "number", shape, bounds=bounds, whole=whole)
