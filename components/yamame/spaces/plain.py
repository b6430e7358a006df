"""Conversion of descriptions of spaces to plain data that JSON can hold, and back."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, get_args

import numpy as np

from yamame.spaces.arrays import Array, Key, Outside


def encode_key(key: Key) -> Any:
    """Convert a key for JSON, which has no tuples.

    >>> encode_key(("left", 1))
    {'tuple': ['left', 1]}
    """
    return {"tuple": [encode_key(part) for part in key]} if isinstance(key, tuple) else key


def decode_key(data: Any) -> Key:
    """Return the key that `encode_key` converted.

    Raises:
        ValueError: The data are damaged.
    """
    if isinstance(data, dict):
        return tuple(decode_key(part) for part in data["tuple"])
    if data is not None and not isinstance(data, str | int | float):
        raise ValueError(f"a key must be a text, a number or a tuple, got {data!r}")
    return data


def encode_tree(tree: Any) -> Any:
    """Convert a tree for JSON: a dict becomes pairs, because its keys may be numbers."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, tuple):
        return {"tuple": [encode_tree(inner) for inner in tree]}
    pairs = []
    for name, inner in tree.items():
        pairs.append([encode_key(name), encode_tree(inner)])
    return {"dict": pairs}


def decode_tree(data: Any) -> Any:
    """Return the tree that `encode_tree` converted."""
    if not isinstance(data, Mapping):
        return int(data)
    if "tuple" in data:
        return tuple(decode_tree(inner) for inner in data["tuple"])
    tree = {}
    for name, inner in data["dict"]:
        tree[decode_key(name)] = decode_tree(inner)
    return tree


def decode_outside(data: Mapping[str, Any]) -> Outside:
    """Return the handling of numbers out of bounds; that of earlier versions is ``raise``.

    Raises:
        ValueError: The data are damaged.
    """
    outside: Outside = data.get("outside", "raise")
    if outside not in get_args(Outside):
        raise ValueError(f"outside must be one of {get_args(Outside)}, got {outside!r}")
    return outside


def integers(data: Iterable[Any]) -> tuple[int, ...]:
    """Return whole numbers as a tuple."""
    return tuple(int(number) for number in data)


def encode_bound(bound: Array) -> Any:
    """Convert a bound to one number, if it is the same everywhere, or else to a flat list."""
    numbers: list[Any] = bound.reshape(-1).tolist()
    if len(set(numbers)) == 1:
        numbers = numbers[:1]
    for index, number in enumerate(numbers):
        # JSON has no infinities.
        if not math.isfinite(number):
            numbers[index] = str(number)
    return numbers[0] if len(numbers) == 1 else numbers


def decode_bound(data: Any, shape: tuple[int, ...], dtype: str) -> Array:
    """Return the bound ``[*shape]`` that `encode_bound` converted."""
    listed = data if isinstance(data, list) else [data]
    numbers = np.array([float(number) for number in listed], dtype)
    flat = np.broadcast_to(numbers, math.prod(shape))
    return flat.reshape(shape)
