"""Checks of arrays that observations and actions share."""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Key = str | int | float | bool | None | tuple[Any, ...]
"""Key of a ``Dict`` space, or index in a ``Tuple`` space."""
Outside = Literal["raise", "clip", "warn"]
"""Handling of finite numbers outside of the bounds of their space."""
BOUNDS_REMEDY = "env.bounds=warn keeps such values, env.bounds=clip makes them the bounds"


class SpaceError(ValueError):
    """A value that is not in its space.

    Args:
        label: Name of the value, with the file that holds it.
        condition: Condition that the value does not meet, in words that follow "must".
        got: Text of the value.

    Attributes:
        remedy: Advice for the user; None without any.

    >>> print(SpaceError("action", "be in 0..3", 4))
    action must be in 0..3, got 4
    """

    def __init__(self, label: str, condition: str, got: Any) -> None:
        super().__init__(label, condition, got)
        self.label = label
        self.condition = condition
        self.got = got
        self.remedy: str | None = None

    def __str__(self) -> str:
        message = f"{self.label} must {self.condition}, got {self.got}"
        return message if self.remedy is None else f"{message}; {self.remedy}"


class BoundsError(SpaceError):
    """A finite number outside of the bounds of its space."""


def whole(array: Array) -> Array:
    """Convert floating point numbers to int64 if all of them are whole numbers.

    >>> whole(np.array([1.0, 3.0])), whole(np.array([1.5]))
    (array([1, 3]), array([1.5]))
    """
    # Above 2**53, doubles skip whole numbers. The comparison is False for NaN as well.
    if array.dtype.kind != "f" or not bool((np.abs(array) < 2.0**53).all()):
        return array
    rounded = array.astype(np.int64)
    return rounded if bool((rounded == array).all()) else array


def from_one_hots(array: Array, sizes: Array) -> Array:
    """Return the indices ``[R, k]`` of one-hots ``[R, sum(sizes)]`` of k choices.

    The index is -1 where the values of a choice are not one-hot.
    """
    indices = np.full((len(array), len(sizes)), -1, np.int64)
    start = 0
    for choice, size in enumerate(sizes):
        hot = array[:, start : start + size]
        is_binary = ((hot == 0) | (hot == 1)).all(1)
        is_one_hot = is_binary & (hot.sum(1) == 1)
        indices[is_one_hot, choice] = hot[is_one_hot].argmax(1)
        start += int(size)
    return indices


def is_tree(value: Any) -> bool:
    """Return whether a value is a mapping, a TensorDict or a tuple of further values."""
    return isinstance(value, tuple) or hasattr(value, "keys")


def child(tree: Any, name: Key) -> Any:
    """Return the value of a tree at a key or index; None if there is none.

    A mapping with numbers as keys may stand for a tuple. Files have texts as names, and nest them
    at slashes.
    """
    if isinstance(tree, tuple):
        # Names from files are text, also those of tuples.
        index = int(str(name)) if str(name).isdigit() else len(tree)
        return tree[index] if index < len(tree) else None
    if not is_tree(tree):
        return None
    keys = set(tree.keys())
    for key in (name, str(name)):
        if key in keys:
            return tree[key]
    first, slash, rest = str(name).partition("/")
    return child(child(tree, first), rest) if slash else None


def leaves(tree: Any) -> Iterator[Any]:
    """Iterate over the values of a tree that are not trees."""
    if isinstance(tree, tuple):
        for value in tree:
            yield from leaves(value)
    elif is_tree(tree):
        # Iteration over a TensorDict itself would yield its rows.
        for name in tree.keys():
            yield from leaves(tree[name])
    else:
        yield tree


def range_text(low: Array, high: Array) -> str:
    """Format a range for a message; a bound that is the same everywhere is one number.

    >>> range_text(np.array([0, 0]), np.array([3, 4]))
    '0..[3 4]'
    """
    return f"{_bound_text(low)}..{_bound_text(high)}"


def _bound_text(bound: Array) -> str:
    if bound.size == 0 or bool((bound != bound.flat[0]).any()):
        return text_of(bound)
    number = bound.flat[0]
    return f"{number:g}" if bound.dtype.kind == "f" else f"{number}"


def text_of(array: Array) -> str:
    """Format an array on one line."""
    return np.array2string(array, threshold=8, edgeitems=3).replace("\n", "")


def first_wrong(values: Array, wrong: Array) -> str:
    """Format the first number of ``values[wrong]``, with its row if there are several.

    Args:
        values: ``[R, ...]``.
        wrong: ``[R, ...]`` bool, which may have more dimensions than the values.
    """
    is_wrong_row = wrong.reshape(len(wrong), -1).any(1)
    row = int(np.flatnonzero(is_wrong_row)[0])
    value = np.broadcast_to(values[row], wrong[row].shape)[wrong[row]].flat[0]
    return f"{value}" if len(values) == 1 else f"{value} in row {row}"
