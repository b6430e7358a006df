"""Descriptions of environments by their TorchRL specs, completed by those of their Gymnasium
spaces.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tensordict import unravel_key
from torch import Tensor
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
)
from torchrl.envs import Compose, EnvBase, TransformedEnv

from yamame.spaces.action import ActionEntry, Kind, Part
from yamame.spaces.description import Spaces
from yamame.spaces.observation import ObservationEntry

_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
"""Dtypes that NumPy has, too."""


def recorded_spaces(env: EnvBase) -> Spaces | None:
    """The description that an environment has of its Gymnasium spaces, as ``spaces``; None if it
    has none.

    Entries that a transform writes may hold other numbers than the environment's, so they lose
    their bounds.
    """
    written: set[Any] = set()
    while isinstance(env, TransformedEnv):
        transforms = env.transform if isinstance(env.transform, Compose) else [env.transform]
        for transform in transforms:
            written |= {unravel_key(key) for key in transform.out_keys or ()}
        env = env.base_env
    spaces = env.spaces if hasattr(type(env), "spaces") else None
    if not isinstance(spaces, Spaces):
        return None
    if not any(entry.key in written for entry in spaces.observations):
        return spaces
    entries = [
        replace(entry, bounds=None, whole=False) if entry.key in written else entry
        for entry in spaces.observations
    ]
    return Spaces(tuple(entries), spaces.action)


def describe(
    observation_spec: Composite, action_spec: TensorSpec, recorded: Spaces | None
) -> Spaces:
    """The description of an environment.

    Args:
        observation_spec: Specs of one env.
        action_spec: Spec of one env.
        recorded: A description of Gymnasium spaces. It holds for entries whose shape and dtype are
            those of the specs; others, which transforms have added or changed, are described by
            their specs.
    """
    known = {} if recorded is None else {entry.key: entry for entry in recorded.observations}
    entries = []
    for key in observation_spec.keys(True, True):
        spec = observation_spec[key]
        name = str(spec.dtype).removeprefix("torch.")
        if not isinstance(spec.dtype, torch.dtype) or name not in _DTYPES:
            continue
        entry = known.get(unravel_key(key))
        if entry is None or (entry.stored_shape, entry.dtype) != (tuple(spec.shape), name):
            entry = _observation(key if isinstance(key, tuple) else (key,), spec, name)
        entries.append(entry)
    action = action_of(action_spec)
    if recorded is not None and _alike(recorded.action, action):
        action = recorded.action
    return Spaces(tuple(entries), action)


def spaces_of(env: EnvBase) -> Spaces:
    """The description of an environment: of its Gymnasium spaces, if it has one, completed by its
    specs.
    """
    first = (0,) * env.batch_dims
    observation, action = env.observation_spec, env.full_action_spec["action"]
    if first:
        observation, action = observation[first], action[first]
    return describe(observation, action, recorded_spaces(env))


def _alike(one: ActionEntry, other: ActionEntry) -> bool:
    """Return whether batches of two actions look the same."""
    bounds = zip(one.bounds, other.bounds, strict=True)
    same = (one.kind, one.dtype) == (other.kind, other.dtype)
    return same and all(np.array_equal(mine, its) for mine, its in bounds)


def _observation(name: tuple[str, ...], spec: TensorSpec, dtype: str) -> ObservationEntry:
    shape = tuple(spec.shape)
    options: dict[str, Any] = {"dtype": dtype, "stored_shape": shape}
    if isinstance(spec, OneHot | MultiOneHot) and len(shape) == 1:
        sizes = _nvec(spec) if isinstance(spec, MultiOneHot) else (int(spec.space.n),)
        own = (len(sizes),) if isinstance(spec, MultiOneHot) else ()
        return ObservationEntry(name, name, "one_hot", own, sizes, (0,) * len(sizes), **options)
    if dtype == "bool" or isinstance(spec, Binary):
        return ObservationEntry(name, name, "bit", shape, **options)
    if isinstance(spec, MultiCategorical):
        return ObservationEntry(name, name, "token", shape, _nvec(spec), **options)
    if isinstance(spec, Categorical):
        return ObservationEntry(name, name, "token", shape, (int(spec.space.n),), **options)
    if spec.dtype.is_floating_point:
        return ObservationEntry(name, name, "number", shape, **options)
    return ObservationEntry(name, name, "byte" if dtype == "uint8" else "integer", shape, **options)


def action_of(spec: TensorSpec) -> ActionEntry:
    """The actions of a spec of one env: those that `yamame.actions.ActionEncoding` takes."""
    if isinstance(spec, Bounded):
        low, high = (
            bound.reshape(-1).cpu().double().numpy() for bound in (spec.space.low, spec.space.high)
        )
        dtype = str(spec.dtype).removeprefix("torch.")
        return ActionEntry("box", (Part(tuple(spec.shape), np.dtype(dtype), low, high),), 0, dtype)
    kind: Kind = "multi_discrete"
    if isinstance(spec, Binary):
        kind, sizes = "multi_binary", (2,) * int(spec.shape[-1])
    elif isinstance(spec, MultiCategorical | MultiOneHot):
        sizes = _nvec(spec)
    else:
        kind, sizes = "discrete", (int(spec.space.n),)
    high = np.array(sizes, np.int64) - 1
    shape = () if kind == "discrete" else (len(sizes),)
    return ActionEntry(kind, (Part(shape, np.dtype(np.int64), np.zeros_like(high), high),), 0)


def _nvec(spec: Any) -> tuple[int, ...]:
    nvec = (
        spec.nvec.reshape(-1, spec.shape[-1])[0].tolist()
        if isinstance(spec.nvec, Tensor)
        else spec.nvec
    )
    return tuple(int(n) for n in nvec)
