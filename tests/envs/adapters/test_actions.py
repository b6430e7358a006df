import numpy as np
import pytest
import torch
from faulty_envs import Echo
from gymnasium import spaces, wrappers
from torchrl.data import Binary, Bounded, Categorical, MultiCategorical
from yamame.actions import action_space_from_spec
from yamame_envs import HostedEnv
from yamame_envs.adapters.actions import read_actions

BOX = spaces.Box(np.array([[-2.0], [0.0]], np.float32), np.array([[1.0], [9.0]], np.float32))
WIDE = spaces.Box(-0.1, 0.1, (3,), np.float64)
SPACES = {
    "discrete": (spaces.Discrete(3), Categorical),
    "start": (spaces.Discrete(3, start=-4), Categorical),
    "multi_discrete": (spaces.MultiDiscrete([2, 3, 4]), MultiCategorical),
    "table": (
        spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [-1, 7]])),
        MultiCategorical,
    ),
    "multi_binary": (spaces.MultiBinary(4), Binary),
    "bit_table": (spaces.MultiBinary((2, 2)), Binary),
    "box": (BOX, Bounded),
    "wide": (WIDE, Bounded),
    "whole": (spaces.Box(-3, 3, (2,), np.int16), MultiCategorical),
    "dict": (
        spaces.Dict({"b": spaces.Discrete(2, start=1), "a": spaces.MultiDiscrete([3, 4])}),
        MultiCategorical,
    ),
    "bits": (spaces.Dict({"b": spaces.Discrete(2), "a": spaces.MultiBinary(2)}), MultiCategorical),
    "nested": (
        spaces.Tuple([spaces.Discrete(2), spaces.Dict({"z": spaces.Discrete(3)})]),
        MultiCategorical,
    ),
    "boxes": (spaces.Dict({"z": BOX, "a": spaces.Tuple([WIDE])}), Bounded),
    "single": (spaces.Tuple([spaces.Discrete(3)]), MultiCategorical),
}


def naive(space, numbers):
    """The value of a space whose leaves take the next of the numbers; [-1, 1] stands for the bounds
    of a Box.
    """
    if isinstance(space, spaces.Dict):
        return {key: naive(part, numbers) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(naive(part, numbers) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return numbers.pop(0) + space.start
    shape = space.nvec.shape if isinstance(space, spaces.MultiDiscrete) else space.shape
    flat = np.array([numbers.pop(0) for _ in range(int(np.prod(shape)))]).reshape(shape)
    if isinstance(space, spaces.MultiDiscrete):
        return flat + space.start
    if isinstance(space, spaces.Box) and space.dtype.kind == "i":
        return flat + space.low
    return flat


def _close(a, b):
    if isinstance(b, dict):
        return set(a) == set(b) and all(_close(a[key], b[key]) for key in b)
    if isinstance(b, tuple):
        return len(a) == len(b) and all(map(_close, a, b))
    return np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=0, atol=1e-7)  # float32 to float64


def _hosted(space, num_envs):
    made = []

    def make():
        made.append(Echo(spaces.Discrete(2), space))
        return made[-1]

    return HostedEnv(make, num_envs=num_envs), made


@pytest.mark.parametrize("name", SPACES)
def test_the_environment_gets_exactly_the_value_that_a_row_of_the_batch_means(name):
    space, spec_kind = SPACES[name]
    env, made = _hosted(space, 5)
    assert isinstance(env.action_spec, spec_kind)
    torch.manual_seed(0)
    actions = [env.action_spec.rand() for _ in range(20)]
    td = env.reset()
    for action in actions:
        _, td = env.step_and_maybe_reset(td.set("action", action.clone()))
    for row, single in enumerate(made[1:]):  # the first one was made to read the spaces
        assert len(single.done) == 20
        for action, got in zip(actions, single.done, strict=True):
            assert space.contains(got), (got, action[row])
            assert _close(got, naive(space, np.atleast_1d(action[row].numpy()).tolist()))


def form(value):
    """Types, dtypes and shapes of a value."""
    if isinstance(value, dict):
        return {key: form(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(form, value))
    return type(value), value.dtype, value.shape


FORMS = {name: space for name, (space, _) in SPACES.items()} | {
    "int32": spaces.Discrete(3, start=1, dtype=np.int32),
    "uint8": spaces.MultiDiscrete([3, 4], dtype=np.uint8),
    "number": spaces.Box(-1.0, 1.0, (), np.float64),
    "whole number": spaces.Box(-3, 3, (), np.int64),
    "bytes": spaces.Box(0, 9, (2, 2), np.uint8),
    "awkward": spaces.Dict({1: spaces.Discrete(2), "a/b": spaces.Tuple([spaces.Discrete(3)])}),
    "with nothing": spaces.Tuple([spaces.Box(-1, 1, (0,)), spaces.Discrete(3)]),
    "box with nothing": spaces.Dict({"arm": WIDE, "gripper": spaces.Box(-1, 1, (2, 0))}),
}


@pytest.mark.parametrize("space", FORMS.values(), ids=FORMS)
def test_the_environment_gets_actions_in_the_form_in_which_its_space_samples_them(space):
    env, made = _hosted(space, 2)
    env.step(env.reset().set("action", env.action_spec.rand()))
    for single in made[1:]:
        assert form(single.done[0]) == form(space.sample())


@pytest.mark.parametrize("name", SPACES)
def test_the_previous_action_is_shown_as_the_agent_encodes_it(name):
    env, _ = _hosted(SPACES[name][0], 5)
    torch.manual_seed(1)
    action = env.action_spec.rand()
    played = env.step(env.reset().set("action", action))
    encoded = action_space_from_spec(env.action_spec, batch_dims=1).encode(action)
    assert encoded.shape == env.observation_spec["prev_action"].shape
    torch.testing.assert_close(played["next", "prev_action"], encoded, rtol=0, atol=0)
    assert not played["prev_action"].any()


@pytest.mark.parametrize("name", ["box", "wide", "boxes"])
def test_the_bounds_of_a_box_are_within_those_of_the_environment(name):
    env, made = _hosted(SPACES[name][0], 2)
    low, high = env.action_spec.space.low, env.action_spec.space.high
    td = env.reset()
    for bound in (low, high):
        _, td = env.step_and_maybe_reset(td.set("action", bound.clone()))
        assert SPACES[name][0].contains(made[1].done[-1])


def test_an_environment_may_keep_and_change_its_action():
    env, made = _hosted(BOX, 2)
    action = env.action_spec.rand()
    before = action.clone()
    env.step(env.reset().set("action", action))
    made[1].done[0][:] = 7.0
    assert torch.equal(action, before)
    assert not (made[2].done[0] == 7.0).any()


@pytest.mark.parametrize(
    ("space", "smaller", "func"),
    [
        (spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-1.0, 1.0, (2,)), lambda action: action),
        (spaces.Box(0.0, np.inf, (2,)), spaces.Box(0.0, 3.0, (2,)), lambda action: action),
        (
            spaces.Box(np.array([0.0, 3.0]), np.array([1.0, 3.0]), dtype=np.float64),
            spaces.Box(0.0, 1.0, (1,), np.float64),
            lambda action: np.append(action, 3.0),
        ),
    ],
)
def test_the_advice_for_bounds_that_are_infinite_or_equal_works(space, smaller, func):
    with pytest.raises(ValueError, match="action_space must") as caught:
        read_actions(space, owner="Car")
    names = [name for name in dir(wrappers) if f"gymnasium.wrappers.{name}(" in str(caught.value)]
    assert names, caught.value
    made = []

    def make():
        made.append(Echo(spaces.Discrete(2), space))
        return getattr(wrappers, names[0])(made[-1], func, smaller)

    env = HostedEnv(make, num_envs=1)
    action = torch.from_numpy(smaller.sample().reshape(1, -1)).float()
    env.step(env.reset().set("action", action))
    assert space.contains(made[-1].done[-1])
    assert _close(made[-1].done[-1], func(action[0].numpy()))


def test_a_whole_number_with_a_single_value_is_a_choice_of_one():
    space = spaces.Box(np.array([2, 0]), np.array([2, 3]), dtype=np.int64)
    entry = read_actions(space, owner="Car")
    assert entry.sizes == [1, 4]
    values = [np.array([2, 0]), np.array([2, 3])]
    assert [
        value.tolist() for value in entry.values(entry.read(np.stack(values), label="action"))
    ] == [value.tolist() for value in values]
    with pytest.raises(ValueError, match="got 3"):
        entry.read(np.array([[3, 0]]), label="action")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            spaces.Box(-np.inf, 1.0, (2,)),
            r"^Car: action_space must have finite bounds.*got Box\(-inf",
        ),
        (spaces.Box(-3.0e38, 3.0e38, (2,)), r"must have finite bounds"),
        (spaces.Box(1.0, 1.0, (2,)), r"lower bounds below the upper ones, got Box\(1.0"),
        (
            spaces.Box(0, 100_000, (2,), np.int64),
            r"at most 65536 values of each whole number, got Box\(0",
        ),
        (spaces.Box(0, np.inf, (2,), np.int64), r"must have finite bounds"),
        (spaces.Text(3), r"must be made of Discrete, .*got Text"),
        (
            spaces.Tuple([spaces.Discrete(2), WIDE]),
            r"only Box spaces of real numbers or none, got Tuple",
        ),
        (spaces.Dict({}), r"only Box spaces of real numbers or none, got Dict"),
    ],
)
def test_spaces_without_a_batch_are_refused_by_name(space, message):
    with pytest.raises(ValueError, match=message):
        read_actions(space, owner="Car")
