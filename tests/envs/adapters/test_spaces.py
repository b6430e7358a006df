import numpy as np
import pytest
import torch
from gymnasium import spaces
from yamame_envs.adapters.in_process import Outcome
from yamame_envs.adapters.reading import read_spaces
from yamame_envs.adapters.spaces import read_observation
from yamame_envs.adapters.specs import observation_specs

ROOM = spaces.Dict(
    {
        "pixels": spaces.Box(0, 255, (3, 4, 2), np.uint8),
        "goal": spaces.Box(-3.0, 9.0, (2, 1), np.float64),
        "achieved_mask": spaces.MultiBinary(2),
        "words": spaces.Box(0, 6, (5,), np.int32),
        "offsets": spaces.Box(-2, 6, (5,), np.int16),
        "uneven": spaces.Box(np.zeros(2, np.int8), np.array([3, 4], np.int8)),
        "counts": spaces.Box(0, np.inf, (2,), np.int64),
        "phase": spaces.Discrete(3, start=5),
        "inner": spaces.Dict(
            {"sizes": spaces.MultiDiscrete([2, 3], start=[1, -1]), "one": spaces.Box(0.0, 1.0, ())}
        ),
        "pair": spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary((2, 2))]),
        "table": spaces.MultiDiscrete(np.array([[2, 2], [3, 3]])),
    }
)
KINDS = {
    ("achieved_mask",): ("bit", (2,)),
    ("counts",): ("number", (2,)),
    ("goal",): ("number", (2, 1)),
    ("inner", "one"): ("number", (1,)),
    ("inner", "sizes"): ("one_hot", (5,)),
    ("offsets",): ("number", (5,)),
    ("pair", "0"): ("one_hot", (2,)),
    ("pair", "1"): ("bit", (2, 2)),
    ("phase",): ("one_hot", (3,)),
    ("pixels",): ("byte", (3, 4, 2)),
    ("table",): ("one_hot", (10,)),
    ("uneven",): ("number", (2,)),
    ("words",): ("token", (5,)),
}


def _one_hot(value, size):
    return [float(index == value) for index in range(size)]


def naive(space, value):
    """What a value turns into, written down entry by entry."""
    if isinstance(space, spaces.Discrete):
        return _one_hot(value - space.start, space.n)
    if isinstance(space, spaces.MultiDiscrete):
        found = []
        for size, low, part in zip(
            space.nvec.flat, space.start.flat, np.asarray(value).flat, strict=True
        ):
            found += _one_hot(part - low, size)
        return found
    return np.asarray(value).reshape(np.shape(value) or (1,)).tolist()


def _stacked(leaf, values):
    raw = np.stack([leaf.accepted(value) for value in values])
    return leaf.finish(raw)


def _at(nested, path):
    for key in path:
        nested = nested[key]
    return nested


def test_every_entry_of_a_dict_has_its_kind_and_form():
    leaves = read_observation(ROOM, owner="Room", generic=False)
    assert {leaf.name: (leaf.kind, leaf.stored_shape) for leaf in leaves} == KINDS


def test_values_are_converted_as_written_down_and_are_in_their_specs():
    ROOM.seed(0)
    values = [ROOM.sample() for _ in range(20)]
    leaves = read_observation(ROOM, owner="Room", generic=False)
    specs = observation_specs(leaves, "cpu")
    for leaf in leaves:
        parts = [_at(value, leaf.path) for value in values]
        array, bad, _ = _stacked(leaf, parts)
        assert bad == {}
        assert array.shape == (20, *leaf.stored_shape)
        space = _at(ROOM, leaf.path)
        assert np.allclose(
            array, [naive(space, part) for part in parts], rtol=1e-6
        )  # float64 to float32
        spec = specs[leaf.name[0]]
        for name in leaf.name[1:]:
            spec = spec[name]
        tensor = torch.from_numpy(array)
        assert spec.expand(20, *spec.shape).is_in(tensor), leaf
        assert tensor.dtype == spec.dtype


def test_a_generic_space_stands_below_observation_and_knows_no_tokens():
    leaves = read_observation(ROOM, owner="Room", generic=True)
    assert {leaf.name[0] for leaf in leaves} == {"observation"}
    kinds = {leaf.name[1:]: leaf.kind for leaf in leaves}
    assert kinds["words",] == "number"
    assert {name: kind for name, kind in kinds.items() if name != ("words",)} == {
        name: kind for name, (kind, _) in KINDS.items() if name != ("words",)
    }


def test_what_is_no_dict_is_the_observation():
    (leaf,) = read_observation(spaces.Discrete(3), owner="Room", generic=False)
    assert (leaf.name, leaf.path, leaf.stored_shape) == (("observation",), (), (3,))
    first, second = read_observation(
        spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)]), owner="Room", generic=False
    )
    assert (first.name, second.name) == (("observation", "0"), ("observation", "1"))


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (spaces.Box(-1, 1, (2,)), [1.0, np.nan], r"a must be finite, got \[ 1. nan\]"),
        (spaces.Box(-1, 1, (2,)), [1.0, -np.inf], r"a must be finite"),
        (spaces.Box(-1, 1, (2,), np.float64), [1.0, 1e300], r"a must be finite"),
        (spaces.Discrete(3, start=1), 0, r"a must be in 1..3, got 0"),
        (spaces.Discrete(3, start=1), 4, r"a must be in 1..3, got 4"),
        (spaces.MultiDiscrete([2, 2]), [0, 2], r"a must be in 0..1, got \[0 2\]"),
        (spaces.Box(0, 6, (2,), np.int64), [6, 7], r"a must be in 0..6, got \[6 7\]"),
        (spaces.Box(0, 6, (2,), np.int64), [6, -1], r"a must be in 0..6, got \[ 6 -1\]"),
    ],
)
def test_a_row_with_a_wrong_value_is_named_with_the_reason_and_the_others_are_not(
    space, value, message
):
    (leaf,) = read_observation(spaces.Dict({"a": space}), owner="Room", generic=False)
    space.seed(0)
    array, bad, _ = _stacked(leaf, [space.sample(), np.array(value), space.sample()])
    assert list(bad) == [1]
    with pytest.raises(ValueError, match=message):
        raise ValueError(bad[1])
    assert array.shape == (3, *leaf.stored_shape)


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (spaces.Box(-1, 1, (2,)), np.zeros(1), r"a must have shape \(2,\), got \(1,\)"),
        (spaces.Box(-1, 1, (2,)), 0.0, r"a must have shape \(2,\), got \(\)"),
        (spaces.Box(-1, 1, (2,)), np.array(["a", "b"]), r"a must be float32, got <U1"),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([256]), r"a must be in 0..255, got 256..256"),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([1.0]), r"a must be uint8, got float64"),
        (spaces.MultiBinary(2), np.array([0, 2]), r"a must be in 0..1, got 0..2"),
        (spaces.Discrete(3), 1.0, r"a must be int64, got float64"),
    ],
)
def test_a_value_of_another_shape_or_dtype_is_refused(space, value, message):
    (leaf,) = read_observation(spaces.Dict({"a": space}), owner="Room", generic=False)
    with pytest.raises(ValueError, match=message):
        leaf.accepted(value)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            spaces.Text(3),
            r"^Room: observation_space at observation must be made of .* got Text",
        ),
        (
            spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}),
            r"observation_space at a must .* got Sequence",
        ),
        (
            spaces.Dict({"a": spaces.Tuple([spaces.Graph(spaces.Discrete(2), None)])}),
            r"observation_space at a.0 must .* got Graph",
        ),
        (spaces.Dict({}), r"^Room: observation_space must hold something, got Dict\(\)"),
        (spaces.Tuple([]), r"^Room: observation_space must hold something"),
        (
            spaces.Dict({b"a": spaces.Discrete(2)}),
            r"observation_space must have texts, numbers .* as keys .* got b'a'",
        ),
    ],
)
def test_spaces_without_tensors_are_refused_by_name(space, message):
    with pytest.raises(ValueError, match=message):
        read_observation(space, owner="Room", generic=False)


@pytest.mark.parametrize("name", ["reward", "time", "aborted", "trial_start"])
def test_entries_that_would_hide_others_are_refused(name):
    from faulty_envs import Echo

    space = spaces.Dict({"observation": spaces.Discrete(2), name: spaces.Discrete(2)})
    with pytest.raises(
        ValueError, match=rf"^Room: observation_space must not have .*, got \['{name}'\]"
    ):
        read_spaces(lambda: Echo(space), owner="Room", generic=False, success=None)
    layout = read_spaces(lambda: Echo(space), owner="Room", generic=True, success=None)
    assert len(layout.observations) == 2


def test_nothing_has_the_arrays_of_something():
    from faulty_envs import Echo

    layout = read_spaces(lambda: Echo(ROOM), owner="Room", generic=False, success=None)
    for leaf, array in zip(layout.observations, Outcome.zeros(layout, 2, {}).leaves, strict=True):
        value = leaf.accepted(_at(ROOM.sample(), leaf.path))
        real, _, _ = leaf.finish(value[None])
        assert (array.shape[1:], array.dtype) == (real.shape[1:], real.dtype)
