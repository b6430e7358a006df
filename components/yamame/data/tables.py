"""Arrays of files as TorchRL rollouts.

A table is a mapping of arrays over the steps of one episode or several. Observations and actions
are values of the environment's Gymnasium spaces, as its ``reset`` and ``step`` return and take
them, or observations as they are stored (one-hots):

====================================================  ==========================================================
``observations`` (or ``obs``)                         an array; of a ``Dict`` or ``Tuple`` space a mapping of arrays
``actions``                                           the same, ``[T, ...]``
``rewards``                                           ``[T]``
``terminated`` (``terminals``, ``terminations``)      ``[T]``, or one for the whole episode
``truncated`` (``timeouts``, ``truncations``)         the same
``next_observations`` (``next_obs``)                  ``[T, ...]``, as ``observations``; optional
``success``                                           ``[T]``; optional
``goal``, ``achieved``, ``achieved_mask``,            as long as ``observations``, where the environment has them;
``world_hash``, ``action_mask``, ``trial_start``      ``next_achieved`` and so on are optional
====================================================  ==========================================================

Observations have either a step more than the actions (``[T + 1]``, one whole episode), or as many
(``[T]``, episodes one after the other, as in D4RL). Of the latter without ``next_observations`` it
is not known where a last step led: it is left out if the episode was truncated there, and led to
zeros if it was terminated. What was achieved last must be known, for hindsight depends on it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.utils import NestedKey
from torch import Tensor

from yamame.checks import require
from yamame.data.format import NO_WORLDS, TrajectoryFormat, after
from yamame.keys import RELABELLING
from yamame.spaces.arrays import Array, is_tree, leaves

NAMES = {
    "observations": ("observations", "obs"),
    "next_observations": ("next_observations", "next_obs"),
    "terminated": ("terminated", "terminals", "terminations"),
    "truncated": ("truncated", "timeouts", "truncations"),
}
"""What entries are called in files of others."""
SHOWN = ("goal", *RELABELLING, "action_mask")
"""Entries of a timestep that stand beside the observations."""
Table = Mapping[str, Any]
_KNOWN = {
    *SHOWN,
    *(f"next_{key}" for key in SHOWN),
    *(name for names in NAMES.values() for name in names),
}
_KNOWN |= {"actions", "rewards", "success", "trial_start", "next_trial_start"}


def tables(tree: Mapping[str, Any], name: str) -> Iterator[tuple[str, Table]]:
    """The tables in nested mappings, and what they are called; ``episode_10`` comes after
    ``episode_9``.
    """
    if "actions" in tree:
        yield name, tree
        return
    for key in sorted(tree, key=lambda key: (len(key), key)):
        if isinstance(tree[key], Mapping):
            yield from tables(tree[key], f"{name}: {key}")


def unused(table: Table) -> set[str]:
    """Entries of a table that are not read.

    >>> unused({"actions": 1, "truncate": 2})
    {'truncate'}
    """
    return {str(name) for name in table} - _KNOWN


def nested(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays by paths, as mappings of mappings.

    >>> nested({"a": 1, "b/c": 2, "b/d": 3})
    {'a': 1, 'b': {'c': 2, 'd': 3}}
    """
    tree: dict[str, Any] = {}
    for path, array in arrays.items():
        *parents, leaf = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            require(
                "arrays",
                "name",
                path,
                isinstance(node, dict),
                f"not lie below {parent!r}, an array",
            )
        require("arrays", "name", path, leaf not in node, "not be that of others too")
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
    """A table as a TorchRL rollout ``[T]`` of stored entries.

    Args:
        table: See the module.
        format: Format of the environment.
        name: Name of the table in messages.
        drop_unfinished: Leave out the steps after the last end of an episode.
        indices: Whether actions count from 0, whatever their space does; None if there is no
            choice.

    Raises:
        ValueError: If an array is missing, has another length or does not fit the environment;
            names it.
    """
    actions = read_tree(table, "actions", name)
    num_steps = len(next(leaves(actions)))
    ends = {key: _flags(table, key, num_steps, name) for key in ("terminated", "truncated")}
    some = [key for key in ("terminated", "truncated") if _found(table, key) is not None]
    require(name, "arrays", sorted(table), bool(some), "hold 'terminated' or 'truncated'")
    done = ends["terminated"] | ends["truncated"]
    length = num_steps
    if drop_unfinished:
        length = int(done.nonzero()[-1]) + 1 if bool(done.any()) else 0
    if length == 0:
        return TensorDict({}, [0])

    next_entries = {"reward": _rewards(table, num_steps, name), **ends}
    if "success" in table:
        next_entries["success"] = _flags(table, "success", num_steps, name)
    arrival = TensorDict({key: value[:length] for key, value in next_entries.items()}, [length])
    action = format.read_action(_cut(actions, length), name, indices=indices)
    steps = TensorDict({"action": action, "next": arrival}, [length])

    unknown: list[NestedKey] = []
    for key in [*format.observed, "trial_start"]:
        now, following = _observed(table, format, key, name, length, done)
        if now is not None:
            steps.set(key, now)
            if following is None:
                unknown.append(key)
            else:
                steps.set(after(key), following)
    known = "achieved" not in unknown or not bool(ends["terminated"].any())
    condition = "be one more than the actions, or stand beside 'next_achieved': what was achieved last is not known"
    require(name, "length of 'achieved'", num_steps, known, condition)
    return _led_on(steps, unknown) if unknown else steps


def _observed(
    table: Table, format: TrajectoryFormat, key: NestedKey, name: str, length: int, done: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """An entry before and after each of the first ``length`` steps; None where the table does not
    hold it.
    """
    value = _shown(table, format, key, name)
    if value is None:
        return None, None
    num_steps, longer = len(done), len(value) == len(done) + 1
    condition = f"have one step for each of the {num_steps} actions, or one more"
    require(name, f"length of {key!r}", len(value), longer or len(value) == num_steps, condition)
    if longer:
        condition = f"not be {num_steps + 1} for several episodes; give one more than the actions for each alone"
        require(name, f"length of {key!r}", len(value), not bool(done[:-1].any()), condition)
        read = _read(value[: length + 1], format, key, name)
        return read[:-1], read[1:]
    now = _read(value[:length], format, key, name)
    following = _shown(table, format, key, name, following=True)
    if following is None:
        return now, None
    require(
        name,
        f"length of next {key!r}",
        len(following),
        len(following) == num_steps,
        f"be {num_steps}",
    )
    return now, _read(following[:length], format, key, f"{name}: next")


def _read(value: Array, format: TrajectoryFormat, key: NestedKey, name: str) -> Tensor:
    if key == "trial_start":
        return torch.from_numpy(value)
    return format.read_observation(key, value, name)


def _led_on(steps: TensorDict, keys: list[NestedKey]) -> TensorDict:
    """The steps with where they led: to the next one of the episode; see the module for the
    last.
    """
    terminated, truncated = (steps["next", key].clone() for key in ("terminated", "truncated"))
    unknown = truncated & ~terminated
    # The step before is the last that it is known of where it led, if it is of the same episode.
    ends = terminated | truncated
    before = torch.cat([unknown[1:], torch.zeros_like(unknown[:1])]) & ~ends
    steps["next", "truncated"] = truncated | before
    for key in keys:
        value = steps.get(key)
        following = torch.cat([value[1:], torch.zeros_like(value[:1])])
        following[ends] = value[ends] if key == "goal" else 0  # the instruction of an episode stays
        steps.set(after(key), following)
    return steps[~unknown]


def read_tree(table: Table, key: str, name: str) -> Any:
    """The arrays of an entry, in the tuples and mappings of the table."""
    return _tree(_found(table, key), f"{name}: {key}")


def _found(table: Table, key: str) -> Any:
    return next((table[name] for name in NAMES.get(key, (key,)) if name in table), None)


def _tree(value: Any, name: str) -> Any:
    """Arrays of numbers, in the same tuples and mappings."""
    if isinstance(value, tuple):
        return tuple(_tree(inner, f"{name}/{number}") for number, inner in enumerate(value))
    if isinstance(value, Mapping):
        require(name, "entries", [], len(value) > 0, "be at least one")
        return {key: _tree(inner, f"{name}/{key}") for key, inner in value.items()}
    array = _array(value, name)
    require(name, "shape", array.shape, array.ndim > 0, "be [T, ...]")
    return array


def _cut(tree: Any, length: int) -> Any:
    if isinstance(tree, tuple):
        return tuple(_cut(inner, length) for inner in tree)
    return (
        {key: _cut(inner, length) for key, inner in tree.items()}
        if is_tree(tree)
        else tree[:length]
    )


def _array(value: Any, name: str) -> Array:
    """A copy of an array in a dtype that torch has."""
    require(name, "entry", type(value).__name__, not is_tree(value), "be an array")
    array = np.asarray(value)
    kind, size = array.dtype.kind, array.dtype.itemsize
    require(name, "dtype", str(array.dtype), kind in "biuf", "be of numbers or flags")
    native = {
        "u": np.uint8 if size == 1 else np.int64,
        "f": np.float64 if size > 8 else array.dtype.newbyteorder("="),
    }
    small = kind != "u" or size < 8 or not array.size or int(array.max()) < 2**63
    require(name, "largest number", None if small else int(array.max()), small, "be below 2**63")
    return array.astype(native.get(kind, array.dtype.newbyteorder("=")))


def _shown(
    table: Table, format: TrajectoryFormat, key: NestedKey, name: str, *, following: bool = False
) -> Array | None:
    """The array of an entry at every step, or after it; None if it is optional and missing.

    It is an array beside the observations, one below them, or the observations themselves.
    """
    prefix = "next_" if following else ""
    group, own_array = f"{prefix}observations", f"{prefix}{key}"
    may_be_beside = key in (*SHOWN, "trial_start")
    if may_be_beside and own_array in table:
        return _array(table[own_array], f"{name}: {own_array}")

    node = _found(table, group)
    value = format.find(key, node) if is_tree(node) else None
    if value is None and node is not None and not is_tree(node) and not may_be_beside:
        below = [other for other in format.observed if other not in SHOWN]
        require(
            name, f"{group!r}", "one array", below == [key], f"hold an array for each of {below}"
        )
        value = node
    if value is not None:
        return _array(value, f"{name}: {group}")

    optional = key in ("achieved_mask", "trial_start") or (
        following and (node is None or may_be_beside)
    )
    if node is None or may_be_beside:
        wanted = own_array if may_be_beside else group
        if key == "world_hash":
            require(name, "entry 'world_hash'", f"arrays {sorted(table)}", optional, NO_WORLDS)
        require(name, "arrays", sorted(table), optional, f"hold {wanted!r}")
    else:
        wanted = "/".join(format.observation(key).name)
        require(name, f"entries of {group!r}", _names(node), optional, f"hold {wanted!r}")
    return None


def _names(node: Any) -> list[str]:
    if isinstance(node, tuple):
        return [str(number) for number in range(len(node))]
    return sorted(map(str, node)) if isinstance(node, Mapping) else []


def _rewards(table: Table, num_steps: int, name: str) -> Tensor:
    found = _found(table, "rewards")
    require(name, "arrays", sorted(table), found is not None, "hold 'rewards'")
    value = torch.from_numpy(_array(found, f"{name}: rewards"))
    fits = value.numel() == num_steps
    require(name, "shape of 'rewards'", tuple(value.shape), fits, f"be ({num_steps},)")
    return value.reshape(num_steps)


def _flags(table: Table, key: str, num_steps: int, name: str) -> Tensor:
    """One flag per step; a single one is that of the last step, and none are false."""
    found = _found(table, key)
    if found is None:
        return torch.zeros(num_steps, dtype=torch.bool)
    value = torch.from_numpy(_array(found, f"{name}: {key}"))
    require(name, f"{key!r}", "NaN", not bool(value.isnan().any()), "be flags")
    if value.numel() == 1 and num_steps != 1:
        single, value = value, torch.zeros(num_steps, dtype=value.dtype)
        value[-1:] = single.flatten()
    require(
        name,
        f"shape of {key!r}",
        tuple(value.shape),
        value.numel() == num_steps,
        f"be ({num_steps},)",
    )
    return value.reshape(num_steps).bool()
