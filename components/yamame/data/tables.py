"""Tables: arrays of files, and their conversion to TorchRL rollouts.

A table is a mapping of arrays over the steps of one or several episodes. Observations and actions
are values of the environment's Gymnasium spaces, as its ``reset`` and ``step`` return and take
them, or observations as they are stored (one-hots):

================================================  =================================================
``observations`` (or ``obs``)                     an array; a mapping of arrays of ``Dict`` spaces
``actions``                                       the same, ``[T, ...]``
``rewards``                                       ``[T]``
``terminated`` (``terminals``, ``terminations``)  ``[T]``, or one for the whole episode
``truncated`` (``timeouts``, ``truncations``)     the same
``next_observations`` (``next_obs``)              ``[T, ...]``, as ``observations``; optional
``success``                                       ``[T]``; optional
``goal``, ``achieved``, ``achieved_mask``,        as long as ``observations``, if the environment
``world_hash``, ``action_mask``, ``trial_start``  has them; ``next_achieved`` and so on are optional
================================================  =================================================

Observations have either one step more than the actions (``[T + 1]``, one whole episode), or as many
(``[T]``, episodes one after the other, as in D4RL). In the latter case without
``next_observations``, the observation after the last step of an episode is unknown: the step is
left out if the episode was truncated there, and the observation is zero if it was terminated. The
last achieved goals must be known, because hindsight depends on them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.utils import NestedKey
from torch import Tensor

from yamame.checks import ArgumentError, require
from yamame.data.format import NO_WORLDS, WORLDS_REMEDY, TrajectoryFormat, after, as_flags
from yamame.keys import RELABELLING
from yamame.spaces.arrays import Array, is_tree, leaves

NAMES = {
    "observations": ("observations", "obs"),
    "next_observations": ("next_observations", "next_obs"),
    "terminated": ("terminated", "terminals", "terminations"),
    "truncated": ("truncated", "timeouts", "truncations"),
}
"""Names of entries in common file formats; the first one found is read."""
SHOWN = ("goal", *RELABELLING, "action_mask")
"""Entries of a timestep that stand beside the observations."""
Table = Mapping[str, Any]
_KNOWN = {
    *SHOWN,
    *(f"next_{key}" for key in SHOWN),
    *(name for names in NAMES.values() for name in names),
    "actions",
    "rewards",
    "success",
    "trial_start",
    "next_trial_start",
}


def tables(tree: Mapping[str, Any], name: str) -> Iterator[tuple[str, Table]]:
    """Find the tables in nested mappings.

    Args:
        tree: Mappings that contain tables, or a table.
        name: Name of the whole in messages.

    Yields:
        Name and table; ``episode_10`` comes after ``episode_9``.
    """
    if "actions" in tree:
        yield name, tree
        return
    # By length first, so that numbers in names are in order.
    for key in sorted(tree, key=lambda key: (len(key), key)):
        if isinstance(tree[key], Mapping):
            yield from tables(tree[key], f"{name}: {key}")


def unused(table: Table) -> set[str]:
    """Return the names of entries that are not read.

    >>> unused({"actions": 1, "truncate": 2})
    {'truncate'}
    """
    return {str(name) for name in table} - _KNOWN


def nested(arrays: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Convert arrays by path to mappings of mappings.

    Args:
        arrays: Arrays by path, with ``/`` between names.
        name: Name of the file in messages.

    >>> nested({"a": 1, "b/c": 2, "b/d": 3}, "file")
    {'a': 1, 'b': {'c': 2, 'd': 3}}
    """
    tree: dict[str, Any] = {}
    for path, array in arrays.items():
        *parents, leaf = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            condition = f"not lie below {parent!r}, an array"
            require(name, "name of an array", path, isinstance(node, dict), condition)
        require(name, "name of an array", path, leaf not in node, "not be the name of a group")
        node[leaf] = array
    return tree


def rollout(
    table: Table,
    format: TrajectoryFormat,
    name: str,
    *,
    drop_unfinished: bool,
    indices: bool | None = False,
) -> TensorDict:
    """Convert a table to a TorchRL rollout ``[T]`` of stored entries.

    Args:
        table: Arrays by name, see above.
        format: Format of the environment.
        name: Name of the table in messages.
        drop_unfinished: Whether to leave out the steps after the last end of an episode.
        indices: Whether actions count from 0, whatever their space does; None if there is no
            choice.

    Raises:
        ValueError: An array is missing, has another length or does not fit the environment; names
            the array.
    """
    actions = read_tree(table, "actions", name)
    first_array = next(leaves(actions))
    num_steps = len(first_array)
    has_ends = _found(table, "terminated") is not None or _found(table, "truncated") is not None
    require(name, "arrays", sorted(table), has_ends, "hold 'terminated' or 'truncated'")
    terminated = _flags(table, "terminated", num_steps, name)
    truncated = _flags(table, "truncated", num_steps, name)
    done = terminated | truncated

    length = num_steps
    if drop_unfinished:
        ends = done.nonzero()
        length = int(ends[-1]) + 1 if len(ends) else 0
    if length == 0:
        return TensorDict({}, [0])

    rewards = _rewards(table, num_steps, name)
    arrival = TensorDict({"reward": rewards[:length]}, [length])
    arrival["terminated"] = terminated[:length]
    arrival["truncated"] = truncated[:length]
    if "success" in table:
        arrival["success"] = _flags(table, "success", num_steps, name)[:length]
    action = format.read_action(_cut(actions, length), name, indices=indices)
    steps = TensorDict({"action": action, "next": arrival}, [length])

    unknown = _set_observations(steps, table, format, name, done)
    # A terminated episode may have ended by achieving its goal at the unknown timestep.
    is_known = "achieved" not in unknown or not bool(terminated.any())
    condition = (
        "be one more than the actions, or come with 'next_achieved': what was achieved last is "
        "not known"
    )
    require(name, "length of 'achieved'", num_steps, is_known, condition)
    return _infer_next(steps, unknown) if unknown else steps


def _set_observations(
    steps: TensorDict, table: Table, format: TrajectoryFormat, name: str, done: Tensor
) -> list[NestedKey]:
    """Add the observations of a table to steps ``[T]``.

    Returns:
        Keys of observations that are not known after the last step of an episode.
    """
    unknown: list[NestedKey] = []
    for key in [*format.observed, "trial_start"]:
        before, following = _observed(table, format, key, name, len(steps), done)
        if before is None:
            continue
        steps.set(key, before)
        if following is None:
            unknown.append(key)
        else:
            steps.set(after(key), following)
    return unknown


def _observed(
    table: Table, format: TrajectoryFormat, key: NestedKey, name: str, length: int, done: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Read an entry before and after each of the first ``length`` steps.

    Returns:
        Values before and after the steps; None for values that the table does not hold.
    """
    value = _shown(table, format, key, name)
    if value is None:
        return None, None
    num_steps = len(done)
    is_longer = len(value) == num_steps + 1
    fits = is_longer or len(value) == num_steps
    condition = f"have one step for each of the {num_steps} actions, or one more"
    require(name, f"length of {key!r}", len(value), fits, condition)

    if is_longer:
        is_single = not bool(done[:-1].any())
        # It is not known where the observations after other ends would be.
        condition = f"not be {num_steps + 1} for several episodes"
        remedy = "give one more than the actions for each alone"
        require(name, f"length of {key!r}", len(value), is_single, condition, remedy=remedy)
        read = _read(value[: length + 1], format, key, name)
        return read[:-1], read[1:]

    before = _read(value[:length], format, key, name)
    following = _shown(table, format, key, name, is_next=True)
    if following is None:
        return before, None
    fits = len(following) == num_steps
    require(name, f"length of next {key!r}", len(following), fits, f"be {num_steps}")
    return before, _read(following[:length], format, key, f"{name}: next")


def _read(value: Array, format: TrajectoryFormat, key: NestedKey, name: str) -> Tensor:
    # Starts of trials belong to the context, which is in no space of the environment.
    if key == "trial_start":
        return torch.from_numpy(value)
    return format.read_observation(key, value, name)


def _infer_next(steps: TensorDict, keys: list[NestedKey]) -> TensorDict:
    """Add the entries after each step: those of the following one, and zeros at ends.

    The last step of a truncated episode is left out, because its result is unknown.
    """
    terminated = steps["next", "terminated"].clone()
    truncated = steps["next", "truncated"].clone()
    ends = terminated | truncated
    is_left_out = truncated & ~terminated
    # The step before, if it belongs to the same episode, becomes the last one.
    is_before = torch.cat([is_left_out[1:], torch.zeros_like(is_left_out[:1])])
    steps["next", "truncated"] = truncated | (is_before & ~ends)

    for key in keys:
        value = steps.get(key)
        following = torch.cat([value[1:], torch.zeros_like(value[:1])])
        # The instruction does not change within an episode.
        following[ends] = value[ends] if key == "goal" else 0
        steps.set(after(key), following)
    return steps[~is_left_out]


def read_tree(table: Table, key: str, name: str) -> Any:
    """Read the arrays of an entry, in the tuples and mappings of the table."""
    return _arrays(_found(table, key), f"{name}: {key}")


def _found(table: Table, key: str) -> Any:
    for name in NAMES.get(key, (key,)):
        if name in table:
            return table[name]
    return None


def _arrays(value: Any, name: str) -> Any:
    """Read arrays of numbers in nested tuples and mappings."""
    if isinstance(value, tuple):
        return tuple(_arrays(inner, f"{name}/{number}") for number, inner in enumerate(value))
    if isinstance(value, Mapping):
        require(name, "entries", [], len(value) > 0, "be at least one")
        arrays = {}
        for key, inner in value.items():
            arrays[key] = _arrays(inner, f"{name}/{key}")
        return arrays
    array = _array(value, name)
    require(name, "shape", array.shape, array.ndim > 0, "be [T, ...]")
    return array


def _cut(tree: Any, length: int) -> Any:
    """Return the first steps of the arrays in nested tuples and mappings."""
    if isinstance(tree, tuple):
        return tuple(_cut(inner, length) for inner in tree)
    if not is_tree(tree):
        return tree[:length]
    cut = {}
    for key, inner in tree.items():
        cut[key] = _cut(inner, length)
    return cut


def _array(value: Any, name: str) -> Array:
    """Copy an array to a dtype that torch has."""
    require(name, "entry", type(value).__name__, not is_tree(value), "be an array")
    # Arrays of other kinds, such as texts, are not read from their file at all.
    if not hasattr(value, "dtype"):
        value = np.asarray(value)
    kind = value.dtype.kind
    require(name, "dtype", str(value.dtype), kind in "biuf", "be of numbers or flags")
    array = np.asarray(value)
    size = array.dtype.itemsize
    if kind == "u" and size == 8 and array.size:
        largest = int(array.max())
        require(name, "largest number", largest, largest < 2**63, "be below 2**63")

    # torch has the byte order of the machine only, no long double, and among unsigned integers
    # full support of bytes only.
    dtype: Any = array.dtype.newbyteorder("=")
    if kind == "u":
        dtype = np.uint8 if size == 1 else np.int64
    elif kind == "f" and size > 8:
        dtype = np.float64
    return array.astype(dtype)


def _shown(
    table: Table, format: TrajectoryFormat, key: NestedKey, name: str, *, is_next: bool = False
) -> Array | None:
    """Return the array of an entry at every step, or after it.

    It is an array beside the observations, below them, or the observations themselves.

    Returns:
        The array; None if the entry is optional and missing.
    """
    # As D4RL names the arrays after a step.
    prefix = "next_" if is_next else ""
    group = f"{prefix}observations"
    own_array = f"{prefix}{key}"
    may_be_beside = key in (*SHOWN, "trial_start")
    if may_be_beside and own_array in table:
        return _array(table[own_array], f"{name}: {own_array}")

    node = _found(table, group)
    value = format.find(key, node) if is_tree(node) else None
    if value is None and node is not None and not is_tree(node) and not may_be_beside:
        # One array stands for the observation only if there is no other.
        below = [other for other in format.observed if other not in SHOWN]
        condition = f"hold an array for each of {below}"
        require(name, f"{group!r}", "one array", below == [key], condition)
        value = node
    if value is not None:
        return _array(value, f"{name}: {group}")

    # Without a mask, all achieved goals count; without starts, an episode is one trial.
    is_optional = key in ("achieved_mask", "trial_start")
    if is_next and (node is None or may_be_beside):
        is_optional = True
    if is_optional:
        return None
    if key == "world_hash":
        raise ArgumentError(name, f"entry {key!r}", None, NO_WORLDS, remedy=WORLDS_REMEDY)
    if node is None or may_be_beside:
        wanted = own_array if may_be_beside else group
        raise ArgumentError(name, "arrays", sorted(table), f"hold {wanted!r}")
    wanted = "/".join(format.observation(key).name)
    raise ArgumentError(name, f"entries of {group!r}", _names(node), f"hold {wanted!r}")


def _names(node: Any) -> list[str]:
    if isinstance(node, tuple):
        return list(map(str, range(len(node))))
    return sorted(map(str, node)) if isinstance(node, Mapping) else []


def _rewards(table: Table, num_steps: int, name: str) -> Tensor:
    found = _found(table, "rewards")
    require(name, "arrays", sorted(table), found is not None, "hold 'rewards'")
    value = torch.from_numpy(_array(found, f"{name}: rewards"))
    fits = value.numel() == num_steps
    require(name, "shape of 'rewards'", tuple(value.shape), fits, f"be ({num_steps},)")
    return value.reshape(num_steps)


def _flags(table: Table, key: str, num_steps: int, name: str) -> Tensor:
    """Return one flag per step; a single flag is that of the last step, missing ones are False."""
    found = _found(table, key)
    if found is None:
        return torch.zeros(num_steps, dtype=torch.bool)
    value = as_flags(torch.from_numpy(_array(found, f"{name}: {key}")), name, repr(key))
    if value.numel() == 1 and num_steps != 1:
        # Some files hold one flag for a whole episode.
        last = value.flatten()
        value = torch.zeros(num_steps, dtype=torch.bool)
        value[-1:] = last
    fits = value.numel() == num_steps
    require(name, f"shape of {key!r}", tuple(value.shape), fits, f"be ({num_steps},)")
    return value.reshape(num_steps)
