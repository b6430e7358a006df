"""Files of others become the very trajectories that a collector would have stored, or are refused
by name.
"""

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from yamame.data import (
    MemoryStore,
    TrajectoryFormat,
    amago,
    hdf5,
    lerobot,
    minari,
    npz,
    runs,
    torchrl,
)
from yamame.data.tables import rollout
from yamame.replay import TrajectoryReplayBuffer, pack
from yamame_envs import MazeRunner, PassiveTMaze


@pytest.mark.parametrize("name", ["tmaze", "goals", "trials", "lake", "pendulum"])
def test_episodes_in_files_become_what_the_collector_stored_bit_for_bit(
    collected, files, same, name
):
    data = collected(name)
    dataset = npz(files.write(data.path, data.arrays), format=data.format)
    same(dataset, data.buffer)
    batch = dataset.sample(6)
    assert batch.shape[0] == 6
    assert (batch["mask"].sum(1) > 1).all()


@pytest.mark.parametrize("name", ["tmaze", "lake", "pendulum"])
def test_flat_files_with_where_steps_led_become_the_same(collected, files, same, name):
    data = collected(name)
    np.savez(data.path / "all.npz", **files.flat(data.arrays, following=True))
    same(npz(str(data.path / "all.npz"), format=data.format), data.buffer)


def test_flat_files_end_in_zeros_where_the_value_ends_and_a_truncated_step_is_left_out(
    collected,
):
    shape = collected("lake").format
    steps = {
        "observations": np.array([3, 4, 5, 6, 7, 8]),
        "actions": np.array([0, 1, 2, 3, 0, 1]),
        "rewards": np.arange(6.0),
        "terminals": np.array([0, 0, 1, 0, 0, 0]),
        "timeouts": np.array([0, 0, 0, 0, 0, 1]),
    }
    steps = rollout(steps, shape, "file", drop_unfinished=False)
    (part,) = shape.trajectories(steps, "file")
    assert part[1].tolist() == [4, 3]
    got = MemoryStore([part]).get([0, 1])
    assert got["mask"].sum(1).flatten().tolist() == [4, 3]
    assert got["observation"].shape == (
        2,
        4,
        16,
    )  # the environment shows one-hots, an index is as good
    assert got["observation"].argmax(-1).tolist() == [[3, 4, 5, 0], [6, 7, 8, 0]]
    assert got["action"].tolist() == [[0, 1, 2, 0], [3, 0, 0, 0]]
    assert got["next", "reward"].squeeze(-1).tolist() == [[0, 1, 2, 0], [3, 4, 0, 0]]
    assert got["next", "terminated"].squeeze(-1).int().tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]
    assert got["next", "truncated"].squeeze(-1).int().tolist() == [[0, 0, 0, 0], [0, 1, 0, 0]]


def test_the_context_is_what_a_loop_computes(collected, files):
    data = collected("tmaze")
    (store,) = npz(files.write(data.path, data.arrays), format=data.format).stores
    for number, held in enumerate(data.arrays):
        trajectory = store.get([number])[0]
        action, reward = np.zeros(4), 0.0
        for step in range(len(held["actions"]) + 1):
            assert trajectory["prev_action"][step].tolist() == action.tolist()
            assert float(trajectory["prev_reward"][step]) == np.float32(reward)
            assert float(trajectory["time"][step]) == np.float32(step / 7)
            assert int(trajectory["step_index"][step]) == step
            assert bool(trajectory["is_init"][step]) == (step == 0)
            if step < len(held["actions"]):
                action, reward = np.eye(4)[held["actions"][step]], held["rewards"][step]


def test_runs_are_read_where_they_are_and_several_are_one_source(own, same, tmp_path):
    data = own("tmaze")
    dataset = runs(str(data.path), format=data.format)
    assert (dataset.stores[0].get(range(len(dataset))) == data.buffer[:]).all()
    twice = runs([str(data.path / "replay"), str(tmp_path / "tma*")], format=data.format)
    assert len(twice) == 2 * len(dataset)
    before = len(dataset)
    data.buffer.extend(data.buffer[:3])
    assert (dataset.sample(2).shape[0], len(dataset)) == (2, before)
    follows = runs(str(data.path), format=data.format, follow=True)
    data.buffer.extend(data.buffer[:3])
    follows.sample(1)
    assert len(follows) == before + 6


@pytest.mark.parametrize("place", [0.0, 0.5, 0.99])
def test_runs_with_a_flipped_bit_are_refused_by_the_name_of_the_file(collected, place):
    data = collected("tmaze")
    (file,) = data.path.glob("replay/*.steps")
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[int(place * len(whole))] ^= 4
    file.write_bytes(damaged)
    with pytest.raises(ValueError, match=rf"{file} must be as it was appended") as told:
        runs(str(data.path), format=data.format)
    assert "\n" not in str(told.value)
    file.write_bytes(whole)
    assert len(runs(str(data.path), format=data.format)) == len(data.arrays)


def test_groups_and_roots_of_hdf5_files_are_read(collected, files, same):
    h5py = pytest.importorskip("h5py")
    data = collected("goals")
    with h5py.File(data.path / "groups.hdf5", "w") as file:
        for number, held in enumerate(data.arrays):
            for key, value in held.items():
                file[f"data/demo_{number}/{key}"] = value
    same(hdf5(str(data.path / "groups.hdf5"), format=data.format), data.buffer)
    plain = collected("tmaze")
    with h5py.File(plain.path / "flat.hdf5", "w") as file:
        for key, value in files.flat(plain.arrays, following=True).items():
            file[
                key.replace("/observation", "") if key.endswith("observations/observation") else key
            ] = value
    same(hdf5(str(plain.path / "flat.hdf5"), format=plain.format), plain.buffer)
    (plain.path / "none.hdf5").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"none.hdf5: must be an HDF5 file"):
        hdf5(str(plain.path / "none.hdf5"), format=plain.format)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_minari_dataset_of_this_machine_is_read(collected, tmp_path, monkeypatch):
    library = pytest.importorskip("minari")
    pytest.importorskip("h5py")
    import gymnasium
    from minari.data_collector import EpisodeBuffer  # what collects for Minari needs more packages

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    data = collected("lake")
    env = gymnasium.make("FrozenLake-v1")
    env.action_space.seed(0)
    played, buffers = [], []
    for seed in range(5):
        shown, _ = env.reset(seed=seed)
        episode, done, taken = [shown], False, []
        while not done:
            action = env.action_space.sample()
            shown, reward, terminated, truncated, _ = env.step(action)
            episode.append(shown)
            taken.append((action, reward, terminated, truncated))
            done = terminated or truncated
        played.append(episode)
        names = ("actions", "rewards", "terminations", "truncations")
        columns = {
            name: np.array([step[place] for step in taken]) for place, name in enumerate(names)
        }
        buffers.append(EpisodeBuffer(id=seed, seed=seed, observations=np.array(episode), **columns))
    author = {"author": "a", "author_email": "a@b.c", "code_permalink": "a", "algorithm_name": "a"}
    library.create_dataset_from_buffers("test/lake-v0", buffers, env=env, **author)
    dataset = minari("test/lake-v0", format=data.format)
    assert dataset.stores[0].lengths.tolist() == [len(episode) for episode in played]
    first = dataset.stores[0].get([0])[0]
    assert first["observation"].argmax(-1).tolist() == played[0]
    assert bool(first["next", "terminated"][-2])
    with pytest.raises(ValueError, match=r"test/none-v0 must be a dataset on this machine"):
        minari("test/none-v0", format=data.format)


@pytest.mark.parametrize("way", ["tensordict", "folder", "buffer", "rows"])
def test_rollouts_and_datasets_of_torchrl_are_read(way, same, tmp_path):
    env = PassiveTMaze(num_envs=3, length=4)
    steps = env.rollout(10, break_when_any_done=False)
    rows = steps.exclude("prev_action", "prev_reward", "time", "trial_start", "step_index")
    buffer = TrajectoryReplayBuffer(tmp_path / "replay", capacity=1000, batch_size=4)
    kept = [*TrajectoryFormat(env).entries, "mask"]
    buffer.extend(pack(steps).select(*kept))
    given = rows if way == "rows" else rows.flatten()
    if way == "folder":
        given.memmap(tmp_path / "rollout")
        given = str(tmp_path / "rollout")
    if way == "buffer":
        transitions = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=2)
        transitions.extend(given)
        given = transitions
    same(torchrl(given, format=TrajectoryFormat(env)), buffer)


def test_a_rollout_in_random_order_or_cut_is_refused(tmp_path):
    env = PassiveTMaze(num_envs=3, length=4)
    steps = env.rollout(10, break_when_any_done=False).flatten()
    shape = TrajectoryFormat(env)
    torch.manual_seed(0)
    with pytest.raises(
        ValueError, match=r"TensorDict: steps after the last end of an episode must be 0"
    ):
        torchrl(steps[:-2], format=shape)
    with pytest.raises(
        ValueError, match=r"TensorDict: steps with is_init must be those where episodes start"
    ):
        torchrl(steps[2:], format=shape)
    mixed = torch.cat([steps[torch.randperm(29)], steps[-1:]]).exclude("is_init")
    with pytest.raises(
        ValueError, match=r"'observation' after steps must be the next one of the step before"
    ):
        torchrl(mixed, format=shape)


def test_a_folder_whose_reading_would_run_code_is_refused(tmp_path):
    steps = TensorDict({"x": torch.zeros(2)}, [2])
    steps.set_non_tensor("note", torch.nn.Linear(1, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps.memmap(tmp_path / "rollout")
    with pytest.raises(
        ValueError, match=r"rollout: must be a TensorDict of tensors, it cannot be read"
    ):
        torchrl(str(tmp_path / "rollout"), format=TrajectoryFormat(PassiveTMaze()))
    with pytest.raises(ValueError, match=r"torchrl: path must be the folder of a TensorDict"):
        torchrl(str(tmp_path / "nothing"), format=TrajectoryFormat(PassiveTMaze()))
    (tmp_path / "a.npz").write_bytes(pickle.dumps({"actions": 1}))
    with pytest.raises(ValueError, match=r"a.npz: must be a .npz file of plain arrays"):
        npz(str(tmp_path / "a.npz"), format=TrajectoryFormat(PassiveTMaze()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": None}, r"0000.npz: arrays must hold 'actions', at the root or in groups"),
        ({"rewards": None}, r"0000.npz: arrays must hold 'rewards'"),
        ({"observations/observation": None}, r"0000.npz: arrays must hold 'observations'"),
        ({"terminated": None, "truncated": None}, r"arrays must hold 'terminated' or 'truncated'"),
        (
            {"observations/observation": np.zeros((8, 3), np.float32)},
            r"0000.npz: entry 'observation' must have the shape \(8, 2\), got \(8, 3\)",
        ),
        (
            {"observations/observation": np.zeros((5, 2), np.float32)},
            r"length of 'observation' must have one step for each of the 7 actions, or one "
            r"more, got 5",
        ),
        (
            {"observations/observation": np.full((8, 2), np.nan)},
            r"entry 'observation' must be finite, got nan",
        ),
        ({"rewards": np.full(7, np.inf)}, r"entry \('next', 'reward'\) must be finite"),
        (
            {"rewards": np.full(7, 1e39)},
            r"entry \('next', 'reward'\) must be finite as \(1,\) float32",
        ),
        ({"rewards": np.zeros(3)}, r"0000.npz: shape of 'rewards' must be \(7,\), got \(3,\)"),
        ({"rewards": np.ones(1)}, r"0000.npz: shape of 'rewards' must be \(7,\), got \(1,\)"),
        ({"rewards": np.longdouble(1)}, r"0000.npz: shape of 'rewards' must be \(7,\), got \(\)"),
        ({"actions": np.array(1)}, r"0000.npz: actions: shape must be \[T, ...\], got \(\)"),
        (
            {"terminated": np.full(7, np.nan)},
            r"0000.npz: 'terminated' must be flags, 0 or 1, got nan",
        ),
        ({"trial_start": np.full(8, 0.5)}, r"'trial_start' must be flags, 0 or 1, got 0.5"),
        (
            {"actions/b": np.zeros(7)},
            r"0000.npz: name of an array must not lie below",
        ),
        (
            {"actions": np.full(7, 2**64 - 1, np.uint64)},
            r"actions: largest number must be below 2\*\*63",
        ),
        (
            {"truncated": np.array([0, 0, 1, 0, 0, 0, 1])},
            r"length of 'observation' must not be 8 for several episodes, got 8; give one more",
        ),
        (
            {"rewards": np.array(["a"] * 7)},
            r"0000.npz: rewards: dtype must be of numbers or flags, got '<U1'",
        ),
        (
            {"actions": np.full(7, 4)},
            r"0000.npz: entry 'action' must be whole numbers in 0..3, got 4",
        ),
        (
            {"actions": np.full(7, 0.5)},
            r"entry 'action' must be whole numbers in 0..3, got 0.5",
        ),
        (
            {"terminated": np.zeros(7, bool)},
            r"steps after the last end of an episode must be 0, got 7",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line_that_names_the_file_and_the_entry(
    collected, files, change, message
):
    data = collected("tmaze")
    first = {key: value for key, value in {**data.arrays[0], **change}.items() if value is not None}
    pattern = files.write(data.path, [first, *data.arrays[1:]])
    with pytest.raises(ValueError, match=message) as raised:
        npz(pattern, format=data.format)
    assert "\n" not in str(raised.value)
    files.write(data.path, data.arrays)
    npz(pattern, format=data.format)


def test_longer_episodes_other_environments_and_missing_files_are_refused(collected, files):
    data = collected("tmaze")
    pattern = files.write(data.path, data.arrays)
    short = TrajectoryFormat(PassiveTMaze(length=5))
    message = r"steps of an episode must be at most 6, as the environment's, got 7"
    with pytest.raises(ValueError, match=rf"0000.npz: {message}"):
        npz(pattern, format=short)
    with pytest.raises(ValueError, match=rf"replay: {message}"):
        runs(str(data.path), format=short)
    other = collected("lake")
    with pytest.raises(
        ValueError, match=r"replay: entry '?\(?'observation.* must be .*, as the environment's"
    ):
        runs(str(data.path), format=other.format)
    with pytest.raises(
        ValueError, match=r"data: path must name an existing file or folder, got '.*nothing'"
    ):
        npz(str(data.path / "nothing"), format=data.format)


def test_paths_are_texts_or_objects_and_everything_else_is_refused(collected, files, same):
    data = collected("lake")
    files.write(data.path, data.arrays)
    paths = sorted(data.path.glob("*.npz"))
    for given in (paths, tuple(map(str, paths)), data.path / "*.npz"):
        same(npz(given, format=data.format), data.buffer)
    same(runs(data.path, format=data.format), data.buffer)
    for source in (npz, runs, lerobot, amago):
        for given in (5, None, b"a.npz", [5], {"a": 1}):
            with pytest.raises(ValueError, match="path must be a path or a list of paths, got"):
                source(given, format=data.format)
    with pytest.raises(ValueError, match="folder of a TensorDict"):
        torchrl(data.path, format=data.format)


def test_a_format_that_is_none_is_refused(collected, files):
    data = collected("lake")
    path = files.write(data.path, data.arrays)
    for source in (npz, lerobot, amago, runs):
        for given in (None, data.env):
            with pytest.raises(ValueError, match="format must be a TrajectoryFormat, got <class"):
                source(path, format=given)


def test_unfinished_steps_are_left_out_if_asked(collected, files):
    data = collected("tmaze")
    steps = files.flat(data.arrays, following=True)
    cut = {key: value[:-3] for key, value in steps.items()}
    np.savez(data.path / "cut.npz", **cut)
    with pytest.raises(ValueError, match=r"got 4; leave them out with drop_unfinished=true"):
        npz(str(data.path / "cut.npz"), format=data.format)
    dataset = npz(str(data.path / "cut.npz"), format=data.format, drop_unfinished=True)
    assert len(dataset) == len(data.arrays) - 1


def test_a_library_that_is_missing_is_named(collected, monkeypatch):
    import sys

    data = collected("tmaze")
    for name, source in (("h5py", hdf5), ("minari", minari)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(
            ValueError, match=rf"{name} must be installed, with pip install 'yamame\[data\]'"
        ):
            source("a", format=data.format)


def flat(env, num_steps, **options):
    """Steps of random play as the arrays of a flat file, episodes one after the other."""
    steps = env.rollout(num_steps, break_when_any_done=False).flatten()
    ends = steps["next", "terminated"] | steps["next", "truncated"]
    steps = steps[: int(ends.flatten().nonzero()[-1]) + 1]
    arrays = {
        "observations": steps["observation"],
        "actions": steps["action"],
        "rewards": steps["next", "reward"][:, 0],
        "terminated": steps["next", "terminated"][:, 0],
        "truncated": steps["next", "truncated"][:, 0],
        **{key: steps[key] for key in ("goal", "achieved", "achieved_mask")},
        **{f"next_{key}": steps["next", key] for key in ("goal", "achieved", "achieved_mask")},
        "next_observations": steps["next", "observation"],
    }
    return {key: value.numpy() for key, value in arrays.items()}, steps


def test_goals_of_flat_files_need_what_was_achieved_last(tmp_path):
    env = MazeRunner(num_envs=1, seed=0, size=5, num_goals=1, time_limit=60)
    arrays, steps = flat(env, 600)
    assert bool(steps["next", "terminated"].any())
    format = TrajectoryFormat(env)
    np.savez(tmp_path / "whole.npz", **arrays)
    whole = npz(str(tmp_path / "whole.npz"), format=format)
    expected = pack(steps)
    assert len(whole) == len(expected)
    for index, one in enumerate(expected.unbind(0)):
        length = int(one["mask"].sum())
        for key in ("goal", "achieved", "achieved_mask"):
            assert torch.equal(whole.stores[0].get([index])[0][key][:length], one[key][:length]), (
                key
            )
    unknown = {
        key: value
        for key, value in arrays.items()
        if key not in ("next_achieved", "next_achieved_mask")
    }
    np.savez(tmp_path / "flat.npz", **unknown)
    with pytest.raises(
        ValueError,
        match="length of 'achieved' must be one more than the actions, or come with 'next",
    ):
        npz(str(tmp_path / "flat.npz"), format=format)


@pytest.mark.parametrize("folder", ["d", "rewards_v2"])
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32])
def test_flags_may_be_numbers_whatever_a_file_is_called(collected, same, tmp_path, folder, dtype):
    data = collected("tmaze")
    (tmp_path / folder).mkdir()
    for number, arrays in enumerate(data.arrays):
        flags = {
            key: arrays[key].astype(dtype) for key in ("terminated", "truncated") if key in arrays
        }
        np.savez(tmp_path / folder / f"{number:04}.npz", **{**arrays, **flags})
    read = npz(str(tmp_path / folder / "*.npz"), format=data.format)
    same(read, data.buffer)


@pytest.mark.filterwarnings("ignore")  # the library leaves files open that it cannot read
def test_damaged_files_are_refused_by_name(collected, files):
    data = collected("tmaze")
    path = Path(files.write(data.path, data.arrays[:1]).replace("*", "0000"))
    content = path.read_bytes()
    refused = []
    for place in range(0, len(content), max(1, len(content) // 60)):
        path.write_bytes(
            content[:place]
            + bytes(byte ^ 255 for byte in content[place : place + 8])
            + content[place + 8 :]
        )
        try:
            npz(str(path), format=data.format)
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 20
    assert [text for text in refused if path.name not in text or "\n" in text] == []
    np.save(path.with_suffix(".npy"), np.zeros(3))
    with pytest.raises(ValueError, match=r"\.npy: must be a \.npz file of plain arrays"):
        npz(str(path.with_suffix(".npy")), format=data.format)


def test_runs_of_longer_or_shorter_episodes_are_refused_for_the_time_they_show(tmp_path):
    short, long = (PassiveTMaze(num_envs=2, seed=0, length=length) for length in (5, 20))
    replay = TrajectoryReplayBuffer(tmp_path / "replay", capacity=1000)
    replay.extend(short.rollout(30, break_when_any_done=False))
    replay.state_dict()  # is on disk with it
    assert len(runs(str(tmp_path), format=TrajectoryFormat(short))) > 0
    with pytest.raises(
        ValueError,
        match=r"entry 'time' must be that of episodes of 21 steps, as the environment's, got \[0",
    ):
        runs(str(tmp_path), format=TrajectoryFormat(long))


def test_arrays_that_are_not_read_are_told(collected, files, capsys):
    data = collected("tmaze")
    renamed = {
        ("truncate" if key == "truncated" else key): value for key, value in data.arrays[0].items()
    }
    pattern = files.write(data.path, [{**renamed, "infos/qpos": np.zeros(3)}])
    npz(pattern, format=data.format)
    assert "not read: infos, truncate" in capsys.readouterr().err
    npz(files.write(data.path, data.arrays), format=data.format)
    assert capsys.readouterr().err == ""
