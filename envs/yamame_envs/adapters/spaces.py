"""Descriptions of Gymnasium's observation spaces as arrays of a batch of envs.

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

A ``Box`` without dimensions gets one of size 1. `yamame.spaces.ObservationEntry` reads the values.
This module imports only NumPy and Gymnasium.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from yamame.checks import ArgumentError, require
from yamame.spaces import ObservationEntry
from yamame.spaces.arrays import Array as Array


def read_observation(
    space: spaces.Space[Any], *, owner: str, generic: bool
) -> tuple[ObservationEntry, ...]:
    """Describe the entries of an observation space.

    Args:
        space: Observation space.
        owner: Name of the environment in messages.
        generic: True for spaces that were not made for this package: all entries are nested below
            ``observation``, and integers other than bytes are plain numbers. Otherwise entries of
            a ``Dict`` are entries of the root, and any other space is ``observation``.

    Raises:
        ArgumentError: The space, or a part of it, cannot be converted to an array.
    """
    is_root = not generic and isinstance(space, spaces.Dict)
    name = () if is_root else ("observation",)
    entries = tuple(_entries(space, name, (), owner, tokens=not generic))
    require(owner, "observation_space", space, bool(entries), "hold something")
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
            # Names are keys of tensordicts.
            condition = "have strings as keys of Dict spaces"
            require(owner, "observation_space", key, isinstance(key, str), condition)
            yield from _entries(part, (*name, key), (*path, key), owner, tokens=tokens)
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _entries(part, (*name, str(index)), (*path, index), owner, tokens=tokens)
    elif isinstance(space, spaces.Discrete):
        yield ObservationEntry(name, path, "one_hot", (), (int(space.n),), (int(space.start),))
    elif isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(space.nvec.flatten().tolist())
        low = tuple(space.start.flatten().tolist())
        yield ObservationEntry(name, path, "one_hot", space.nvec.shape, sizes, low)
    elif isinstance(space, spaces.MultiBinary):
        yield ObservationEntry(name, path, "bit", tuple(space.shape))
    elif isinstance(space, spaces.Box):
        yield _box(space, name, path, tokens=tokens)
    else:
        place = ".".join(name) or "the root"
        raise ArgumentError(
            owner,
            f"observation_space at {place}",
            space,
            "be made of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple",
            remedy="turn it into numbers with a gymnasium.ObservationWrapper",
        )


def _box(
    space: spaces.Box, name: tuple[str, ...], path: tuple[str | int, ...], *, tokens: bool
) -> ObservationEntry:
    shape = tuple(space.shape)
    kind = np.dtype(space.dtype).kind
    if space.dtype == np.uint8:
        is_full = bool((space.low == 0).all() and (space.high == 255).all())
        # Every byte is in a full range, so there is nothing to check at each step.
        bounds = None if is_full else (space.low, space.high)
        return ObservationEntry(name, path, "byte", shape, bounds=bounds)
    if kind == "b":
        return ObservationEntry(name, path, "bit", shape)

    is_whole = kind in "iu"
    if tokens and is_whole and space.low.size and space.bounded_above.all():
        high = int(space.high.flat[0])
        if not space.low.any() and (space.high == high).all():
            return ObservationEntry(name, path, "token", shape, (high + 1,))

    if space.low.size:
        tightest = [space.low.max(), space.high.min()]
        if np.isinf(tightest).all():
            return ObservationEntry(name, path, "number", shape, whole=is_whole)
    bounds = (space.low.astype(np.float32), space.high.astype(np.float32))
    return ObservationEntry(name, path, "number", shape, bounds=bounds, whole=is_whole)
