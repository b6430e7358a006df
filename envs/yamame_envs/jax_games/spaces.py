"""Spaces of games written in JAX, and the entries of their observations.

Entries are those of `yamame_envs.adapters.spaces`: the same as of a Gymnasium environment with
such spaces. What a game returns decides its shapes; a declared space adds the number of choices.
Pixels and choices out of their range are faults, but real numbers out of bounds are not.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from yamame.checks import ArgumentError, UsageError, require
from yamame.spaces import ActionEntry, ObservationEntry, Spaces
from yamame.system.messages import one_line, print_once

from yamame_envs.adapters.actions import read_actions
from yamame_envs.adapters.spaces import read_observation
from yamame_envs.jax_games.checks import is_real
from yamame_envs.jax_games.game import Game
from yamame_envs.jax_games.runtime import is_key, load_jax, load_numpy


def spaces_of(game: Game, observation: Any, owner: str) -> Spaces:
    """Describe the observations and actions of a game.

    Args:
        game: The game.
        observation: Observation of one env, or the shapes and dtypes of its arrays.
        owner: Name of the environment in messages.

    Raises:
        ArgumentError: There is no conversion to tensors.
    """
    declared = game.observation_space
    if declared is not None:
        declared = _gymnasium(declared, owner, "observation_space")
    space = _space_of(observation, declared, owner, "observation", game.pixels_as_bytes)
    entries = read_observation(space, owner=owner, generic=True, outside="warn", tokens=game.tokens)
    action_space = _gymnasium(game.action_space, owner, "action_space")
    if isinstance(action_space, spaces.Box):
        is_bounded = action_space.is_bounded()
        condition = "have finite bounds"
        remedy = "give it a finite low and high, and scale actions within step"
        require(owner, "action_space", action_space, is_bounded, condition, remedy=remedy)
    action = read_actions(action_space, owner=owner)
    is_simple = action.tree == 0
    require(owner, "action_space", game.action_space, is_simple, "be one space, no Dict or Tuple")
    part = action.parts[0]
    fits = part.is_box or bool(np.all(np.abs(part.low) < 2**31))
    require(owner, "action_space", game.action_space, fits, "have choices of 32 bits")
    return Spaces(entries, action)


def _gymnasium(space: Any, owner: str, name: str) -> Any:
    """Return the Gymnasium space of a space of Gymnax, or of any object like one."""
    try:
        return _converted(space, owner, name)
    except UsageError:
        raise
    except (TypeError, ValueError, AssertionError) as error:
        # Gymnasium refuses spaces without values, such as those of 0 choices.
        condition = "describe values of one shape"
        raise ArgumentError(owner, name, space, condition, remedy=one_line(error)) from error


def _converted(space: Any, owner: str, name: str) -> Any:
    if isinstance(space, spaces.Space):
        return space
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return spaces.Dict({key: _gymnasium(part, owner, name) for key, part in parts.items()})
    if isinstance(parts, list | tuple):
        return spaces.Tuple([_gymnasium(part, owner, name) for part in parts])
    if hasattr(space, "nvec"):
        return spaces.MultiDiscrete(np.asarray(space.nvec))
    if hasattr(space, "n"):
        return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    has_bounds = hasattr(space, "low") and hasattr(space, "high")
    condition = "be a space of Gymnax or Gymnasium, or have n, nvec, or low and high"
    require(owner, name, space, has_bounds, condition)
    return _box(space)


def _box(space: Any) -> spaces.Box:
    dtype = np.dtype(getattr(space, "dtype", np.float32))
    low = np.asarray(space.low)
    shape = tuple(getattr(space, "shape", low.shape))
    if dtype.kind == "b":
        return spaces.Box(0, 1, shape, np.int8)  # as choices of an action
    limits = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    # Whole numbers have no infinity, with which some games mean no bound.
    low = np.clip(np.broadcast_to(low, shape).astype(np.float64), limits.min, limits.max)
    high = np.broadcast_to(np.asarray(space.high), shape).astype(np.float64)
    high = np.clip(high, limits.min, limits.max)
    if dtype.kind == "f":
        # Bounds at the end of a dtype are none.
        low = np.where(low <= limits.min, -np.inf, low)
        high = np.where(high >= limits.max, np.inf, high)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the precision of bounds
        return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype)


def _space_of(value: Any, declared: Any, owner: str, place: str, as_bytes: bool) -> Any:
    """Return the space of an observation, or of a part of it.

    Args:
        value: Array, or a dictionary, tuple or dataclass of such.
        declared: Gymnasium space that the game declares; None if it declares none.
        owner: Name of the environment in messages.
        place: Name of the part in messages.
        as_bytes: See `Game.pixels_as_bytes`.
    """
    parts = parts_of(value)
    if parts is not None:
        known = getattr(declared, "spaces", {})
        if isinstance(known, tuple | list):
            known = dict(enumerate(known))
        missing = sorted(str(key) for key in parts if key not in known)
        if declared is not None and missing:
            print_once(f"{owner}: {place} has parts that are not in its space: {missing}")
        inner = {}
        for key, part in parts.items():
            found = known.get(key)
            inner[key] = _space_of(part, found, owner, f"{place}.{key}", as_bytes)
        is_sequence = isinstance(value, tuple | list) and not hasattr(value, "_fields")
        return spaces.Tuple(list(inner.values())) if is_sequence else spaces.Dict(inner)

    if not hasattr(value, "dtype") or is_key(value) or not is_real(value.dtype):
        condition = "be made of arrays of real numbers"
        got = str(getattr(value, "dtype", type(value).__name__))
        raise ArgumentError(owner, place, got, condition)
    dtype = np.dtype(value.dtype)
    shape = tuple(value.shape)
    has_fractions = dtype.kind not in "biu"
    if as_bytes and has_fractions and len(shape) == 3 and shape[-1] == 3:
        return spaces.Box(0, 255, shape, np.uint8)
    if dtype.kind == "b":
        return spaces.MultiBinary(shape or 1)
    if declared is not None:
        if _fits(declared, shape, has_fractions):
            return declared
        print_once(
            f"{owner}: {place} is {dtype}{list(shape)}, which is not in its space {declared}: the "
            "space is not used"
        )
    if dtype == np.uint8:
        return spaces.Box(0, 255, shape, np.uint8)
    if has_fractions:
        return spaces.Box(-np.inf, np.inf, shape, np.float32)
    limits = np.iinfo(np.int64)
    return spaces.Box(limits.min, limits.max, shape, np.int64)


def parts_of(value: Any) -> dict[Any, Any] | None:
    """Return the parts of an observation by their keys; None if it is an array."""
    if isinstance(value, Mapping):
        return dict(value)
    names = getattr(value, "_fields", None) or getattr(value, "__dataclass_fields__", None)
    if names:
        return {name: getattr(value, name) for name in names}
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    return None


def _fits(space: Any, shape: tuple[int, ...], is_real: bool) -> bool:
    """Return whether arrays of a shape can be values of a declared space."""
    if isinstance(space, spaces.Box):
        # Real numbers would be cut off.
        return tuple(space.shape) == shape and not (is_real and space.dtype.kind in "iu")
    is_choice = isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    return is_choice and tuple(space.shape) == shape and not is_real


def stored(entry: ObservationEntry, observation: Any) -> tuple[Any, Any]:
    """Convert a part of an observation to the array of its entry, within a traced function.

    Returns:
        The array ``[*stored_shape]``, and whether it holds a number that the space does not, as a
        scalar. Real numbers must be finite, pixels in range, and choices must exist.
    """
    jnp = load_numpy()
    value = observation
    for key in entry.path:
        value = (parts_of(value) or {})[key]
    value = jnp.asarray(value)
    if entry.kind == "byte":
        if jnp.issubdtype(value.dtype, jnp.floating):
            value = jnp.round(value * 255)
        in_range = (value >= 0) & (value <= 255)  # NaN is not
        return value.astype(jnp.uint8).reshape(entry.stored_shape), ~in_range.all()
    if entry.kind == "bit":
        return value.astype(bool).reshape(entry.stored_shape), jnp.zeros((), bool)
    if entry.kind == "number":
        number = value.astype(jnp.float32).reshape(entry.stored_shape)
        return number, ~jnp.isfinite(number).all()

    sizes = np.array(entry.sizes)
    low = np.array(entry.low or 0)
    if entry.kind == "token":
        choice = value.astype(jnp.int32).reshape(entry.stored_shape)
        return choice, ((choice < 0) | (choice >= sizes[0])).any()
    choices = value.astype(jnp.int32).reshape(len(sizes)) - low
    one_hots = []
    for index, size in enumerate(entry.sizes):
        one_hots.append(load_jax().nn.one_hot(choices[index], size))
    return jnp.concatenate(one_hots), ((choices < 0) | (choices >= sizes)).any()


def taken(action: ActionEntry, batch: Any) -> Any:
    """Convert one row of a batch of actions to an action of the game, in a traced function."""
    jnp = load_numpy()
    part = action.parts[0]
    low = 0 if part.is_box else part.low.astype(np.int32)
    dtype = load_jax().dtypes.canonicalize_dtype(part.dtype) if part.is_box else jnp.int32
    return (jnp.asarray(batch) + low).reshape(part.shape).astype(dtype)
