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

A ``Box`` without dimensions gets one of size 1, and parts without numbers are left out.
`yamame.spaces.ObservationEntry` reads the values.

The key of a ``Dict`` is the name of its entry, but for

* keys that are no texts: their text, as "1" for 1, with "_" behind it as often as another key has
  that name;
* "", "device", "dtype", "shape" and "space", which TorchRL's `Composite` does not take, and these
  names followed by any number of "_": one more "_", as "shape_" for "shape".

So different keys have different names. Observations that an agent or a file gives may have either.

This module imports only NumPy and Gymnasium.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from yamame.checks import ArgumentError, require
from yamame.spaces import ObservationEntry
from yamame.spaces.arrays import Array as Array
from yamame.spaces.arrays import Key, Outside

_TAKEN = frozenset({"", "device", "dtype", "shape", "space"})
"""Names that `torchrl.data.Composite` refuses."""


def read_observation(
    space: spaces.Space[Any],
    *,
    owner: str,
    generic: bool,
    outside: Outside = "raise",
    tokens: bool | None = None,
) -> tuple[ObservationEntry, ...]:
    """Describe the entries of an observation space.

    Args:
        space: Observation space.
        owner: Name of the environment in messages.
        generic: True for spaces that were not made for this package: all entries are nested below
            ``observation``, and integers other than bytes are plain numbers. Otherwise entries of
            a ``Dict`` are entries of the root, and any other space is ``observation``.
        outside: Handling of numbers out of bounds, see `yamame.spaces.ObservationEntry`.
        tokens: True if whole numbers from 0 to a common bound are tokens; None: as ``generic``
            decides.

    Raises:
        ArgumentError: The space, or a part of it, cannot be converted to an array.
    """
    are_tokens = not generic if tokens is None else tokens
    is_root = not generic and isinstance(space, spaces.Dict)
    root = () if is_root else ("observation",)
    entries = []
    for name, path, part in _parts(space, root, (), owner):
        if not _is_empty(part):
            entries.append(_entry(part, name, path, owner, tokens=are_tokens, outside=outside))
    require(owner, "observation_space", space, bool(entries), "hold something")
    return tuple(entries)


def empty_parts(space: spaces.Space[Any], *, owner: str) -> tuple[tuple[Key, ...], ...]:
    """Return the places of the parts of an observation space that have no numbers."""
    places = []
    for _, path, part in _parts(space, (), (), owner):
        if _is_empty(part):
            places.append(path)
    return tuple(places)


def _is_empty(space: spaces.Space[Any]) -> bool:
    return space.shape is not None and 0 in space.shape


def _parts(
    space: spaces.Space[Any], name: tuple[str, ...], path: tuple[Key, ...], owner: str
) -> Iterator[tuple[tuple[str, ...], tuple[Key, ...], spaces.Space[Any]]]:
    """Iterate over the name, the place and the space of all parts that are no Dict or Tuple."""
    if isinstance(space, spaces.Dict):
        keys = [plain_key(key, owner, "observation_space") for key in space.spaces]
        names = entry_names(keys)
        for key, part in zip(keys, space.spaces.values(), strict=True):
            yield from _parts(part, (*name, names[key]), (*path, key), owner)
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _parts(part, (*name, str(index)), (*path, index), owner)
    else:
        yield name, path, space


def plain_key(key: Any, owner: str, space: str) -> Key:
    """Return a key of a ``Dict`` space in the types of Python that JSON can hold.

    Args:
        key: Key.
        owner: Name of the environment in messages.
        space: Name of the space in messages.

    Raises:
        ArgumentError: It is no text, number or None, and no tuple of these.
    """
    if isinstance(key, np.generic):
        key = key.item()
    if isinstance(key, tuple):
        return tuple(plain_key(part, owner, space) for part in key)
    # Members of an Enum may be texts or whole numbers, which other Dicts hold as such.
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return int(key)
    is_plain = key is None or isinstance(key, bool | float)
    condition = "have texts, numbers or tuples of these as keys of Dict spaces"
    require(owner, space, key, is_plain, condition)
    return key


def entry_names(keys: Iterable[Key]) -> dict[Key, str]:
    """Return the name of the entry of each key of a ``Dict`` space, see above.

    >>> entry_names(["x", "shape", "shape_", 1, "1"])
    {'x': 'x', 'shape': 'shape_', 'shape_': 'shape__', '1': '1', 1: '1_'}
    """
    # Texts first, so that they keep their names.
    ordered = sorted(keys, key=lambda key: not isinstance(key, str))
    names: dict[Key, str] = {}
    for key in ordered:
        name = str(key)
        if name.rstrip("_") in _TAKEN:
            name += "_"
        while name in names.values():
            name += "_"
        names[key] = name
    return names


def _entry(
    space: spaces.Space[Any],
    name: tuple[str, ...],
    path: tuple[Key, ...],
    owner: str,
    *,
    tokens: bool,
    outside: Outside,
) -> ObservationEntry:
    if isinstance(space, spaces.Discrete):
        return ObservationEntry(name, path, "one_hot", (), (int(space.n),), (int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(space.nvec.flatten().tolist())
        low = tuple(space.start.flatten().tolist())
        return ObservationEntry(name, path, "one_hot", space.nvec.shape, sizes, low)
    if isinstance(space, spaces.MultiBinary):
        return ObservationEntry(name, path, "bit", tuple(space.shape))
    if isinstance(space, spaces.Box):
        return _box(space, name, path, tokens=tokens, outside=outside)
    place = ".".join(name) or "the root"
    raise ArgumentError(
        owner,
        f"observation_space at {place}",
        space,
        "be made of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple",
        remedy="turn it into numbers with a gymnasium.ObservationWrapper",
    )


def _box(
    space: spaces.Box,
    name: tuple[str, ...],
    path: tuple[Key, ...],
    *,
    tokens: bool,
    outside: Outside,
) -> ObservationEntry:
    shape = tuple(space.shape)
    kind = np.dtype(space.dtype).kind
    if space.dtype == np.uint8:
        is_full = bool((space.low == 0).all() and (space.high == 255).all())
        # Every byte is in a full range, so there is nothing to check at each step.
        bounds = None if is_full else (space.low, space.high)
        return ObservationEntry(name, path, "byte", shape, bounds=bounds, outside=outside)
    if kind == "b":
        return ObservationEntry(name, path, "bit", shape)

    is_whole = kind in "iu"
    if tokens and is_whole and space.bounded_above.all():
        high = int(space.high.flat[0])
        if not space.low.any() and (space.high == high).all():
            return ObservationEntry(name, path, "token", shape, (high + 1,))

    tightest = [space.low.max(), space.high.min()]
    if np.isinf(tightest).all():
        return ObservationEntry(name, path, "number", shape, whole=is_whole)
    with np.errstate(over="ignore"):
        bounds = (space.low.astype(np.float32), space.high.astype(np.float32))
    return ObservationEntry(
        name, path, "number", shape, bounds=bounds, whole=is_whole, outside=outside
    )
