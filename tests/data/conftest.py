"""What tests of data share: trajectories that a collector has stored, and the arrays that files
have of them.
"""

import shutil
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import GymEnv, SerialEnv, TransformedEnv
from yamame.collectors import SyncCollector
from yamame.data import TrajectoryFormat
from yamame.replay import TrajectoryReplayBuffer
from yamame.transforms import ContextTransform
from yamame_envs import MazeRunner, PassiveTMaze, RepeatedTrials
from yamame_envs.adapters.gym import Gym


class RandomActions(TensorDictModuleBase):
    """A policy that knows only which actions there are."""

    in_keys, out_keys = (), ("action",)

    def __init__(self, spec):
        super().__init__()
        self.spec = spec

    def forward(self, tensordict):
        return tensordict.set("action", self.spec.rand())


def pendulum():
    return TransformedEnv(SerialEnv(2, lambda: GymEnv("Pendulum-v1")), ContextTransform(horizon=40))


ENVS = {
    "tmaze": lambda: PassiveTMaze(num_envs=3, length=6),
    "goals": lambda: MazeRunner(num_envs=3, size=5, time_limit=20),
    "trials": lambda: RepeatedTrials(PassiveTMaze(num_envs=2, length=3), num_trials=3),
    "lake": lambda: Gym(id="FrozenLake-v1", num_envs=3),
    "pendulum": pendulum,
}


def arrays_of(trajectory, observed):
    """The arrays of one trajectory ``[L]``, as a file has them: nothing of the context but where
    trials start.
    """
    arrays = {
        "actions": trajectory["action"][:-1].numpy(),
        "rewards": trajectory["next", "reward"][:-1, 0].numpy(),
        "terminated": trajectory["next", "terminated"][:-1, 0].numpy(),
        "truncated": trajectory["next", "truncated"][:-1, 0].numpy(),
        "trial_start": trajectory["trial_start"][:, 0].numpy(),
    }
    if ("next", "success") in trajectory.keys(True):
        arrays["success"] = trajectory["next", "success"][:-1, 0].numpy()
    for key in observed:
        beside = key in ("goal", "achieved", "achieved_mask")
        arrays[key if beside else f"observations/{key}"] = trajectory[key].numpy()
    return arrays


def collect(name, folder, num_steps=300):
    """Trajectories of an environment in a folder: its ``format``, the ``buffer`` and a list of
    ``arrays``.
    """
    torch.manual_seed(0)
    env = ENVS[name]()
    buffer = TrajectoryReplayBuffer(folder / "replay", capacity=10_000, batch_size=4)
    SyncCollector(env, RandomActions(env.full_action_spec["action"]), buffer).collect(num_steps)
    shape = TrajectoryFormat(env)
    lengths = buffer.storage.lengths.tolist()
    arrays = [
        arrays_of(buffer.storage.get(n)[:length], shape.observed)
        for n, length in enumerate(lengths)
    ]
    assert len(arrays) > 2
    return SimpleNamespace(env=env, format=shape, buffer=buffer, arrays=arrays, path=folder)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """What `collect` makes of an environment, once."""
    return cache(lambda name: collect(name, tmp_path_factory.mktemp(name)))


@pytest.fixture
def collected(once, tmp_path):
    """What `collect` makes, whose ``path`` is a copy; nobody may change its buffer."""

    def copied(name):
        made = once(name)
        path = shutil.copytree(made.path, tmp_path / name)
        return SimpleNamespace(
            **{**vars(made), "path": path, "arrays": [dict(held) for held in made.arrays]}
        )

    return copied


@pytest.fixture
def own(tmp_path):
    """Makes the same anew."""
    return lambda name: collect(name, tmp_path / name)


@pytest.fixture
def same():
    """Asserts that a dataset holds the trajectories of a buffer, bit for bit, and nothing else."""

    def check(dataset, buffer):
        expected = buffer[:]
        (store,) = dataset.stores
        got = store.get(range(len(dataset)))
        assert set(got.keys(True, True)) == set(expected.keys(True, True))
        wrong = [
            key for key in expected.keys(True, True) if not torch.equal(got[key], expected[key])
        ]
        assert wrong == []
        assert all(got[key].dtype == expected[key].dtype for key in expected.keys(True, True))

    return check


def write(path, arrays):
    """One file per episode."""
    path.mkdir(exist_ok=True, parents=True)
    for number, held in enumerate(arrays):
        np.savez(path / f"{number:04d}.npz", **held)
    return str(path / "*.npz")


def flat(arrays, *, following: bool):
    """All episodes one after the other, as in D4RL."""
    joined = {}
    for key in arrays[0]:
        per_timestep = (
            key in ("goal", "achieved", "achieved_mask", "trial_start") or "observations" in key
        )
        joined[key] = np.concatenate(
            [held[key][:-1] if per_timestep else held[key] for held in arrays]
        )
        if following and "observations" in key:
            joined[f"next_{key}"] = np.concatenate([held[key][1:] for held in arrays])
    return joined


@pytest.fixture
def files():
    """Functions that write files."""
    return SimpleNamespace(write=write, flat=flat)
