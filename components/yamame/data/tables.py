"""Arrays of files as TorchRL rollouts.

A table is a mapping of arrays over the steps of one episode or several:

====================================================  ==========================================================
``observations`` (or ``obs``)                         an array, or a mapping of arrays by the environment's keys
``actions``, ``rewards``                              ``[T, ...]``, ``[T]``
``terminated`` (``terminals``, ``terminations``)      ``[T]``, or one for the whole episode
``truncated`` (``timeouts``, ``truncations``)         the same
``next_observations`` (``next_obs``)                  ``[T, ...]``, as ``observations``; optional
``success``                                           ``[T]``; optional
``goal``, ``achieved``, ``achieved_mask``,            as long as ``observations``, where the environment has them
``action_mask``, ``trial_start``
====================================================  ==========================================================

Observations have either a step more than the actions (``[T + 1]``, one whole episode), or as many (``[T]``, episodes
one after the other, as in D4RL). Of the latter without ``next_observations`` it is not known where a last step led: it
is left out if the episode was truncated there, and led to zeros if it was terminated.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.utils import NestedKey
from torch import Tensor

from yamame.checks import require

NAMES = {
    "observations": ("observations", "obs"),
    "next_observations": ("next_observations", "next_obs"),
    "terminated": ("terminated", "terminals", "terminations"),
    "truncated": ("truncated", "timeouts", "truncations"),
}
"""What entries are called in files of others."""
SHOWN = ("goal", "achieved", "achieved_mask", "action_mask")
"""Entries of a timestep that stand beside the observations."""
Table = Mapping[str, Any]


def tables(tree: Mapping[str, Any], name: str) -> Iterator[tuple[str, Table]]:
    """The tables in nested mappings, and what they are called; ``episode_10`` comes after ``episode_9``."""
    if "actions" in tree:
        yield name, tree
        return
    for key in sorted(tree, key=lambda key: (len(key), key)):
        if isinstance(tree[key], Mapping):
            yield from tables(tree[key], f"{name}: {key}")


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
    num_steps = len(actions)
    ends = {
        key: _per_step(_array(table, key, name, optional=True), num_steps, f"{name}: {key}")
        for key in ("terminated", "truncated")
    }
    some = [key for key in ("terminated", "truncated") if _found(table, key) is not None]
    require(name, "arrays", sorted(table), bool(some), "hold 'terminated' or 'truncated'")
    shown = {key: _shown(table, "observations", key, name) for key in observed if key != "achieved_mask"}
    for key in ("achieved_mask", "trial_start"):
        array = _array(table, key, name, optional=True)
        shown |= {} if array is None else {key: array}
    root, after = {}, {}
    for key, value in shown.items():
        fits = len(value) in (num_steps, num_steps + 1)
        condition = f"have one step for each of the {num_steps} actions, or one more"
        require(name, f"length of {key!r}", len(value), fits, condition)
        root[key] = value[:num_steps]
        if len(value) == num_steps + 1:
            after[key] = value[1:]
        elif _found(table, "next_observations") is not None and key not in (*SHOWN, "trial_start"):
            after[key] = _shown(table, "next_observations", key, name)
    following = {"reward": _per_step(_array(table, "rewards", name), num_steps, f"{name}: rewards"), **ends}
    success = _array(table, "success", name, optional=True)
    following |= {} if success is None else {"success": _per_step(success, num_steps, f"{name}: success")}
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
        following[ends] = 0
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
    require(name, "dtype", str(array.dtype), array.dtype.kind in "biuf", "be of numbers or flags")
    return torch.from_numpy(np.array(array))  # a copy: what is mapped must not be written to


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


def _per_step(value: Tensor | None, num_steps: int, name: str) -> Tensor:
    """One value per step; a single flag is that of the last step."""
    if value is None:
        return torch.zeros(num_steps, dtype=torch.bool)
    if value.numel() == 1 and num_steps != 1:
        single, value = value, torch.zeros(num_steps, dtype=value.dtype)
        value[-1:] = single.flatten()
    fits = value.numel() == num_steps == len(value.reshape(-1))
    require(name, "shape", tuple(value.shape), fits, f"be ({num_steps},)")
    return value.reshape(num_steps) if "rewards" in name else value.reshape(num_steps).bool()
