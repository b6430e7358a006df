"""What is observed: Gymnasium spaces, and their values as stacked arrays.

==================================  ====================================================
space                               array of R envs
==================================  ====================================================
``Box``, real numbers               float32 ``[R, *shape]``
``Box``, uint8                      uint8 ``[R, *shape]``
``Box``, other whole numbers        tokens: int64 ``[R, *shape]`` in 0..high, where all
                                    bounds are 0 and one ``high``; else float32
``Discrete``                        one-hot float32 ``[R, n]``
``MultiDiscrete``                   concatenated one-hots float32 ``[R, sum(nvec)]``
``MultiBinary``                     bool ``[R, *shape]``
``Dict``, ``Tuple``                 one array per entry; those of a tuple are "0", "1", ...
==================================  ====================================================

A ``Box`` without dimensions has one of size 1. Only NumPy and Gymnasium are needed here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Array = npt.NDArray[Any]
_SLACK = np.float32(1e-5)
Kind = Literal["number", "byte", "token", "one_hot", "bit"]

_STORED: dict[Kind, Any] = {"number": np.float32, "byte": np.uint8, "token": np.int64, "bit": np.bool_}


@dataclass(frozen=True)
class Leaf:
    """One array of an observation.

    Attributes:
        name: Names of the entry, from the root.
        path: Where its value is found in what the environment returns.
        kind: What is made of it.
        shape: Shape of the environment's value.
        sizes: Number of values of each one-hot or token; empty for other kinds.
        low: Smallest value of each one-hot, ``[len(sizes)]``.
        bounds: Least and largest value of a number or byte, ``[*shape]`` each; None where any is allowed.
        form: Shape of one env of the array.
    """

    name: tuple[str, ...]
    path: tuple[str | int, ...]
    kind: Kind
    shape: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    low: tuple[int, ...] = ()
    bounds: tuple[Array, Array] | None = field(default=None, compare=False)
    form: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        form = (sum(self.sizes),) if self.kind == "one_hot" else self.shape or (1,)
        object.__setattr__(self, "form", form)

    @property
    def raw(self) -> Any:
        """The dtype in which values of the environment are gathered."""
        return np.dtype(_STORED.get(self.kind, np.int64))

    def accepted(self, value: Any) -> Array:
        """One value of the environment as an array of the right shape and dtype.

        Raises:
            ValueError: If it is no value of this entry.
        """
        array, raw = np.asarray(value), self.raw
        if array.shape != self.shape:
            raise ValueError(f"{self} must have shape {self.shape}, got {array.shape}")
        if array.dtype == raw:
            return array
        if array.dtype.kind not in ("biuf" if self.kind == "number" else "biu"):
            raise ValueError(f"{self} must be {raw}, got {array.dtype}")
        if self.kind in ("byte", "bit"):
            highest = 255 if self.kind == "byte" else 1
            if array.size and (array.min() < 0 or array.max() > highest):
                raise ValueError(f"{self} must be in 0..{highest}, got {array.min()}..{array.max()}")
        with np.errstate(over="ignore"):
            return array.astype(raw)

    def finish(self, raw: Array) -> tuple[Array, dict[int, str]]:
        """Turns gathered values ``[R, *shape]`` into the array, and says which are wrong, and why."""
        if self.kind == "number":
            bad = {} if np.isfinite(raw).all() else self._wrong(raw, ~np.isfinite(raw), "be finite")
            return raw.reshape(-1, *self.form), self._outside(raw) | bad
        if self.kind == "token":
            wrong = (raw < 0) | (raw >= self.sizes[0])
            bad = self._wrong(raw, wrong, f"be in 0..{self.sizes[0] - 1}") if wrong.any() else {}
            return raw.reshape(-1, *self.form), bad
        if self.kind != "one_hot":
            return raw.reshape(-1, *self.form), self._outside(raw)
        sizes = np.array(self.sizes)
        index = raw.reshape(-1, len(sizes)) - np.array(self.low)
        wrong = (index < 0) | (index >= sizes)
        bad = self._wrong(raw, wrong, "be one of the space's values") if wrong.any() else {}
        hot = np.zeros((len(index), self.form[0]), np.float32)
        np.put_along_axis(hot, index.clip(0, sizes - 1) + (sizes.cumsum() - sizes), 1.0, 1)
        return hot, bad

    def _outside(self, raw: Array) -> dict[int, str]:
        if self.bounds is None:
            return {}
        low, high = self.bounds
        if (raw >= low).all() and (raw <= high).all():
            return {}
        # A little more is allowed, for environments compute with rounded numbers; not to bytes.
        slack = _SLACK if self.kind == "number" else 0
        wrong = (raw < low - slack * np.maximum(1, abs(low))) | (
            raw > high + slack * np.maximum(1, abs(high))
        )
        return self._wrong(raw, wrong, f"be in {_range(low)}..{_range(high)}, the bounds of its space")

    def _wrong(self, raw: Array, wrong: Array, condition: str) -> dict[int, str]:
        wrong_ones = np.flatnonzero(wrong.reshape(len(wrong), -1).any(1)).tolist()
        text = [np.array2string(raw[i], threshold=8, edgeitems=3).replace("\n", "") for i in wrong_ones]
        return {i: f"{self} must {condition}, got {value}" for i, value in zip(wrong_ones, text, strict=True)}

    def __str__(self) -> str:
        return ".".join(self.name)


def read_observation(space: spaces.Space[Any], *, owner: str, generic: bool) -> tuple[Leaf, ...]:
    """The arrays that values of an observation space are turned into.

    Args:
        space: The space.
        owner: Whose space it is, for messages.
        generic: Whether the space was made without this package in mind: then everything stands below
            ``observation`` and whole numbers that are no bytes are plain numbers. Otherwise entries of a
            ``Dict`` stand at the root, and anything else is ``observation``.

    Raises:
        ValueError: If the space, or a part of it, has no array.
    """
    name = ("observation",) if generic or not isinstance(space, spaces.Dict) else ()
    leaves = tuple(_leaves(space, name, (), owner, tokens=not generic))
    if not leaves:
        raise ValueError(f"{owner}: observation_space must hold something, got {space}")
    return leaves


def _leaves(
    space: spaces.Space[Any], name: tuple[str, ...], path: tuple[str | int, ...], owner: str, *, tokens: bool
) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            if not isinstance(key, str):
                raise ValueError(f"{owner}: keys of a Dict space must be strings, got {key!r}")
            yield from _leaves(part, (*name, key), (*path, key), owner, tokens=tokens)
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _leaves(part, (*name, str(index)), (*path, index), owner, tokens=tokens)
    elif isinstance(space, spaces.Discrete):
        yield Leaf(name, path, "one_hot", (), (int(space.n),), (int(space.start),))
    elif isinstance(space, spaces.MultiDiscrete):
        sizes, low = space.nvec.flatten().tolist(), space.start.flatten().tolist()
        yield Leaf(name, path, "one_hot", space.nvec.shape, tuple(sizes), tuple(low))
    elif isinstance(space, spaces.MultiBinary):
        yield Leaf(name, path, "bit", tuple(space.shape))
    elif isinstance(space, spaces.Box):
        yield _box(space, name, path, tokens=tokens)
    else:
        raise ValueError(
            f"{owner}: observation_space must be made of Box, Discrete, MultiDiscrete, MultiBinary, Dict and "
            f"Tuple, got {type(space).__name__} at {'.'.join(name) or 'the root'}; turn it into numbers with "
            "a gymnasium.ObservationWrapper"
        )


def _box(space: spaces.Box, name: tuple[str, ...], path: tuple[str | int, ...], *, tokens: bool) -> Leaf:
    shape, kind = tuple(space.shape), np.dtype(space.dtype).kind
    if space.dtype == np.uint8:
        full = bool((space.low == 0).all() and (space.high == 255).all())
        return Leaf(name, path, "byte", shape, bounds=None if full else (space.low, space.high))
    if kind == "b":
        return Leaf(name, path, "bit", shape)
    if tokens and kind in "iu" and space.low.size and space.bounded_above.all():
        high = int(space.high.flat[0])
        if not space.low.any() and (space.high == high).all():
            return Leaf(name, path, "token", shape, (high + 1,))
    if space.low.size and np.isinf([space.low.max(), space.high.min()]).all():  # the tightest ones
        return Leaf(name, path, "number", shape)
    bounds = (space.low.astype(np.float32), space.high.astype(np.float32))
    return Leaf(name, path, "number", shape, bounds=bounds)


def _range(bound: Array) -> str:
    """A bound for a message: one number, if it is the same everywhere."""
    return (
        f"{bound.min():g}" if bound.min() == bound.max() else np.array2string(bound, threshold=8, edgeitems=3)
    )
