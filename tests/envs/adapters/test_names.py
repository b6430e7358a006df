"""Keys of Dict spaces: each has an entry of its own, whatever TensorDict does with its name."""

import enum
import json

import gymnasium
import numpy as np
import pytest
import tensordict
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrl.data import Composite
from yamame.data import TrajectoryFormat
from yamame.deploy import Interface
from yamame.keys import RESERVED
from yamame.replay import pack
from yamame.timestep import inputs_from_spec
from yamame_envs import HostedEnv
from yamame_envs.adapters.spaces import entry_names, read_observation

BOX = spaces.Box(-1.0, 1.0, (1,), np.float32)


class Keyed(gymnasium.Env):
    """Shows the number of each key."""

    action_space = spaces.Discrete(2)

    def __init__(self, keys, *, nested):
        self.keys, self.nested = list(keys), nested
        inner = spaces.Dict(dict.fromkeys(keys, BOX))
        self.observation_space = spaces.Dict({"sub": inner}) if nested else inner

    def shown(self):
        numbers = np.linspace(-1.0, 1.0, len(self.keys), dtype=np.float32)[:, None]
        shown = dict(zip(self.keys, numbers, strict=True))
        return {"sub": shown} if self.nested else shown

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.shown(), {}

    def step(self, action):
        return self.shown(), 0.0, False, False, {}


def check(keys, *, nested):
    """Plays, packs and describes an environment, and compares each entry with what it showed."""
    env = HostedEnv(lambda: Keyed(keys, nested=nested), num_envs=2, time_limit=3)
    packed = pack(env.rollout(3))
    shown = Keyed(keys, nested=nested).shown()
    assert len(env.spaces.observations) == len(keys)
    for entry in env.spaces.observations:
        value = shown
        for key in entry.path:
            value = value[key]
        assert (packed[entry.key] == torch.from_numpy(value)).all(), entry
    assert len(inputs_from_spec(env.observation_spec, batch_dims=1)) >= len(keys)
    TrajectoryFormat(env)
    interface = Interface.of(env)
    again = Interface.decode(json.loads(json.dumps(interface.encode())))
    assert again == interface
    paths = [entry.path for entry in again.recorded.observations]
    assert paths == [entry.path for entry in env.spaces.observations]

    # The state of an episode names its entries once more.
    other = HostedEnv(lambda: Keyed(keys, nested=nested), num_envs=2, time_limit=3)
    env.reset()
    other.load_state_dict(env.state_dict())
    assert (other.present() == env.present()).all()


@pytest.mark.parametrize("nested", [False, True])
def test_every_attribute_of_a_tensordict_or_its_spec_may_be_a_key(nested):
    names = {"", "_", "a.b", "a/b", "a~1b", "~", " ", "\n", "é", ".", "..", "/", "0", "None"}
    for cls in (tensordict.TensorDict, tensordict.LazyStackedTensorDict, Composite, torch.Tensor):
        names |= set(dir(cls))
    for obj in (tensordict.TensorDict({}, []), Composite()):
        names |= set(vars(obj))
    if not nested:
        # Names of the data format are refused at the root, where they would be hidden.
        names -= {*RESERVED, "trial_start", "goal", "achieved", "achieved_mask", "mask"}
    # In parts, because descriptions of agents hold at most 1000 entries.
    ordered = sorted(names)
    for start in range(0, len(ordered), 400):
        check(ordered[start : start + 400], nested=nested)


AWKWARD = {
    "followed by underscores": ["shape", "shape_", "shape__", "", "_", "__"],
    "numbers": [1, -2, np.int64(7), False],
    "numbers and their texts": [1, "1", "1_", 1.5, None, "None"],
    "tuples": [("a", 1), ("a", "1"), (("b",), None), "('a', 1)"],
    "slashes": ["a/b", "a", "a/", "/a"],
    "members of an enum": [enum.StrEnum("Word", ["ONE"]).ONE, enum.IntEnum("Number", ["TWO"]).TWO],
}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("keys", AWKWARD.values(), ids=AWKWARD)
def test_keys_that_are_no_texts_or_have_equal_texts_have_entries_of_their_own(keys, nested):
    check(keys, nested=nested)


def test_a_slash_is_no_level():
    class Slashes(Keyed):
        def __init__(self):
            super().__init__(["a/b"], nested=False)
            deep = spaces.Dict({"b": BOX})
            self.observation_space = spaces.Dict({"a/b": BOX, "a": deep})

        def shown(self):
            return {"a/b": np.full(1, 0.5, np.float32), "a": {"b": np.full(1, -0.5, np.float32)}}

    env, other = HostedEnv(Slashes, num_envs=1), HostedEnv(Slashes, num_envs=1)
    env.reset()
    other.load_state_dict(env.state_dict())
    present = other.present()
    assert (present["a/b"].item(), present["a", "b"].item()) == (0.5, -0.5)


@pytest.mark.parametrize("key", [b"a", frozenset("a"), enum.Enum("Side", ["LEFT"]).LEFT], ids=str)
def test_a_key_that_no_file_could_hold_is_refused_by_name(key):
    space = spaces.Dict({"a": spaces.Dict({key: BOX})})
    with pytest.raises(ValueError, match=r"^Room: observation_space must have texts, numbers or"):
        read_observation(space, owner="Room", generic=True)


KEYS = st.one_of(
    st.text("_shapedvictynm/1", max_size=8),
    st.sampled_from(["shape", "device", "dtype", "space", ""]).flatmap(
        lambda name: st.integers(0, 3).map(lambda count: name + "_" * count)
    ),
    st.integers(-3, 3),
    st.tuples(st.integers(0, 2)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(KEYS, unique=True))
def test_different_keys_have_different_names_that_composite_takes(keys):
    names = entry_names(keys)
    assert set(names) == set(keys)
    assert len(set(names.values())) == len(keys)
    Composite({name: Composite() for name in names.values()})
    for key, name in names.items():
        # Texts can be recovered from the name alone.
        if isinstance(key, str):
            stripped = name.rstrip("_")
            is_renamed = stripped in ("", "shape", "device", "dtype", "space")
            assert key == (name[:-1] if is_renamed else name)
