"""Rewards, flags and infos that environments return, read without guessing.

A value that has no clear meaning raises a `SpaceError` that names it: to Python, ``"no"`` and NaN
are true.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from yamame.spaces.arrays import SpaceError

SUCCESS_KEYS = ("success", "is_success")
"""Keys that environments use for success in the info of a step."""
_MAX_REWARD = float(np.finfo(np.float32).max)


def read_reward(value: Any) -> float:
    """Return a reward: a number, or an array, tensor or list of one number.

    Raises:
        SpaceError: It is nothing of the kind, or not finite as a float32.

    >>> read_reward(np.array([0.5])), read_reward(True)
    (0.5, 1.0)
    """
    number = value if isinstance(value, float) else _single(value)
    # Texts of numbers have no such method; masked arrays and those of several numbers have it.
    if not hasattr(number, "__float__") or isinstance(number, np.ndarray):
        raise SpaceError("reward", "be one real number", _brief(value))
    try:
        reward = float(number)
    except OverflowError:
        reward = math.inf
    except (TypeError, ValueError, RuntimeError) as error:
        # As tensors of several numbers.
        raise SpaceError("reward", "be one real number", _brief(value)) from error
    # NaN does not compare, so it counts as not finite.
    if not abs(reward) <= _MAX_REWARD:
        condition = "be at most 3.4e38, as float32" if math.isfinite(reward) else "be finite"
        raise SpaceError("reward", condition, reward)
    return reward


def read_flag(value: Any, name: str, *, remedy: str | None = None) -> bool:
    """Return a flag: true or false, 1 or 0, or an array, tensor or list of one of these.

    Args:
        value: Flag.
        name: Name of the flag in messages.
        remedy: Advice for messages.

    Raises:
        SpaceError: It is nothing of the kind.

    >>> read_flag(np.array([0]), "terminated"), read_flag(np.True_, "terminated")
    (False, True)
    """
    if value is True or value is False:
        return value
    flag = _single(value)
    # Of other numbers and of texts, Python would call most true.
    if isinstance(flag, int | float) and flag in (0, 1):
        return bool(flag)
    error = SpaceError(name, "be true or false", _brief(value))
    error.remedy = remedy
    raise error


def read_info(value: Any) -> Mapping[str, Any]:
    """Return the info of a step, with the entries of its ``final_info``; None stands for none.

    Raises:
        SpaceError: It is no mapping.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SpaceError("info", "be a dictionary", _brief(value))
    final = value.get("final_info")
    # Environments that reset by themselves put the info of the last step there.
    return {**final, **value} if isinstance(final, Mapping) else value


def success_key_of(info: Any) -> str | None:
    """Return the first of `SUCCESS_KEYS` in an info; None if there is none."""
    if not isinstance(info, Mapping):
        return None
    entries = read_info(info)
    for key in SUCCESS_KEYS:
        if key in entries:
            return key
    return None


def split_reset(result: Any) -> tuple[Any, Any]:
    """Return the observation and the info that ``reset`` returned.

    Raises:
        SpaceError: It is no pair, as in older versions of Gym.
    """
    # An observation of two numbers would unpack as well.
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise SpaceError("the result of reset()", "be (observation, info)", _brief(result))
    return result[0], result[1]


def split_step(result: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return observation, reward, terminated, truncated and info that ``step`` returned.

    Raises:
        SpaceError: These are not five, as in older versions of Gym.
    """
    if not isinstance(result, tuple | list) or len(result) != 5:
        condition = "be (observation, reward, terminated, truncated, info)"
        kind = type(result).__name__
        got = f"{kind} of {len(result)}" if isinstance(result, tuple | list) else _brief(result)
        raise SpaceError("the result of step()", condition, got)
    observation, reward, terminated, truncated, info = result
    return observation, reward, terminated, truncated, info


def _single(value: Any) -> Any:
    """Return the element of an array, tensor or list of one; any other value as it is."""
    if isinstance(value, list | tuple):
        return _single(value[0]) if len(value) == 1 else value
    # Arrays of NumPy, torch and JAX, and NumPy scalars.
    is_array = hasattr(value, "item") and hasattr(value, "shape")
    if is_array and math.prod(value.shape) == 1 and not np.ma.is_masked(value):
        return value.item()
    return value


def _brief(value: Any) -> str:
    """Format a value for a message."""
    text = " ".join(repr(value).split())
    kind = type(value).__name__
    return f"{text} ({kind})" if len(text) <= 60 else kind
