"""Checks of arrays that observations and actions share."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from yamame.checks import UsageError

Array = npt.NDArray[Any]


class SpaceError(UsageError):
    """Values that do not belong to their space. The message begins with the name of the values."""


def whole(array: Array) -> Array:
    """Floating point numbers as int64 if all of them are whole numbers; other arrays unchanged.

    >>> whole(np.array([1.0, 3.0])), whole(np.array([1.5]))
    (array([1, 3]), array([1.5]))
    """
    if array.dtype.kind != "f" or not bool((np.abs(array) < 2.0**53).all()):  # False for NaN, too
        return array
    rounded = array.astype(np.int64)
    return rounded if bool((rounded == array).all()) else array


def from_one_hots(array: Array, sizes: Array) -> Array:
    """Indices ``[R, k]`` of one-hots ``[R, sum(sizes)]`` of k choices; -1 where a row is no
    one-hot.
    """
    indices = np.full((len(array), len(sizes)), -1, np.int64)
    start = 0
    for choice, size in enumerate(sizes):
        hot = array[:, start : start + size]
        good = ((hot == 0) | (hot == 1)).all(1) & (hot.sum(1) == 1)
        indices[good, choice] = hot[good].argmax(1)
        start += int(size)
    return indices


def is_tree(value: Any) -> bool:
    """Return whether a value is a mapping (or a TensorDict) or a tuple of further values."""
    return isinstance(value, tuple) or hasattr(value, "keys")


def child(tree: Any, name: str | int) -> Any:
    """The value below a name or place, where a tuple may be written as a mapping of numbers; None
    if there is none.
    """
    if isinstance(tree, tuple):
        place = int(name) if str(name).isdigit() else len(tree)
        return tree[place] if place < len(tree) else None
    if not is_tree(tree):
        return None
    names = set(tree.keys())
    known = next((key for key in (name, str(name)) if key in names), None)
    return None if known is None else tree[known]


def leaves(tree: Any) -> Iterator[Any]:
    """All values of a tree that are no trees."""
    if isinstance(tree, tuple):
        for value in tree:
            yield from leaves(value)
    elif is_tree(tree):
        for name in tree.keys():  # a TensorDict itself iterates over its rows
            yield from leaves(tree[name])
    else:
        yield tree


def range_text(low: Array, high: Array) -> str:
    """A range for a message; bounds that are the same everywhere are one number.

    >>> range_text(np.array([0, 0]), np.array([3, 4]))
    '0..[3 4]'
    """
    ends = []
    for bound in (low, high):
        if bound.size == 0 or bool((bound != bound.flat[0]).any()):
            ends.append(text_of(bound))
        else:
            ends.append(f"{bound.flat[0]:g}" if bound.dtype.kind == "f" else f"{bound.flat[0]}")
    return "..".join(ends)


def text_of(array: Array) -> str:
    """An array in one line."""
    return np.array2string(array, threshold=8, edgeitems=3).replace("\n", "")


def first_wrong(values: Array, wrong: Array) -> str:
    """The first number ``values[wrong]`` of rows ``[R, ...]``, with the number of its row if there
    are several.
    """
    row = int(np.flatnonzero(wrong.reshape(len(wrong), -1).any(1))[0])
    value = np.broadcast_to(values[row], wrong[row].shape)[wrong[row]].flat[0]
    return f"{value}" if len(values) == 1 else f"{value} in row {row}"
