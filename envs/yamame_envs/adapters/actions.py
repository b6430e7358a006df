"""Descriptions of Gymnasium's action spaces as batches of actions.

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

The environment gets values of the space: NumPy scalars and arrays of its dtype, as ``sample`` draws
them. `yamame.spaces.ActionEntry` converts values of a space to a batch and back, also where
Gymnasium is not installed. This module imports only NumPy and Gymnasium.
"""

from typing import Any

import numpy as np
from gymnasium import spaces
from yamame.checks import ArgumentError, require
from yamame.spaces import ActionEntry, Part
from yamame.spaces.arrays import Outside

from yamame_envs.adapters.spaces import plain_key

# A whole number becomes a choice among its values, with one output of the policy each.
_MAX_VALUES = 65536


def read_actions(
    space: spaces.Space[Any], *, owner: str, outside: Outside = "raise"
) -> ActionEntry:
    """Describe the actions of a space.

    Args:
        space: Action space.
        owner: Name of the environment in messages.
        outside: Handling of real numbers out of bounds, see `yamame.spaces.ActionEntry`.

    Raises:
        ArgumentError: The space has no such batch.
    """
    leaves: list[spaces.Space[Any]] = []
    tree = _tree(space, leaves, owner)
    parts = tuple(_part(leaf, owner) for leaf in leaves)

    # A policy has one distribution: continuous, or over choices. Parts without numbers have none.
    filled = [part for part in parts if len(part.low)]
    is_uniform = len({part.is_box for part in filled}) == 1
    condition = "hold only Box spaces of real numbers or none"
    remedy = "leave one kind out with a gymnasium.ActionWrapper"
    require(owner, "action_space", space, is_uniform, condition, remedy=remedy)

    if filled[0].is_box:
        return ActionEntry("box", parts, tree, outside=outside)
    is_single = tree == 0
    if is_single and isinstance(space, spaces.Discrete):
        return ActionEntry("discrete", parts, tree)
    if is_single and isinstance(space, spaces.MultiBinary):
        return ActionEntry("multi_binary", parts, tree)
    return ActionEntry("multi_discrete", parts, tree)


def _tree(space: spaces.Space[Any], leaves: list[spaces.Space[Any]], owner: str) -> Any:
    """Append the simple spaces to ``leaves``, and return their indices, nested as the space."""
    if isinstance(space, spaces.Dict):
        tree = {}
        for key, part in space.spaces.items():
            tree[plain_key(key, owner, "action_space")] = _tree(part, leaves, owner)
        return tree
    if isinstance(space, spaces.Tuple):
        return tuple(_tree(part, leaves, owner) for part in space.spaces)
    leaves.append(space)
    return len(leaves) - 1


def _part(space: spaces.Space[Any], owner: str) -> Part:
    if isinstance(space, spaces.Discrete):
        low = np.array([space.start], np.int64)
        return Part((), np.dtype(space.dtype), low, low + int(space.n) - 1)
    if isinstance(space, spaces.MultiDiscrete):
        low = space.start.flatten().astype(np.int64)
        high = low + space.nvec.flatten() - 1
        return Part(space.nvec.shape, np.dtype(space.dtype), low, high)
    if isinstance(space, spaces.MultiBinary):
        low = np.zeros(int(np.prod(space.shape)), np.int64)
        return Part(tuple(space.shape), np.dtype(space.dtype), low, low + 1)
    if isinstance(space, spaces.Box):
        return _box(space, owner)
    raise ArgumentError(
        owner,
        "action_space",
        space,
        "be made of Discrete, MultiDiscrete, MultiBinary, Box, Dict and Tuple",
        remedy="turn it into one of them with a gymnasium.ActionWrapper",
    )


def _box(space: spaces.Box, owner: str) -> Part:
    dtype = np.dtype(space.dtype)
    is_real = dtype.kind == "f"
    wide = np.float64 if is_real else np.int64
    low = space.low.flatten().astype(wide)
    high = space.high.flatten().astype(wide)
    # Policies act in float32, where the width of float64 bounds may overflow.
    with np.errstate(over="ignore"):
        width = (high.astype(np.float64) - low).astype(np.float32)

    # RescaleAction rejects infinite bounds, and divides by zero where the bounds are equal.
    is_finite = bool(space.is_bounded() and np.isfinite(width).all())
    condition = "have finite bounds, not further apart than float32 holds"
    remedy = (
        "choose bounds with gymnasium.wrappers.TransformAction(env, lambda action: action, "
        "gymnasium.spaces.Box(low, high))"
    )
    require(owner, "action_space", space, is_finite, condition, remedy=remedy)

    if is_real:
        constant = np.flatnonzero(~(width > 0)).tolist()
        condition = "have lower bounds below the upper ones"
        remedy = (
            f"the bounds of dimensions {constant} (flattened) are equal: leave these out with "
            "gymnasium.wrappers.TransformAction(env, func, action_space), where func adds the "
            "constants to an action of the smaller action_space"
        )
        require(owner, "action_space", space, not constant, condition, remedy=remedy)
    else:
        is_small = bool((width <= _MAX_VALUES).all())
        condition = f"have at most {_MAX_VALUES} values of each whole number"
        require(owner, "action_space", space, is_small, condition)
    return Part(tuple(space.shape), dtype, low, high)
