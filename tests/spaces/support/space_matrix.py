"""Pairs of an observation and an action space: dtypes, ranks, starts, structures and keys."""

from itertools import product

import numpy as np
from gymnasium import spaces

DTYPES = (np.float32, np.float64, np.uint8, np.int64, np.int16)
SHAPES = {"number": (), "row": (3,), "table": (4, 5)}
KEYS = (
    *("shape", "shape_", "device", "dtype", "space", "batch_size", "names", "data_cls", "keys"),
    *("", "_", "a.b", "a b", "next", "done", "reward", "time", "mask", "goal", "self", "0"),
)
"""Keys of one Dict."""
UNWRITABLE = {
    "npz": ("dict_of_both",),
    "hdf5": ("dict_of_both", "dict_of_awkward_keys-"),
    "minari": ("dict_of", "dict_with_slash"),
}
"""Names of pairs that hold keys which a format cannot write, or cannot tell apart."""
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


def boxes(*, bounded):
    """A Box of every dtype and rank, with an uneven range."""
    made = {}
    for dtype, (rank, shape) in product(DTYPES, SHAPES.items()):
        low, high = (1, 6) if np.dtype(dtype).kind in "iu" else (-0.1, 0.7)
        made[f"box_{np.dtype(dtype)}_{rank}"] = spaces.Box(low, high, shape, dtype)
    if not bounded:
        half = np.array([-np.inf, 0.0], np.float32), np.array([1.0, np.inf], np.float32)
        made["box_half_bounded"] = spaces.Box(*half)
        made["box_unbounded"] = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        made["box_full_bytes"] = spaces.Box(0, 255, (6, 7, 3), np.uint8)
    return made


def choices():
    """Discrete spaces of all kinds, with starts."""
    table = np.array([[2, 3], [4, 5]])
    starts = np.array([[0, 1], [-1, 7]])
    return {
        "discrete": spaces.Discrete(5),
        "discrete_start": spaces.Discrete(4, start=3),
        "discrete_negative": spaces.Discrete(4, start=-2),
        "discrete_int32": spaces.Discrete(4, start=1, dtype=np.int32),
        "multi_discrete": spaces.MultiDiscrete([3, 4]),
        "multi_discrete_start": spaces.MultiDiscrete([3, 4], start=[2, -1]),
        "multi_discrete_table": spaces.MultiDiscrete(table, start=starts),
        "multi_discrete_int32": spaces.MultiDiscrete([3, 4], dtype=np.int32),
        "multi_binary": spaces.MultiBinary(3),
        "multi_binary_table": spaces.MultiBinary((2, 3)),
    }


def structures(parts):
    """Structures of three spaces and of one without numbers."""
    one, two, three = parts
    nothing = spaces.Box(-1.0, 1.0, (0,), np.float32)
    return {
        "tuple": spaces.Tuple([one, spaces.Tuple([two, three])]),
        "dict": spaces.Dict({"b": one, "a": spaces.Dict({"c": two, "d": three})}),
        "dict_of_tuple": spaces.Dict({"x": spaces.Tuple([one, two]), "y": three}),
        "tuple_of_dict": spaces.Tuple([spaces.Dict({"x": one, "shape": two}), three]),
        "dict_with_slash": spaces.Dict({"a/b": one, "c": spaces.Dict({"d/e": two})}),
        "dict_of_numbers": spaces.Dict({1: one, -2: two, 30: three}),
        "dict_of_tuples": spaces.Dict({("left", 1): one, ("right", 2): two}),
        "dict_of_both": spaces.Dict({1: one, "1": two, "1_": three}),
        "dict_with_nothing": spaces.Dict({"arm": one, "gripper": nothing}),
        "tuple_with_nothing": spaces.Tuple([nothing, one]),
        "nothing_deep": spaces.Dict({"a": spaces.Dict({"b": nothing}), "c": one}),
    }


def observations():
    """All observation spaces by name."""
    parts = (spaces.Discrete(4, start=2), spaces.MultiDiscrete([2, 3], start=[-1, 4]), BOX)
    made = boxes(bounded=False) | choices() | structures(parts)
    made["dict_of_awkward_keys"] = spaces.Dict(dict.fromkeys(KEYS, BOX))
    return made


def actions():
    """All action spaces by name: structures hold choices, or real numbers."""
    parts = (spaces.Discrete(4, start=2), spaces.MultiBinary(2), spaces.Discrete(3))
    made = boxes(bounded=True) | choices() | structures(parts)
    real = structures((BOX, spaces.Box(0.0, 5.0, (2, 2), np.float64), BOX))
    made |= {f"real_{name}": real[name] for name in ("tuple", "dict", "dict_with_nothing")}
    made["dict_of_awkward_keys"] = spaces.Dict({key: spaces.Discrete(2) for key in KEYS[:9]})
    return made


def pairs():
    """Each observation space with one action space, so that each of both occurs."""
    shown, done = list(observations().items()), list(actions().items())
    made = {}
    for number in range(max(len(shown), len(done))):
        # Shifted, so that equal names do not meet.
        observation = shown[number % len(shown)]
        action = done[(number + 7) % len(done)]
        made[f"{observation[0]}-{action[0]}"] = (observation[1], action[1])
    return made
