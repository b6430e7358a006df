"""Arrays of files as TorchRL rollouts.

A table is a mapping of arrays over the steps of one episode or several:

====================================================  ==========================================================
``observations`` (or ``obs``)                         an array, or a mapping of arrays by the environment's keys
``actions``, ``rewards``                              ``[T, ...]``, ``[T]``
``terminated`` (``terminals``, ``terminations``)      ``[T]``, or one for the whole episode
``truncated`` (``timeouts``, ``truncations``)         the same
``next_observations`` (``next_obs``)                  ``[T, ...]``, as ``observations``; optional
``success``                                           ``[T]``; optional
``goal``, ``achieved``, ``achieved_mask``,            as long as ``observations``, where the environment has them;
``world_hash``, ``action_mask``, ``trial_start``      ``next_achieved`` and so on are optional
====================================================  ==========================================================

Observations have either a step more than the actions (``[T + 1]``, one whole episode), or as many (``[T]``, episodes
one after the other, as in D4RL). Of the latter without ``next_observations`` it is not known where a last step led: it
is left out if the episode was truncated there, and led to zeros if it was terminated. What was achieved last must be
known, for hindsight depends on it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.utils import NestedKey
from torch import Tensor

from yamame.checks import require
from yamame.keys import RELABELLING

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
_KNOWN = {*SHOWN, *(f"next_{key}" for key in SHOWN), *(name for names in NAMES.values() for name in names)}
_KNOWN |= {"actions", "rewards", "success", "trial_start", "next_trial_start"}


def tables(tree: Mapping[str, Any], name: str) -> Iterator[tuple[str, Table]]:
    """The tables in nested mappings, and what they are called; ``episode_10`` comes after ``episode_9``."""
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
            require("arrays", "name", path, isinstance(node, dict), f"not lie below {parent!r}, an array")
        require("arrays", "name", path, leaf not in node, "not be that of others too")
        node[leaf] = array
    return tree


def rollout(table: Table, observed: list[NestedKey], name: str, *, drop_unfinished: bool) -> TensorDict:
    """A table as a TorchRL rollout ``[T]``.

    Args:
        table: See the module.
        observed: Keys of what the environment shows.
        name: Of the table, for messages.
        drop_unfinished: Leave out the steps after the last end of an episode.

    Raises:
        ValueError: An array is missing or has another length; names it.
    """
    actions = _array(table, "actions", name)
    require(name, "shape of 'actions'", tuple(actions.shape), actions.ndim > 0, "be [T, ...]")
    num_steps = len(actions)
    ends = {key: _flags(table, key, num_steps, name) for key in ("terminated", "truncated")}
    some = [key for key in ("terminated", "truncated") if _found(table, key) is not None]
    require(name, "arrays", sorted(table), bool(some), "hold 'terminated' or 'truncated'")
    observations = {
        key: _shown(table, "observations", key, name) for key in observed if key != "achieved_mask"
    }
    for key in ("achieved_mask", "trial_start"):
        array = _array(table, key, name, optional=True)
        observations |= {} if array is None else {key: array}
    root, after = {}, {}
    for key, value in observations.items():
        fits = len(value) in (num_steps, num_steps + 1)
        condition = f"have one step for each of the {num_steps} actions, or one more"
        require(name, f"length of {key!r}", len(value), fits, condition)
        root[key] = value[:num_steps]
        following_value = _found(table, f"next_{key}") if key in (*SHOWN, "trial_start") else None
        if len(value) == num_steps + 1:
            inner = (ends["terminated"] | ends["truncated"])[:-1].nonzero().flatten().tolist()
            condition = (
                f"not be {num_steps + 1} for several episodes; give one more than the actions for each alone"
            )
            require(name, f"length of {key!r}", len(value), not inner, condition)
            after[key] = value[1:]
        elif following_value is not None:
            after[key] = _tensor(following_value, f"{name}: next_{key}")
        elif _found(table, "next_observations") is not None and key not in (*SHOWN, "trial_start"):
            after[key] = _shown(table, "next_observations", key, name)
    known = "achieved" not in root or "achieved" in after or not bool(ends["terminated"].any())
    condition = (
        "be one more than the actions, or stand beside 'next_achieved': what was achieved last is not known"
    )
    require(name, "length of 'achieved'", num_steps, known, condition)
    following = {"reward": _rewards(table, num_steps, name), **ends}
    following |= {"success": _flags(table, "success", num_steps, name)} if "success" in table else {}
    steps = TensorDict({"action": actions}, [num_steps]).set("next", TensorDict(following, [num_steps]))
    for key, value in root.items():
        steps.set(key, value)
    for key, value in after.items():
        require(name, f"length of next {key!r}", len(value), len(value) == num_steps, f"be {num_steps}")
        steps.set(("next", *key) if isinstance(key, tuple) else ("next", key), value)
    if drop_unfinished:
        done = (ends["terminated"] | ends["truncated"]).nonzero().flatten()
        steps = steps[: int(done[-1]) + 1] if len(done) else steps[:0]
    return steps if len(after) == len(root) else _led_on(steps, [key for key in root if key not in after])


def _led_on(steps: TensorDict, keys: list[NestedKey]) -> TensorDict:
    """The steps with where they led: to the next one of the episode; see the module for the last."""
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
        steps.set(("next", *key) if isinstance(key, tuple) else ("next", key), following)
    return steps[~unknown]


def _found(table: Table, key: str) -> Any:
    return next((table[name] for name in NAMES.get(key, (key,)) if name in table), None)


def _array(table: Table, key: str, name: str, *, optional: bool = False) -> Any:
    """An array of a table as a tensor; None if it is optional and not there."""
    value = _found(table, key)
    if value is None and optional:
        return None
    require(name, "arrays", sorted(table), value is not None, f"hold {key!r}")
    return _tensor(value, f"{name}: {key}")


def _tensor(value: Any, name: str) -> Tensor:
    require(name, "entry", type(value).__name__, not isinstance(value, Mapping), "be an array")
    array = np.asarray(value)
    kind, size = array.dtype.kind, array.dtype.itemsize
    require(name, "dtype", str(array.dtype), kind in "biuf", "be of numbers or flags")
    native = {
        "u": np.uint8 if size == 1 else np.int64,
        "f": np.float64 if size > 8 else array.dtype.newbyteorder("="),
    }
    small = kind != "u" or size < 8 or not array.size or int(array.max()) < 2**63
    require(name, "largest number", None if small else int(array.max()), small, "be below 2**63")
    return torch.from_numpy(array.astype(native.get(kind, array.dtype.newbyteorder("="))))  # a copy


def _shown(table: Table, group: str, key: NestedKey, name: str) -> Tensor:
    """What the environment shows under a key: beside the observations, below them, or the observations themselves."""
    path = (key,) if isinstance(key, str) else key
    if key in SHOWN:
        return _array(table, str(key), name)
    node = _found(table, group)
    require(name, "arrays", sorted(table), node is not None, f"hold {group!r}")
    whole = name + f": {group}"
    for part in path if path[0] in _names(node) else path[1:]:
        require(whole, "entries", _names(node), part in _names(node), f"hold {'/'.join(path)!r}")
        node = node[part]
    return _tensor(node, whole)


def _names(node: Any) -> list[str]:
    return sorted(node) if isinstance(node, Mapping) else []


def _rewards(table: Table, num_steps: int, name: str) -> Tensor:
    value = _array(table, "rewards", name)
    fits = value.numel() == num_steps
    require(name, "shape of 'rewards'", tuple(value.shape), fits, f"be ({num_steps},)")
    return value.reshape(num_steps)


def _flags(table: Table, key: str, num_steps: int, name: str) -> Tensor:
    """One flag per step; a single one is that of the last step, and none are false."""
    value = _array(table, key, name, optional=True)
    if value is None:
        return torch.zeros(num_steps, dtype=torch.bool)
    require(name, f"{key!r}", "NaN", not bool(value.isnan().any()), "be flags")
    if value.numel() == 1 and num_steps != 1:
        single, value = value, torch.zeros(num_steps, dtype=value.dtype)
        value[-1:] = single.flatten()
    require(name, f"shape of {key!r}", tuple(value.shape), value.numel() == num_steps, f"be ({num_steps},)")
    return value.reshape(num_steps).bool()
