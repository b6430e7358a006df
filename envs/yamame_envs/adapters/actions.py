"""Descriptions of Gymnasium's action spaces, and the batch of actions of each.

==================================  =====================================================
space                               batch of R actions
==================================  =====================================================
``Discrete``                        int64 ``[R]``, counted from 0
``MultiDiscrete``                   int64 ``[R, n]``, counted from 0
``MultiBinary``                     int8 ``[R, n]``
``Box``, real numbers               float32 ``[R, n]`` within the bounds
``Dict``, ``Tuple``                 of ``Box`` alone as one ``Box``, of others as one
                                    ``MultiDiscrete`` (a bit has two values)
==================================  =====================================================

`yamame.spaces.ActionEntry` turns values of a space into a batch and back. Only NumPy and Gymnasium
are needed here.
"""

from typing import Any

import numpy as np
from gymnasium import spaces
from yamame.spaces import ActionEntry, Part

_MOST_VALUES = 65536  # of a whole number that is chosen as one of so many actions


def read_actions(space: spaces.Space[Any], *, owner: str) -> ActionEntry:
    """Describes the actions of a space.

    Args:
        space: The space.
        owner: Name of the environment in messages.

    Raises:
        ValueError: If there is no such batch for it.
    """
    leaves: list[spaces.Space[Any]] = []
    tree = _tree(space, leaves)
    parts = tuple(_part(leaf, owner) for leaf in leaves)
    continuous = {part.dtype.kind == "f" for part in parts}
    if len(continuous) != 1:
        raise ValueError(
            f"{owner}: action_space must hold only Box spaces of real numbers or none, got {space}; leave "
            "one of them out with a gymnasium.ActionWrapper"
        )
    if continuous == {True}:
        return ActionEntry("box", parts, tree)
    if tree == 0 and isinstance(space, spaces.Discrete):
        return ActionEntry("discrete", parts, tree)
    bits = tree == 0 and isinstance(space, spaces.MultiBinary)
    return ActionEntry("multi_binary" if bits else "multi_discrete", parts, tree)


def _tree(space: spaces.Space[Any], leaves: list[spaces.Space[Any]]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _tree(part, leaves) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_tree(part, leaves) for part in space.spaces)
    leaves.append(space)
    return len(leaves) - 1


def _part(space: spaces.Space[Any], owner: str) -> Part:
    if isinstance(space, spaces.Discrete):
        low = np.array([space.start], np.int64)
        return Part((), np.dtype(np.int64), low, low + int(space.n) - 1)
    if isinstance(space, spaces.MultiDiscrete):
        low = space.start.flatten().astype(np.int64)
        return Part(space.nvec.shape, np.dtype(space.dtype), low, low + space.nvec.flatten() - 1)
    if isinstance(space, spaces.MultiBinary):
        low = np.zeros(int(np.prod(space.shape)), np.int64)
        return Part(tuple(space.shape), np.dtype(space.dtype), low, low + 1)
    if not isinstance(space, spaces.Box) or not space.low.size:
        raise ValueError(
            f"{owner}: action_space must be made of Discrete, MultiDiscrete, MultiBinary, Box, Dict and Tuple, "
            f"got {space}; turn it into one of them with a gymnasium.ActionWrapper"
        )
    dtype = np.dtype(space.dtype)
    wide = np.float64 if dtype.kind == "f" else np.int64
    low, high = space.low.flatten().astype(wide), space.high.flatten().astype(wide)
    with np.errstate(over="ignore"):
        width = (high.astype(np.float64) - low).astype(np.float32)
    # RescaleAction refuses infinite bounds, and divides by zero where the bounds are equal.
    if not space.is_bounded() or not np.isfinite(width).all():
        raise ValueError(
            f"{owner}: action_space must have finite bounds, not further apart than float32 holds, got {space}; "
            "choose some with gymnasium.wrappers.TransformAction(env, lambda action: action, "
            "gymnasium.spaces.Box(low, high))"
        )
    if dtype.kind == "f" and not (width > 0).all():
        constant = np.flatnonzero(~(width > 0)).tolist()
        raise ValueError(
            f"{owner}: action_space must have lower bounds below the upper ones, got {space}, where they are equal "
            f"in dimensions {constant} (flattened); leave these out with gymnasium.wrappers.TransformAction(env, "
            "func, action_space), where func adds the constants to an action of the smaller action_space"
        )
    if dtype.kind != "f" and (width > _MOST_VALUES).any():
        raise ValueError(
            f"{owner}: action_space must have at most {_MOST_VALUES} values of each whole number, got {space}"
        )
    return Part(tuple(space.shape), dtype, low, high)
