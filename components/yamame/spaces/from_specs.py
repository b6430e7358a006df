"""Descriptions of environments by their TorchRL specs, completed by those of Gymnasium spaces."""

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

# Dtypes that NumPy has as well.
_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


def env_attribute(env: EnvBase, name: str) -> Any:
    """Return an attribute of an environment, or None if it has none of this name."""
    try:
        return getattr(env, name, None)
    except RecursionError:
        # TorchRL's batched environments raise this for names that their members lack.
        return None


def recorded_spaces(env: EnvBase) -> Spaces | None:
    """Return the description of its Gymnasium spaces that an environment has as ``spaces``.

    Entries that a transform writes lose their bounds, because their numbers may differ from those
    of the environment.

    Returns:
        The description; None if the environment has none.
    """
    written: set[Any] = set()
    while isinstance(env, TransformedEnv):
        transforms = env.transform if isinstance(env.transform, Compose) else [env.transform]
        for transform in transforms:
            written.update(unravel_key(key) for key in transform.out_keys or ())
        env = env.base_env

    # The attribute of the class: EnvBase looks up other names in wrapped environments.
    spaces = env.spaces if hasattr(type(env), "spaces") else None
    if not isinstance(spaces, Spaces):
        return None
    if not any(entry.key in written for entry in spaces.observations):
        return spaces
    entries = []
    for entry in spaces.observations:
        if entry.key in written:
            entry = replace(entry, bounds=None, whole=False)
        entries.append(entry)
    return Spaces(tuple(entries), spaces.action, empty=spaces.empty)


def describe(
    observation_spec: Composite, action_spec: TensorSpec, recorded: Spaces | None
) -> Spaces:
    """Describe an environment.

    Args:
        observation_spec: Specs of one env.
        action_spec: Spec of one env.
        recorded: Description of Gymnasium spaces. It is used for entries whose shape and dtype are
            those of the specs; others, which transforms have added or changed, are described by
            their specs.
    """
    known = {} if recorded is None else {entry.key: entry for entry in recorded.observations}
    entries = []
    for key in observation_spec.keys(True, True):
        spec = observation_spec[key]
        dtype = str(spec.dtype).removeprefix("torch.")
        # Non-tensor entries have no torch dtype.
        if not isinstance(spec.dtype, torch.dtype) or dtype not in _DTYPES:
            continue
        entry = known.get(unravel_key(key))
        field = (tuple(spec.shape), dtype)
        if entry is None or (entry.stored_shape, entry.dtype) != field:
            name = key if isinstance(key, tuple) else (key,)
            entry = _observation(name, spec, dtype)
        entries.append(entry)

    action = action_of(action_spec)
    # A transform may have changed the actions, too.
    if recorded is not None and _have_equal_batches(recorded.action, action):
        action = recorded.action
    empty = () if recorded is None else recorded.empty
    return Spaces(tuple(entries), action, empty=empty)


def spaces_of(env: EnvBase) -> Spaces:
    """Describe an environment by its Gymnasium spaces, if it has a description, and its specs."""
    observation = env.observation_spec
    action = env.full_action_spec["action"]
    if env.batch_dims:
        first = (0,) * env.batch_dims
        observation = observation[first]
        action = action[first]
    return describe(observation, action, recorded_spaces(env))


def _have_equal_batches(one: ActionEntry, other: ActionEntry) -> bool:
    if (one.kind, one.dtype) != (other.kind, other.dtype):
        return False
    low, high = one.bounds
    other_low, other_high = other.bounds
    return np.array_equal(low, other_low) and np.array_equal(high, other_high)


def _observation(name: tuple[str, ...], spec: TensorSpec, dtype: str) -> ObservationEntry:
    shape = tuple(spec.shape)
    options: dict[str, Any] = {"dtype": dtype, "stored_shape": shape}
    # Subclasses first: a spec of one-hots or choices is a spec of whole numbers as well.
    if isinstance(spec, OneHot | MultiOneHot) and len(shape) == 1:
        own_shape: tuple[int, ...] = ()
        if isinstance(spec, MultiOneHot):
            sizes = _nvec(spec)
            own_shape = (len(sizes),)
        else:
            sizes = (int(spec.space.n),)
        low = (0,) * len(sizes)
        return ObservationEntry(name, name, "one_hot", own_shape, sizes, low, **options)
    if dtype == "bool" or isinstance(spec, Binary):
        return ObservationEntry(name, name, "bit", shape, **options)
    if isinstance(spec, MultiCategorical):
        return ObservationEntry(name, name, "token", shape, _nvec(spec), **options)
    if isinstance(spec, Categorical):
        return ObservationEntry(name, name, "token", shape, (int(spec.space.n),), **options)
    if spec.dtype.is_floating_point:
        return ObservationEntry(name, name, "number", shape, **options)
    if dtype == "uint8":
        return ObservationEntry(name, name, "byte", shape, **options)
    return ObservationEntry(name, name, "integer", shape, **options)


def action_of(spec: TensorSpec) -> ActionEntry:
    """Describe the actions of a spec of one env, one that `yamame.actions.ActionEncoding` takes."""
    if isinstance(spec, Bounded):
        low = spec.space.low.reshape(-1).cpu().double().numpy()
        high = spec.space.high.reshape(-1).cpu().double().numpy()
        dtype = str(spec.dtype).removeprefix("torch.")
        numbers = Part(tuple(spec.shape), np.dtype(dtype), low, high)
        return ActionEntry("box", (numbers,), 0, dtype)

    kind: Kind
    if isinstance(spec, Binary):
        kind = "multi_binary"
        sizes = (2,) * int(spec.shape[-1])
    elif isinstance(spec, MultiCategorical | MultiOneHot):
        kind = "multi_discrete"
        sizes = _nvec(spec)
    else:
        kind = "discrete"
        sizes = (int(spec.space.n),)
    high = np.array(sizes, np.int64) - 1
    shape = () if kind == "discrete" else (len(sizes),)
    choices = Part(shape, np.dtype(np.int64), np.zeros_like(high), high)
    return ActionEntry(kind, (choices,), 0)


def _nvec(spec: Any) -> tuple[int, ...]:
    nvec = spec.nvec
    if isinstance(nvec, Tensor):
        # One row for each env, all alike.
        nvec = nvec.reshape(-1, spec.shape[-1])[0].tolist()
    return tuple(int(size) for size in nvec)
