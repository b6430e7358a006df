"""Episodes of environments with many kinds of spaces, recorded by plain Gymnasium and by a
collector.
"""

from itertools import count
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from yamame.data import TrajectoryFormat, hdf5, npz
from yamame.replay import pack
from yamame_envs import Gym, HostedEnv

LENGTH, SEED = 7, 5
_NUMBERS = count()


BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)


SHIFTED = spaces.MultiDiscrete([4, 5], start=[1, -2])


PAIR = spaces.Tuple([spaces.Discrete(4, start=1), spaces.Discrete(3)])
OBSERVATIONS = {
    "discrete": spaces.Discrete(5),
    "start": spaces.Discrete(50, start=1),
    "negative_start": spaces.Discrete(50, start=-20),
    "one_value": spaces.Discrete(1, start=3),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_discrete_start": SHIFTED,
    "table": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [-1, 7]])),
    "multi_binary": spaces.MultiBinary(3),
    "bit_table": spaces.MultiBinary((2, 2)),
    "float32": BOX,
    "float64": spaces.Box(-0.1, 0.1, (2, 2), np.float64),
    "int64": spaces.Box(-3, 5, (2,), np.int64),
    "int16": spaces.Box(0, 6, (4,), np.int16),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "few_bytes": spaces.Box(0, 3, (2,), np.uint8),
    "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "unbounded": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "number": spaces.Box(0.0, 1.0, (), np.float32),
    # The name of one entry is the place of another.
    "same_names": spaces.Dict({"observation": spaces.Dict({"x": BOX}), "x": BOX}),
    "nested": spaces.Dict(
        {"a": spaces.Discrete(30, start=4), "inner": spaces.Dict({"b": SHIFTED, "c": BOX})}
    ),
    "named_observation": spaces.Dict({"observation": BOX, "phase": spaces.Discrete(30, start=-1)}),
    "tuple": spaces.Tuple(
        [spaces.Discrete(30, start=2), spaces.Tuple([spaces.MultiBinary(2), BOX])]
    ),
}


ACTIONS = {
    "discrete": spaces.Discrete(5),
    "start": spaces.Discrete(50, start=1),
    "negative_start": spaces.Discrete(50, start=-20),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_discrete_start": SHIFTED,
    "table": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [-1, 7]])),
    "multi_binary": spaces.MultiBinary(4),
    "bit_table": spaces.MultiBinary((2, 2)),
    "box": spaces.Box(np.array([[-2.0], [0.0]], np.float32), np.array([[1.0], [9.0]], np.float32)),
    "float64": spaces.Box(-0.1, 0.1, (3,), np.float64),
    "whole": spaces.Box(-3, 30, (2,), np.int16),
    "tuple": spaces.Tuple([spaces.Discrete(30, start=3), spaces.Discrete(2)]),
    "boxes": spaces.Tuple([BOX, spaces.Box(0.0, 5.0, (1,), np.float32)]),
    "dict": spaces.Dict({"b": spaces.Discrete(20, start=1), "a": spaces.MultiBinary(2)}),
}


class Echo(gymnasium.Env):
    """Shows samples of its observation space that its seed determines, for `LENGTH` steps."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        over = self.steps == LENGTH
        return self.observation_space.sample(), self.steps / 2, over, False, {}


def own_value(space, numbers):
    """The value of an action space for the numbers of a stored action, which count from 0; takes
    them off a list.
    """
    if isinstance(space, spaces.Dict):
        return {key: own_value(part, numbers) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(own_value(part, numbers) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return space.start + int(numbers.pop(0))
    flat = np.array([numbers.pop(0) for _ in range(int(np.prod(space.shape)))]).reshape(space.shape)
    if isinstance(space, spaces.MultiDiscrete):
        flat = flat + space.start
    elif isinstance(space, spaces.Box) and space.dtype.kind in "iu":
        flat = flat + space.low
    return flat.astype(space.dtype)


def stacked(values):
    """Values of timesteps as arrays in the structure of the space."""
    if isinstance(values[0], dict):
        return {key: stacked([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(stacked(list(part)) for part in zip(*values, strict=True))
    return np.stack([np.asarray(value) for value in values])


def paths(tree, name):
    """Arrays by the names that a file has of them."""
    if isinstance(tree, dict | tuple):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {
            path: array
            for key, part in items
            for path, array in paths(part, f"{name}/{key}").items()
        }
    return {name: tree}


def make_env(observation_space, action_space, generic=True, bounds="raise"):
    settings = {"observation_space": observation_space, "action_space": action_space}
    if generic:
        return Gym(id="SpacesEcho-v0", settings=settings, num_envs=1, bounds=bounds)
    return HostedEnv(lambda: Echo(**settings), num_envs=1, bounds=bounds)


def play(observation_space, action_space, generic=True):
    """One episode twice: as an environment and its collector store it, and as plain Gymnasium
    records it.
    """
    env = make_env(observation_space, action_space, generic)
    torch.manual_seed(0)
    actions = [env.action_spec.rand() for _ in range(LENGTH)]
    timestep, steps = env.reset(TensorDict({"task_seed": torch.tensor([[SEED]])}, [1])), []
    timestep = timestep.exclude("task_seed")
    for action in actions:
        steps.append(env.step(timestep.set("action", action)).clone())
        timestep = steps[-1]["next"].exclude("reward")
    format = TrajectoryFormat(env)
    stored = pack(torch.stack(steps, 1))[0].select(*format.entries)

    made = Echo(observation_space, action_space)
    shown, done, rewards = [made.reset(seed=SEED)[0]], [], []
    for action in actions:
        done.append(own_value(action_space, action.flatten().tolist()))
        observation, reward, *_ = made.step(done[-1])
        shown.append(observation)
        rewards.append(reward)
    recorded = {
        "observations": stacked(shown),
        "actions": stacked(done),
        "rewards": np.array(rewards),
        "terminated": np.arange(LENGTH) == LENGTH - 1,
        "truncated": np.zeros(LENGTH, bool),
    }
    own = {"observation_space": observation_space, "action_space": action_space}
    return SimpleNamespace(
        env=env, format=format, stored=stored, recorded=recorded, shown=shown, done=done, spaces=own
    )


def write(source, episode, folder):
    """Writes the recorded episode; returns its path as the source takes it."""
    named = {name: paths(part, name) for name, part in episode.recorded.items()}
    arrays = {path: array for part in named.values() for path, array in part.items()}
    if source is npz:
        np.savez(folder / "episode.npz", **arrays)
        return str(folder / "episode.npz")
    if source is hdf5:
        with pytest.importorskip("h5py").File(folder / "episode.hdf5", "w") as file:
            for path, array in arrays.items():
                file[path] = array
        return str(folder / "episode.hdf5")
    library = pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer  # what collects for Minari needs more packages

    names = {"terminated": "terminations", "truncated": "truncations"}
    buffer = EpisodeBuffer(
        id=0, **{names.get(key, key): part for key, part in episode.recorded.items()}
    )
    author = {"author": "a", "author_email": "a@b.c", "code_permalink": "a", "algorithm_name": "a"}
    name = f"test/echo{next(_NUMBERS)}-v0"
    library.create_dataset_from_buffers(name, [buffer], **episode.spaces, **author)
    return name


def differences(source, path, episode, **options):
    """Entries that a source reads differently from what the collector stored, or why it refuses
    them.
    """
    try:
        dataset = source(path, format=episode.format, **options)
    except ValueError as error:
        return str(error)
    got = dataset.stores[0].get([0])[0]
    assert set(got.keys(True, True)) == {*episode.stored.keys(True, True), "mask"}
    return [
        (key, got[key].tolist(), expected.tolist())
        for key, expected in episode.stored.items(True, True)
        if got[key].dtype != expected.dtype or not torch.equal(got[key], expected)
    ]


def changed(episode, **arrays):
    return SimpleNamespace(**{**vars(episode), "recorded": {**episode.recorded, **arrays}})


def read(episode, folder, source=npz, **options):
    return differences(source, write(source, episode, folder), episode, **options)


def hot(space, values):
    """One-hots of values, one group for each choice."""
    sizes, low = (
        np.atleast_1d(getattr(space, "nvec", getattr(space, "n", 0))),
        np.atleast_1d(space.start),
    )
    groups = [
        np.eye(size)[column - first]
        for size, first, column in zip(sizes, low, values.reshape(len(values), -1).T, strict=True)
    ]
    return np.concatenate(groups, 1)


def act(agent, *observations):
    """Shows an agent observations one after the other; returns the actions, or why one is
    refused.
    """
    agent.reset()
    try:
        return [
            agent.act(observation, reward=float(step > 0))
            for step, observation in enumerate(observations)
        ]
    except ValueError as error:
        return str(error)
