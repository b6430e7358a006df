"""Data whose environment held goals out of training in another way than that of the run that learns
from them.
"""

import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule
from yamame.collectors import SyncCollector
from yamame.data import TrajectoryFormat, hdf5, npz, runs
from yamame.replay import TrajectoryReplayBuffer
from yamame_envs import MazeRunner

SETTINGS = {"num_envs": 4, "size": 7, "num_goals": 1, "time_limit": 10}


def maze(holds_goals_out):
    if holds_goals_out:
        return MazeRunner(**SETTINGS, split="train", split_by="walls_and_goals")
    return MazeRunner(**SETTINGS)


def episode(env):
    """The arrays of one episode, as a person writes them."""
    steps = env.rollout(10, break_when_any_done=False)[0]
    shown = {
        key for key in steps.keys() if key in ("goal", "achieved", "achieved_mask", "world_hash")
    }
    arrays = {key: torch.cat([steps[key], steps["next", key][-1:]]).numpy() for key in shown}
    arrays["observations"] = torch.cat(
        [steps["observation"], steps["next", "observation"][-1:]]
    ).numpy()
    last = np.arange(10) == 9
    return arrays | {
        "actions": steps["action"].numpy(),
        "rewards": np.zeros(10),
        "terminated": last,
    }


def read_runs(env, shape, folder):
    buffer = TrajectoryReplayBuffer(folder / "replay", capacity=1000, batch_size=4)
    still = TensorDictModule(
        lambda flag: torch.zeros(len(flag), dtype=torch.int64), ["is_init"], ["action"]
    )
    SyncCollector(env, still, buffer).collect(100)
    return runs(str(folder / "replay"), format=shape)


def read_npz(env, shape, folder):
    np.savez(folder / "demos.npz", **episode(env))
    return npz(str(folder / "demos.npz"), format=shape)


def read_hdf5(env, shape, folder):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "demos.hdf5", "w") as file:
        for key, value in episode(env).items():
            file[key] = value
    return hdf5(str(folder / "demos.hdf5"), format=shape)


READ = [read_runs, read_npz, read_hdf5]


@pytest.mark.parametrize("read", READ)
def test_data_without_worlds_are_refused_with_the_setting_to_change(read, tmp_path):
    shape = TrajectoryFormat(maze(True))
    with pytest.raises(ValueError, match="world_hash") as raised:
        read(maze(False), shape, tmp_path)
    for part in ("env.split_by", "walls", "same"):
        assert part in str(raised.value)
    (tmp_path / "good").mkdir()
    assert read(maze(True), shape, tmp_path / "good").sample(2)["world_hash"].any()


def test_a_rollout_without_worlds_is_refused_with_the_setting_to_change():
    shape = TrajectoryFormat(maze(True))
    steps = maze(True).rollout(10, break_when_any_done=False)[0]
    steps["next", "terminated"][-1] = True
    shape.trajectories(steps.clone(), "steps")
    with pytest.raises(ValueError, match=r"world_hash.*env\.split_by"):
        shape.trajectories(steps.exclude("world_hash", ("next", "world_hash")), "steps")


@pytest.mark.parametrize("read", READ)
def test_data_with_worlds_are_read_without_them_where_goals_are_not_held_out(read, tmp_path):
    shape = TrajectoryFormat(maze(False))
    assert "world_hash" not in read(maze(True), shape, tmp_path).sample(2).keys()
