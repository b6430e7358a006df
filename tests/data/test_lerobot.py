"""Datasets in the layout of LeRobot: written and read bit for bit, those of others read as their
columns say, and damaged or hostile ones refused in one line.
"""

import json
import os
import random
import shutil
import time
import tracemalloc
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.envs import TransformedEnv
from torchrl.envs.transforms import Transform
from yamame.checks import UsageError
from yamame.collectors import SyncCollector
from yamame.data import MemoryStore, TrajectoryFormat, lerobot, runs, write_lerobot
from yamame.data.lerobot_export import _Statistics, _tables, _to_arrow, _write_tables
from yamame.data.parquet_files import ParquetFile
from yamame.data.parquet_sizes import count_bytes
from yamame.data.sizes import Sizes
from yamame.replay import TrajectoryReplayBuffer
from yamame_envs import Gym, MazeRunner, PassiveTMaze

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

OBSERVED = {
    "numbers": spaces.Box(-9.0, 9.0, (3,), np.float32),
    "doubles": spaces.Box(-9.0, 9.0, (), np.float64),
    "picture": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "small": spaces.Box(-5, 5, (2, 1), np.int8),
    "choice": spaces.Discrete(4, start=-1),
    "one choice": spaces.Discrete(1),
    "choices": spaces.MultiDiscrete([2, 3]),
    "bits": spaces.MultiBinary((2, 2)),
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (1,), np.float32)]),
    "dict": spaces.Dict(
        state=spaces.Box(-1, 1, (2,), np.float32),
        observation=spaces.Dict({"a.b": spaces.Discrete(3), "c/d": spaces.MultiBinary(1)}),
    ),
}
ACTED = {
    "choice": spaces.Discrete(3, start=1),
    "choices": spaces.MultiDiscrete([2, 3]),
    "bits": spaces.MultiBinary(2),
    "box": spaces.Box(np.float32([-1, 10]), np.float32([3, 20])),
    "number": spaces.Box(-1.0, 1.0, (1,), np.float32),
}


class Noise(gymnasium.Env):
    """Samples of spaces, in episodes of random lengths that end in both ways."""

    def __init__(self, observed, acted):
        self.observation_space, self.action_space = OBSERVED[observed], ACTED[acted]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        ends = self.np_random.random(2) < 0.15
        reward = float(self.np_random.normal())
        return self.observation_space.sample(), reward, bool(ends[0]), bool(ends[1]), {}


@pytest.fixture(scope="module", autouse=True)
def _registered():
    gymnasium.register("Noise-v0", entry_point=Noise)
    yield
    gymnasium.registry.pop("Noise-v0")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def noise(observed, acted, **options):
    settings = {"observed": observed, "acted": acted}
    return Gym(id="Noise-v0", num_envs=2, settings=settings, time_limit=12, **options)


class Masked(Transform):
    """Adds a mask of actions."""

    def _call(self, next_tensordict):
        mask = next_tensordict["observation"].sum(-1, keepdim=True) >= torch.arange(4) / 2
        return next_tensordict.set("action_mask", mask)

    def _reset(self, tensordict, tensordict_reset):
        return self._call(tensordict_reset)

    def transform_observation_spec(self, observation_spec):
        from torchrl.data import Binary

        shape = (*observation_spec.shape, 4)
        observation_spec["action_mask"] = Binary(4, shape, dtype=torch.bool)
        return observation_spec


def collected(env, num_steps=150):
    """The format of an environment, and a buffer with trajectories of it."""
    torch.manual_seed(0)
    buffer = TrajectoryReplayBuffer("replay", capacity=10_000, batch_size=4)

    class Policy(torch.nn.Module):
        in_keys, out_keys = (), ("action",)

        def forward(self, tensordict):
            return tensordict.set("action", env.full_action_spec["action"].rand())

    SyncCollector(env, Policy(), buffer).collect(num_steps)
    return TrajectoryFormat(env), buffer


def written(env, **options):
    shape, buffer = collected(env)
    return shape, buffer, write_lerobot("out", buffer.storage, **options)


def everything_in(folder):
    """Contents and times of all files, and targets of links."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_symlink():
            found[path] = os.readlink(path)
        elif path.is_file():
            found[path] = (path.read_bytes(), path.stat().st_mtime_ns)
    return found


# What is written is read


@pytest.mark.parametrize("name", ["tmaze", "goals", "trials", "lake", "pendulum"])
def test_a_run_is_written_and_read_bit_for_bit(once, same, name):
    data = once(name)
    folder = write_lerobot("out", data.buffer.storage)
    same(lerobot("out", format=data.format), data.buffer)
    # The result can be written again, and so can any other source.
    for number, source in enumerate(
        (lerobot(str(folder), format=data.format), runs(str(data.path), format=data.format))
    ):
        write_lerobot(f"again{number}", source)
        for file in ("data/chunk-000/file-000.parquet", "meta/final.parquet", "meta/info.json"):
            found = (folder / file).read_bytes(), Path(f"again{number}", file).read_bytes()
            assert found[0] == found[1], file


@pytest.mark.parametrize("acted", ACTED)
def test_actions_of_all_spaces_are_read_bit_for_bit(same, acted, capsys):
    shape, buffer, _ = written(noise("numbers", acted))
    same(lerobot("out", format=shape), buffer)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("observed", OBSERVED)
def test_observations_of_all_spaces_are_read_bit_for_bit(same, observed):
    shape, buffer, _ = written(noise(observed, "choice"))
    same(lerobot("out", format=shape), buffer)


def test_entries_beside_the_observations_are_read_bit_for_bit(same):
    for number, env in enumerate(
        (
            MazeRunner(
                num_envs=2, size=7, time_limit=10, split="train", split_by="walls_and_goals"
            ),
            TransformedEnv(PassiveTMaze(num_envs=2, length=4), Masked()),
        )
    ):
        shape, buffer = collected(env)
        write_lerobot(f"out{number}", buffer.storage)
        same(lerobot(f"out{number}", format=shape), buffer)
        assert ("world_hash", "action_mask")[number] in shape.entries
        buffer.storage.close()
        shutil.rmtree("replay")


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(0, 4), max_size=4),
    num_rows=st.integers(1, 5),
    dtype=st.sampled_from(["bool", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]),
    group=st.integers(1, 3),
    seed=st.integers(0, 100),
)
def test_arrays_of_all_shapes_and_dtypes_are_read_bit_for_bit(shape, num_rows, dtype, group, seed):
    values = np.random.default_rng(seed).integers(0, 200, (num_rows, *shape)).astype(dtype)
    table = pyarrow.table({"x.y": _to_arrow(values), "x": _to_arrow(values[:, ...] != 0)})
    parquet.write_table(table, "a.parquet", row_group_size=group)
    with ParquetFile(Path("a.parquet"), Sizes()) as file:
        read = file.read(["x.y"])["x.y"]
    assert read.dtype == values.dtype
    assert np.array_equal(read.reshape(values.shape), values)


def test_large_data_are_written_in_several_files(same, monkeypatch):
    monkeypatch.setattr("yamame.data.lerobot_export._ROW_GROUP", 3000)
    monkeypatch.setattr("yamame.data.lerobot_export._FILE_MB", 0.001)
    monkeypatch.setattr("yamame.data.lerobot_export._FILES_PER_CHUNK", 2)
    shape, buffer, folder = written(noise("dict", "box"))
    same(lerobot("out", format=shape), buffer)
    files = sorted(path.relative_to(folder) for path in folder.glob("data/*/*"))
    assert len(files) > 3
    assert Path("data/chunk-001/file-001.parquet") in files


def test_a_long_episode_is_written_in_parts(same, monkeypatch):
    """Lists in an array of pyarrow begin at places of 32 bits, so that no part may be large."""
    monkeypatch.setattr("yamame.data.lerobot_export._ROW_GROUP", 400)
    shape, buffer, folder = written(noise("picture", "box"))
    same(lerobot("out", format=shape), buffer)
    for file in ("data/chunk-000/file-000.parquet", "meta/final.parquet"):
        metadata = parquet.read_metadata(folder / file)
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        # A picture has 60 bytes.
        assert max(rows) <= 400 // 60
        assert len(rows) > 2


@pytest.mark.parametrize("dtype", ["bool", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8"])
@pytest.mark.parametrize("shape", [(), (100,), (2, 50)])
def test_what_is_written_can_be_read_however_equal_its_numbers_are(dtype, shape):
    values = np.ones((20_000, *shape), dtype)
    _write_tables(Path("a.parquet"), _tables({"x": values}))
    size = Path("a.parquet").stat().st_size
    with open("a.parquet", "rb") as file:
        assert count_bytes(file, ["x"]) < 60 * size


def test_the_files_are_those_of_the_layout():
    _, buffer, folder = written(noise("numbers", "box"), fps=10, task="push it")
    info = json.loads((folder / "meta/info.json").read_text())
    table = parquet.read_table(folder / info["data_path"].format(chunk_index=0, file_index=0))
    lengths = (buffer.storage.lengths - 1).tolist()
    assert info["codebase_version"] == "v3.0"
    assert info["total_episodes"] == len(lengths)
    assert info["total_frames"] == sum(lengths) == len(table)
    assert set(info["features"]) == set(table.column_names)
    assert info["features"]["action"] == {"dtype": "float32", "shape": [2], "names": None}
    assert table.schema.field("observation.state").type == pyarrow.list_(pyarrow.float32(), 3)
    assert info["features"]["next.reward"]["shape"] == [1]
    assert table.column("index").to_pylist() == list(range(sum(lengths)))
    frames = [step for length in lengths for step in range(length)]
    assert table.column("frame_index").to_pylist() == frames
    assert table.column("timestamp").to_pylist() == [np.float32(step / 10) for step in frames]
    done = [step + 1 == length for length in lengths for step in range(length)]
    assert table.column("next.done").to_pylist() == done
    episodes = parquet.read_table(folder / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [row["length"] for row in episodes] == lengths
    assert [row["tasks"] for row in episodes] == [["push it"]] * len(lengths)
    assert episodes[-1]["dataset_to_index"] == sum(lengths)
    stats = json.loads((folder / "meta/stats.json").read_text())
    assert set(stats) == set(table.column_names)
    values = np.array(table.column("observation.state").to_pylist())
    for name in ("min", "max", "mean", "std"):
        assert np.allclose(stats["observation.state"][name], getattr(values, name)(0)), name
    assert stats["next.done"]["count"] == [len(table)]

    pandas = pytest.importorskip("pandas")
    tasks = pandas.read_parquet(folder / "meta/tasks.parquet")
    assert tasks.index.tolist() == ["push it"]
    assert tasks["task_index"].tolist() == [0]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(-5, 5), min_size=1, max_size=6), min_size=1, max_size=5))
def test_statistics_do_not_depend_on_the_episodes(parts):
    offset = 1e8
    merged, whole = _Statistics(), np.concatenate(parts) + offset
    for part in parts:
        merged.add(np.array(part) + offset)
    found = merged.describe()
    for name in ("min", "max", "mean", "std"):
        assert np.allclose(found[name], getattr(whole, name)(), atol=1e-6)
    assert found["count"] == [len(whole)]


def test_a_folder_is_written_whole_or_not_at_all(monkeypatch):
    _, buffer = collected(PassiveTMaze(num_envs=2, length=4))
    before = everything_in("replay")
    Path("mine").mkdir()
    Path("mine/thesis").write_text("ten years of work")
    Path("file").write_text("x")
    Path("nowhere").symlink_to("lost")
    for path in ("mine", "file", "nowhere", "replay"):
        with pytest.raises(ValueError, match=rf"{path} must be new or empty; name another"):
            write_lerobot(path, buffer.storage)
    with monkeypatch.context() as patch:
        patch.setattr("yamame.data.lerobot_export._tasks", lambda task: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_lerobot("out", buffer.storage)
    assert sorted(os.listdir()) == ["file", "mine", "nowhere", "replay"]
    Path("deep/empty").mkdir(parents=True)
    write_lerobot("deep/empty", buffer.storage)
    assert os.listdir("deep") == ["empty"]
    with pytest.raises(ValueError, match="empty must be new or empty"):
        write_lerobot("deep/empty", buffer.storage)
    assert everything_in("replay") == before


def test_what_a_killed_export_has_left_is_no_obstacle():
    _, buffer = collected(PassiveTMaze(num_envs=2, length=4))
    left = Path(f".out.{os.getpid()}.partial")
    left.mkdir()
    write_lerobot("out", buffer.storage)
    write_lerobot("n" * 250, buffer.storage)
    assert sorted(os.listdir()) == sorted([left.name, "out", "n" * 250, "replay"])


WRITTEN = [
    ({"task": 5}, "task must be a text"),
    ({"task": "\ud800"}, "task must be a text"),
    ({"fps": 10**400}, "fps must be in"),
    ({"fps": True}, "fps must be a whole number"),
    ({"source": None}, "source must be a dataset"),
    ({"path": None}, "path must be the path of a folder"),
    ({"path": ""}, "path must name a folder that is not the present one"),
    ({"path": "."}, "path must name a folder that is not the present one"),
    ({"path": "new/.."}, "path must name a folder that is not the present one"),
    ({"path": "../present"}, "path must name a folder that is not the present one"),
    ({"path": "../file/x"}, "x must be a path for a new folder: Not a directory"),
    ({"path": "n" * 300}, "must be a path for a new folder: File name too long"),
    ({"path": "n" * 5000}, "must be a path for a new folder: File name too long"),
    ({"path": "a\0"}, "must be a path for a new folder: embedded null byte"),
    ({"path": "a\ud800"}, r"a\ud800 must be a path for a new folder"),
]


@pytest.mark.parametrize(("changes", "part"), WRITTEN)
def test_wrong_arguments_of_an_export_are_refused_before_it_begins(
    changes, part, tmp_path, monkeypatch
):
    source = MemoryStore([(TensorDict({"x": torch.arange(3)}, [3]), torch.tensor([3]))])
    (tmp_path / "file").write_text("x")
    (tmp_path / "present").mkdir()
    monkeypatch.chdir(tmp_path / "present")
    monkeypatch.setattr("yamame.data.lerobot_export._write", None)
    with pytest.raises(UsageError) as caught:
        write_lerobot(**{"path": "out", "source": source, **changes})
    assert part in str(caught.value)
    assert len(str(caught.value)) < 700
    assert sorted(os.listdir(tmp_path)) == ["file", "present"]
    assert not os.listdir()


def test_what_is_no_whole_episode_is_not_written(once):
    data = once("tmaze")
    trajectory = data.buffer.storage.get([0])[0]

    def refused(change, part):
        changed = trajectory.clone()
        length = torch.tensor([len(changed)])
        change(changed)
        with pytest.raises(ValueError, match=part):
            write_lerobot("out", MemoryStore([(changed.exclude("mask"), length)]))
        assert not os.listdir()

    def no_end(steps):
        steps["next", "terminated"].zero_()
        steps["next", "truncated"].zero_()

    refused(no_end, "ends")
    refused(lambda steps: steps["next", "truncated"].fill_(True), "ends")
    refused(lambda steps: steps["step_index"].add_(3), "first step_index")
    refused(lambda steps: steps["observation"].fill_(float("nan")), "observation.*finite")
    refused(lambda steps: steps.set("x", steps["observation"].bfloat16()), "'x'.*bfloat16")

    def clash(steps):
        steps["x.y"] = steps["x", "y"] = steps["time"]

    refused(clash, "'observation.x.y'.*twice")


# Datasets of others


def cart():
    return TrajectoryFormat(Gym(id="CartPole-v1", num_envs=2))


def steps_of(length, seed=0):
    """Columns of an episode, as a stranger records it."""
    rng = np.random.default_rng(seed)
    done = np.zeros(length, bool)
    done[-1] = True
    return {
        "observation.state": rng.uniform(-0.1, 0.1, (length, 4)).astype(np.float32).tolist(),
        "action": rng.integers(0, 2, length),
        "next.reward": np.arange(1, length + 1, dtype=np.float32),
        "next.done": done,
        "timestamp": np.arange(length, dtype=np.float32) / 30,
        "frame_index": np.arange(length),
        "episode_index": np.full(length, seed),
        "task_index": np.zeros(length, np.int64),
    }


FEATURES = {
    "observation.state": {"dtype": "float32", "shape": [4], "names": ["a", "b", "c", "d"]},
    "action": {"dtype": "int64", "shape": [1], "names": None},
    "observation.images.top": {"dtype": "video", "shape": [480, 640, 3], "names": None},
}


def write_info(folder, **changes):
    content = {
        "codebase_version": "v3.0",
        "robot_type": "cart",
        "chunks_size": 1000,
        "fps": 30,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "features": FEATURES,
        **changes,
    }
    (folder / "meta").mkdir(parents=True, exist_ok=True)
    (folder / "meta/info.json").write_text(json.dumps(content))


def v2(lengths=(4, 1, 3), name="old", change=None, **info):
    """A dataset of version v2.1 with two files per chunk."""
    folder = Path(name)
    path = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    write_info(folder, **{"codebase_version": "v2.1", "chunks_size": 2, "data_path": path, **info})
    lines = []
    for number, length in enumerate(lengths):
        columns = steps_of(length, number)
        if change:
            change(columns)
        file = folder / path.format(episode_chunk=number // 2, episode_index=number)
        file.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.table(columns), file)
        lines.append({"episode_index": number, "tasks": ["balance"], "length": length})
    (folder / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    (folder / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "balance"}\n')
    return folder


def v3(lengths=(4, 1, 3), name="new", change=None, options=None, **info):
    """A dataset of version v3.0 with two episodes per file."""
    folder = Path(name)
    write_info(folder, **info)
    rows = []
    for file, first in enumerate(range(0, len(lengths), 2)):
        numbers = range(first, min(first + 2, len(lengths)))
        parts = [steps_of(lengths[number], number) for number in numbers]
        columns = {}
        for key in parts[0]:
            columns[key] = [value for part in parts for value in list(part[key])]
        if change:
            change(columns)
        path = folder / f"data/chunk-000/file-{file:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.table(columns), path, **(options or {}))
        for number in numbers:
            row = {"episode_index": number, "length": lengths[number], "tasks": ["balance"]}
            rows.append({**row, "data/chunk_index": 0, "data/file_index": file})
    write_episodes(folder, rows)
    return folder


def write_episodes(folder, rows):
    path = folder / "meta/episodes/chunk-000/file-000.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def episodes_of(dataset):
    (store,) = dataset.stores
    return [store.get([number])[0] for number in range(len(dataset))]


@pytest.mark.parametrize("make", [v2, v3])
def test_datasets_of_others_are_read(make, capsys):
    read = episodes_of(lerobot(str(make()), format=cart()))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "read as terminated" in lines[0]
    assert [len(episode) for episode in read] == [5, 2, 4]
    for number, episode in enumerate(read):
        expected = steps_of(len(episode) - 1, number)
        found = episode["observation"][:-1]
        assert np.array_equal(found, np.float32(expected["observation.state"]))
        # No observation follows the last action: the unknown one is zero.
        assert not episode["observation"][-1].any()
        assert episode["action"][:-1].flatten().tolist() == expected["action"].tolist()
        assert episode["next", "reward"][:-1, 0].tolist() == expected["next.reward"].tolist()
        ends = episode["next", "terminated"].flatten()[:-1]
        assert ends.tolist() == expected["next.done"].tolist()
        assert not episode["next", "truncated"].any()


@pytest.mark.parametrize("make", [v2, v3])
def test_ends_can_be_read_as_truncated(make, capsys):
    folder = make(lengths=(4, 2, 3))
    read = episodes_of(lerobot(str(folder), format=cart(), ends="truncated"))
    assert capsys.readouterr().err == ""
    assert [len(episode) for episode in read] == [4, 2, 3]
    for number, episode in enumerate(read):
        expected = steps_of((4, 2, 3)[number], number)["observation.state"]
        assert np.array_equal(episode["observation"], np.float32(expected))
        ends = episode["next", "truncated"].flatten().nonzero().flatten()
        assert ends.tolist() == [len(episode) - 2]
        assert not episode["next", "terminated"].any()
    with pytest.raises(ValueError, match="ends must be one of"):
        lerobot(str(folder), format=cart(), ends="done")


def test_episodes_that_are_not_done_are_truncated_and_flags_count_most():
    def not_done(columns):
        columns["next.done"] = [False] * len(columns["action"])

    read = episodes_of(lerobot(str(v3((3, 3), change=not_done)), format=cart()))
    assert [len(episode) for episode in read] == [3, 3]
    assert all(bool(episode["next", "truncated"][-2]) for episode in read)

    def with_flags(columns):
        # The first episode of each file is terminated.
        columns["next.terminated"] = [frame == 2 for frame in columns["frame_index"]]
        columns["next.terminated"][-1] = False

    folder = v3((3, 3), name="flags", change=with_flags)
    read = episodes_of(lerobot(str(folder), format=cart(), ends="truncated"))
    assert [len(episode) for episode in read] == [4, 3]
    assert bool(read[0]["next", "terminated"][-2])


@pytest.mark.parametrize("has_done", [True, False])
@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_a_column_for_one_kind_of_end_tells_the_other(ends, has_done):
    def with_truncated(columns):
        columns["next.truncated"] = [False] * len(columns["action"])
        columns["next.truncated"][-1] = True
        if not has_done:
            columns.pop("next.done", None)

    folder = v3((3, 3), change=with_truncated)
    first, second = episodes_of(lerobot(str(folder), format=cart(), ends=ends))
    assert [len(first), len(second)] == [4, 3]
    assert first["next", "terminated"].flatten().tolist()[:3] == [False, False, True]
    assert bool(second["next", "truncated"][-2])
    assert not second["next", "terminated"].any()


def test_an_end_within_an_episode_is_refused_beside_other_flags():
    def early(columns):
        columns["next.terminated"] = [False] * len(columns["action"])
        columns["next.done"] = list(columns["next.done"])
        columns["next.done"][1] = True

    with pytest.raises(UsageError, match=r"'next.done' must be false .*true in row \[1\]"):
        lerobot(str(v3((3, 3), change=early)), format=cart())


def test_missing_rewards_and_unused_columns_are_reported(capsys):
    def change(columns):
        del columns["next.reward"], columns["next.done"]
        columns["observation.effort"] = columns["observation.state"]
        columns["note"] = ["good"] * len(columns["action"])
        columns["rewards"] = columns["obs"] = [None] * len(columns["action"])

    read = episodes_of(lerobot(str(v3(change=change)), format=cart()))
    assert not any(episode["next", "reward"].any() for episode in read)
    assert [len(episode) for episode in read] == [5, 2, 4]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "no column next.reward" in lines[1]
    assert "not read: note, observation.effort" in lines[2]


def test_columns_of_all_forms_of_lists_are_read():
    """Lists of fixed or any length, columns in parts, dictionaries and other codecs."""
    forms = (pyarrow.list_(pyarrow.float32()), pyarrow.list_(pyarrow.float64(), 4))
    forms += (pyarrow.large_list(pyarrow.float32()), pyarrow.list_(pyarrow.float32()))
    expected = episodes_of(lerobot(str(v3()), format=cart()))
    for number, form in enumerate(forms):

        def change(columns, form=form):
            columns["observation.state"] = pyarrow.array(columns["observation.state"], form)
            columns["action"] = pyarrow.array(columns["action"], pyarrow.int16())

        options = {"row_group_size": 1 + number, "use_dictionary": number % 2 == 0}
        options |= {"compression": ("zstd", "gzip", "none", "snappy")[number]}
        folder = v3(name=f"form{number}", change=change, options=options)
        for episode, other in zip(
            episodes_of(lerobot(str(folder), format=cart())), expected, strict=True
        ):
            assert torch.equal(episode["observation"], other["observation"])
            assert torch.equal(episode["action"], other["action"])


def test_the_only_observation_can_have_any_name_and_several_have_theirs():
    def renamed(columns):
        columns["observation.position"] = columns.pop("observation.state")

    assert len(lerobot(str(v3(change=renamed)), format=cart())) == 3

    def several(columns):
        state = columns.pop("observation.state")
        columns["observation.joints.left"] = [row[:2] for row in state]
        columns["observation.joints"] = [row[2:] for row in state]

    OBSERVED["robot"] = spaces.Dict(
        {name: spaces.Box(-1, 1, (2,), np.float32) for name in ("joints", "joints.left")}
    )
    folder = v3(name="several", change=several)
    shape = TrajectoryFormat(noise("robot", "choice"))
    first, *_ = episodes_of(lerobot(str(folder), format=shape, indices=True))
    state = np.float32(steps_of(4)["observation.state"])
    assert np.array_equal(first["observation", "joints.left"][:-1], state[:, :2])
    assert np.array_equal(first["observation", "joints"][:-1], state[:, 2:])


def test_several_datasets_are_one_source():
    folders = [str(v2()), str(v3())]
    assert len(lerobot(folders, format=cart())) == 6
    assert len(lerobot("[no][el][dw]", format=cart())) == 6


# Damaged and hostile datasets


def refused(path, *parts, shape=None, **options):
    """Asserts that reading is refused in one line with the parts, and that no file has changed."""
    before = everything_in(".")
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        lerobot(str(path), format=shape or cart(), **options)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message, message
    assert everything_in(".") == before


def reason(path, shape):
    """Why reading is refused; None if it is not."""
    try:
        lerobot(str(path), format=shape)
    except ValueError as error:
        return str(error)
    return None


def test_a_video_that_the_environment_needs_is_named():
    OBSERVED["camera"] = spaces.Dict(
        {
            "state": spaces.Box(-1, 1, (4,), np.float32),
            "images.top": spaces.Box(0, 255, (480, 640, 3), np.uint8),
        }
    )
    shape = TrajectoryFormat(noise("camera", "choice"))
    refused(v3(), "observation.images.top", "video", "file-000.parquet", shape=shape)

    def encoded(columns):
        pictures = [{"bytes": b"png", "path": "x.png"}] * len(columns["action"])
        columns["observation.images.top"] = pictures

    refused(v3(name="b", change=encoded), "observation.images.top", "numbers", shape=shape)


def put(column, row, value):
    def change(columns):
        columns[column] = list(columns[column])
        columns[column][row] = value

    return change


def end_of(column, value):
    """Puts a number at the end of each episode of at least four steps, as in `once`."""

    def change(columns):
        frames = np.array(columns["frame_index"])
        columns[column] = np.where(frames == 3, value, 0)

    return change


def null_of_fixed_size(columns):
    states = [*columns["observation.state"][:-1], None]
    columns["observation.state"] = pyarrow.array(states, pyarrow.list_(pyarrow.float32(), 4))


def drop(column):
    return lambda columns: columns.pop(column)


COLUMNS = [
    (drop("action"), "columns must include 'action', got ["),
    (drop("observation.state"), "observation.state"),
    (drop("episode_index"), "episode_index"),
    (drop("frame_index"), "frame_index"),
    (put("action", 1, None), "'action': row 1"),
    (put("next.reward", 0, float("nan")), "reward"),
    (put("next.reward", 0, 1e30), "reward"),
    (put("action", 0, 7), "action"),
    (put("observation.state", 1, [0.0] * 3), "row 1"),
    (put("observation.state", 1, None), "row 1"),
    (put("observation.state", 1, [0.0, None, 0.0, 0.0]), "row 1"),
    (put("observation.state", 0, [float("inf")] * 4), "observation"),
    (put("frame_index", 2, 1), "'frame_index': row 2"),
    (put("episode_index", 3, 1), "'episode_index': row 3"),
    (put("next.done", 1, True), "'next.done'"),
    (end_of("next.done", 0.5), "'next.done' must be flags, 0 or 1, got 0.5"),
    (end_of("next.done", float("nan")), "'next.done' must be flags, 0 or 1, got nan"),
    (end_of("next.terminated", 7), "'next.terminated' must be flags, 0 or 1, got 7"),
    (end_of("next.truncated", -1), "'next.truncated' must be flags, 0 or 1, got -1"),
    (end_of("next.success", 0.1), "'next.success' must be flags, 0 or 1, got 0.1"),
    (null_of_fixed_size, "'observation.state' must be whole, with a list in every row"),
    (lambda columns: columns.update(action=["left"] * len(columns["action"])), "numbers"),
    (lambda columns: columns.update({"frame_index": columns["observation.state"]}), "frame_index"),
    (lambda columns: columns.update({"next.done": columns["observation.state"]}), "next.done"),
    (lambda columns: columns.update({"next.reward": columns["observation.state"]}), "reward"),
    (
        lambda columns: columns.update(
            {"observation.state": [row[:3] for row in columns["observation.state"]]}
        ),
        "observation",
    ),
]


@pytest.mark.parametrize(("change", "part"), COLUMNS)
@pytest.mark.parametrize("make", [v2, v3])
def test_wrong_columns_are_refused_with_their_place(make, change, part):
    def once(columns):
        if len(columns["action"]) > 3:
            change(columns)

    refused(make(change=once), part, ".parquet")


INFO = [
    ({"codebase_version": "v1.6"}, "codebase_version"),
    ({"codebase_version": 3}, "codebase_version"),
    ({"codebase_version": "v2.999"}, "codebase_version must be v2.0, v2.1 or v3.0"),
    ({"codebase_version": "v3.٣"}, "codebase_version must be v2.0, v2.1 or v3.0"),
    ({"codebase_version": ["v3.0"]}, "codebase_version must be v2.0, v2.1 or v3.0"),
    ({"total_episodes": 10}, "new: episodes must be 10, as in info.json, got 3; download"),
    ({"total_episodes": "3"}, "episodes must be '3', as in info.json"),
    ({"total_frames": 100}, "new: steps must be 100, as in info.json, got 8; download"),
    ({"data_path": "data/\ud800.parquet"}, r"\ud800.parquet is rejected"),
    ({"data_path": "data/" + "x" * 5000}, "too long"),
    ({"data_path": "meta/info.json/x"}, "info.json/x is rejected: it lies below a file"),
    ({"data_path": "data/a\nb\x1b[31m.parquet"}, r"a\nb\x1b[31m.parquet"),
    ({"features": []}, "features"),
    ({"data_path": None}, "data_path"),
    ({"data_path": "../secret/file-{file_index:03d}.parquet"}, "secret"),
    ({"data_path": "/etc/passwd"}, "/etc/passwd"),
    ({"data_path": "data/../../x.parquet"}, "x.parquet"),
    ({"data_path": "data/{file_index.__class__}.parquet"}, "data_path"),
    ({"data_path": "data/{file_index:0999999999d}.parquet"}, "data_path"),
    ({"data_path": "data/{0}.parquet"}, "data_path"),
    ({"data_path": "data/{video_key}.parquet"}, "data_path"),
    ({"data_path": "data/chunk-000/file-{file_index:099d}.parquet"}, "parquet"),
    ({"data_path": ""}, "name of a file"),
    ({"data_path": "data/chunk-000"}, "chunk-000"),
    ({"data_path": "data/\0"}, "name of a file"),
    ({"chunks_size": 0}, "chunks_size"),
    ({"chunks_size": "many"}, "chunks_size"),
    ({"chunks_size": 10**400}, "chunks_size"),
    ({"yamame_format": 99}, "yamame_format must be 1, got 99"),
    ({"yamame_format": True}, "yamame_format must be 1, got True"),
    ({"yamame_format": 1}, "final.parquet"),
]


@pytest.mark.parametrize(("changes", "part"), INFO)
def test_wrong_metadata_are_refused(changes, part):
    refused(v3(**changes), part)


def test_files_that_are_missing_or_no_json_are_refused():
    refused("nothing", "nothing")
    Path("empty").mkdir()
    refused("empty", "meta/info.json")
    for text in ("[", "[]", "[" * 100_000, '{"codebase_version": "v3.0"'):
        folder = v3()
        (folder / "meta/info.json").write_text(text)
        refused(folder, "new/meta/info.json")
        shutil.rmtree(folder)
    folder = v2()
    (folder / "meta/info.json").write_bytes(b"\xff\xfe")
    refused(folder, "info.json", "UTF-8")
    for line in ("{", "3", '{"length": 3}', '{"episode_index": -1, "length": 3}'):
        v2()
        with (folder / "meta/episodes.jsonl").open("a") as file:
            file.write(line + "\n")
        refused(folder, "episodes.jsonl: line 4")
    v2()
    (folder / "meta/episodes.jsonl").write_text('{"episode_index": 1e99, "length": true}')
    refused(folder, "episode_index")
    (folder / "meta/episodes.jsonl").write_text("")
    refused(folder, "episodes")
    (folder / "meta/episodes.jsonl").unlink()
    refused(folder, "episodes.jsonl")
    folder = v3()
    (folder / "data/chunk-000/file-001.parquet").unlink()
    refused(folder, "file-001.parquet")
    shutil.rmtree(folder / "meta/episodes")
    refused(folder, "meta/episodes")


ROW = {"episode_index": 0, "length": 4, "data/chunk_index": 0, "data/file_index": 0}
SECOND = {**ROW, "episode_index": 1, "length": 1}


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        ([{**ROW, "length": 3}, SECOND], "rows"),
        ([{**ROW, "length": 2**62}, {**SECOND, "length": 2**62}], "length"),
        ([{**ROW, "length": 10**8}, SECOND], "rows"),
        ([ROW], "rows"),
        ([ROW, ROW], "episode_index"),
        ([{**ROW, "length": 2}, {**SECOND, "length": 3}], "'episode_index': row 2"),
        ([{**ROW, "episode_index": 1}, {**SECOND, "episode_index": 0}], "'episode_index'"),
        ([{**ROW, "data/file_index": 7}, SECOND], "file-007"),
        ([{**ROW, "data/file_index": -1}, SECOND], "data/file_index"),
        ([{**ROW, "data/file_index": 0.5}, SECOND], "data/file_index"),
        ([{**ROW, "length": 0}, SECOND], "length"),
        ([{"episode_index": 0, "length": 4}], "data/chunk_index"),
        ([{**ROW, "length": "4"}], "length"),
        ([{**ROW, "length": [4]}], None),
    ],
)
def test_wrong_episodes_are_refused(rows, part):
    folder = v3((4, 1))
    write_episodes(folder, rows)
    if part is None:
        rows.append(SECOND)
        write_episodes(folder, [{**row, "length": [4, 4]} for row in rows])
        part = "length"
    refused(folder, part)


@pytest.mark.parametrize("make", [v2, v3])
def test_links_and_pipes_are_refused(make):
    Path("thesis").write_bytes(b"ten years of work")
    shutil.copytree(make(), "elsewhere")
    folder = Path("a")
    for path in sorted(Path("elsewhere").rglob("*")):
        name = path.relative_to("elsewhere")
        for kind in ("link", "pipe", "thesis"):
            shutil.copytree("elsewhere", folder)
            shutil.rmtree(folder / name) if path.is_dir() else (folder / name).unlink()
            if kind == "pipe":
                os.mkfifo(folder / name)
            else:
                (folder / name).symlink_to(path.absolute() if kind == "link" else "../thesis")
            refused(folder, folder)
            shutil.rmtree(folder)


def test_a_column_that_is_there_twice_is_counted():
    values = pyarrow.array([1, 2])
    parquet.write_table(pyarrow.table([values, values], names=["x", "x"]), "a.parquet")
    with ParquetFile(Path("a.parquet"), Sizes()) as file:
        with pytest.raises(UsageError, match="columns of the name 'x' must be 1, got 2"):
            file.read(["x"])
        with pytest.raises(UsageError, match=r"columns must include 'y', got \['x', 'x'\]"):
            file.read(["y"])


def write_zeros(path, num_rows, width=None, **options):
    """A column of many zeros in a file of some kilobytes."""
    values = pyarrow.array(np.zeros(num_rows * (width or 1), np.float64))
    if width:
        values = pyarrow.FixedSizeListArray.from_arrays(values, width)
    parquet.write_table(pyarrow.table({"x": values}), path, compression="zstd", **options)


@pytest.mark.parametrize("width", [None, 2**20])
def test_columns_far_larger_than_their_file_are_refused_before_they_are_read(width, monkeypatch):
    monkeypatch.setattr("yamame.data.sizes._ALWAYS_READ", 2**20)
    write_zeros("a.parquet", 2**20 if width is None else 2, width)
    assert Path("a.parquet").stat().st_size < 2**14
    with ParquetFile(Path("a.parquet"), Sizes()) as file:
        monkeypatch.setattr(file._parquet, "read", None)
        with pytest.raises(ValueError, match=r"a.parquet: arrays of 0.0 GiB must not be stored"):
            file.read(["x"])


def test_pages_count_whatever_the_metadata_of_the_file_declare():
    """The number of values in the footer is changed to 1, that of the page stays."""
    write_zeros("a.parquet", 2, 2**16, write_statistics=False, use_dictionary=False)
    content = Path("a.parquet").read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    # Numbers of Thrift's compact protocol: zigzag, seven bits per byte.
    declared = bytes([0x80, 0x80, 0x10])
    changed = content[:footer] + content[footer:].replace(declared, bytes([0x82, 0x80, 0x00]))
    Path("a.parquet").write_bytes(changed)
    assert parquet.read_metadata("a.parquet").row_group(0).column(0).num_values == 1
    with open("a.parquet", "rb") as file:
        assert count_bytes(file, ["x"]) >= 2**17 * 8


@pytest.mark.parametrize("make", ["v2", "v3", "ours"])
def test_any_damage_is_told_in_one_line(make):
    if make == "ours":
        _, _, folder = written(Gym(id="CartPole-v1", num_envs=2))
    else:
        folder = {"v2": v2, "v3": v3}[make]()
    shape = cart()
    expected = len(lerobot(str(folder), format=shape))
    rng = random.Random(make)
    used = ("info.json", "episodes.jsonl", "final.parquet")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = [path for path in files if path.name in used or "file-" in str(path)]
    files += folder.glob("data/*/episode*")
    num_refused = 0
    for number in range(150):
        file = files[number % len(files)]
        content = file.read_bytes()
        place = rng.randrange(len(content))
        changed = bytearray(content)
        if number // len(files) % 2:
            changed = changed[:place]
        else:
            changed[place] ^= 1 << rng.randrange(8)
        file.write_bytes(changed)
        message = reason(folder, shape)
        if message is not None:
            num_refused += 1
            assert "\n" not in message
            assert str(folder) in message
        file.write_bytes(content)
    assert num_refused > 60
    assert len(lerobot(str(folder), format=shape)) == expected


def test_many_episodes_in_a_few_bytes_are_refused_at_once(monkeypatch):
    """Equal numbers take a few bytes, but each was an object once."""
    folder = v3()
    number = 3_000_000
    zeros = np.zeros(number, np.int64)
    columns = {"episode_index": zeros, "length": zeros + 1}
    columns |= {"data/chunk_index": zeros, "data/file_index": zeros}
    path = folder / "meta/episodes/chunk-000/file-000.parquet"
    parquet.write_table(pyarrow.table(columns), path, compression="zstd", row_group_size=number)
    assert path.stat().st_size < 2**16
    begin = time.process_time()
    refused(folder, "episode_index must be of one episode")
    assert time.process_time() - begin < 5
    monkeypatch.setattr("yamame.data.lerobot_files._MOST_EPISODES", number - 1)
    monkeypatch.setattr(ParquetFile, "read_numbers", None)
    refused(folder, "episodes must be at most 2999999, got 3000000")


def footer_with(path, old, new):
    """Replaces the number of rows that a file declares, in Thrift's compact protocol."""

    def encoded(number):
        number, digits = 2 * number, []
        while number:
            digits.append(number % 128 | 128)
            number //= 128
        # The field of a number of 64 bits, and the one of a list after it.
        return bytes([0x16, *digits[:-1], digits[-1] & 127, 0x19])

    content = path.read_bytes()
    place = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[place:-8]
    assert footer.count(encoded(old)) == 1
    footer = footer.replace(encoded(old), encoded(new))
    path.write_bytes(content[:place] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


@pytest.mark.parametrize("claimed", [10**8, 5 * 10**9])
def test_rows_that_a_file_only_declares_are_not_allocated(claimed):
    folder = v3((1234,))
    footer_with(folder / "data/chunk-000/file-000.parquet", 1234, claimed)
    # Episodes of a sum of this many steps.
    lengths = [10**8] * (claimed // 10**8)
    same_file = {"data/chunk_index": 0, "data/file_index": 0}
    write_episodes(
        folder,
        [{"episode_index": n, "length": length, **same_file} for n, length in enumerate(lengths)],
    )
    tracemalloc.start()
    refused(folder, f"rows of column 'action' must be {claimed}, as its metadata declare, got 1234")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**26


def test_ours_with_an_episode_twice_among_the_last_observations_is_refused():
    shape, _, folder = written(PassiveTMaze(num_envs=2, length=4))
    path = folder / "meta/final.parquet"
    table = parquet.read_table(path)
    parquet.write_table(pyarrow.concat_tables([table, table.slice(1, 1)]), path)
    refused(folder, "final.parquet: episodes with several rows must have one, got [1]", shape=shape)


def test_ours_without_a_last_observation_is_refused():
    shape, _, folder = written(PassiveTMaze(num_envs=2, length=4))
    path = folder / "meta/final.parquet"
    table = parquet.read_table(path)
    for changed, part in (
        (table.slice(1), "[0]"),
        (table.slice(0, 0), "[0, 1, 2]"),
        (table.drop_columns(["observation.state"]), "observation.state"),
        (table.drop_columns(["trial_start"]), "trial_start"),
    ):
        parquet.write_table(changed, path)
        refused(folder, "final.parquet", part, shape=shape)


def test_pyarrow_is_named_if_it_is_missing(monkeypatch):
    import sys

    folder = v3()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(folder, "pyarrow must be installed, with pip install 'yamame[data]'")
