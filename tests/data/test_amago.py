"""Trajectory files of AMAGO 3: read as its replay holds them, or refused in one line."""

import os
import pickle
import zipfile
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from yamame.data import TrajectoryFormat, amago
from yamame.replay import Window
from yamame_envs import Gym

RECORDED = Path(__file__).parents[1] / "deploy" / "amago"
SPACES = {
    "gru_discrete": spaces.Discrete(4),
    "gru_bits": spaces.MultiBinary(3),
    "transformer_box": spaces.Box(np.float32([-1, 10]), np.float32([3, 20])),
}


class Noise(gymnasium.Env):
    """The environment of the recordings, with bounds of actions of its own."""

    observation_space = spaces.Dict(
        b=spaces.Box(-100.0, 100.0, (3,), np.float32),
        a=spaces.Box(-100.0, 100.0, (2, 1), np.float32),
    )

    def __init__(self, case):
        self.action_space = SPACES[case]

    def reset(self, *, seed=None, options=None):
        return {"b": np.zeros(3, "f4"), "a": np.zeros((2, 1), "f4")}, {}

    def step(self, action):
        return self.reset()[0], 0.0, False, False, {}


@pytest.fixture(scope="module", autouse=True)
def _registered():
    for case in SPACES:
        gymnasium.register(f"Files{case}-v0", entry_point=Noise, kwargs={"case": case})
    yield
    for case in SPACES:
        gymnasium.registry.pop(f"Files{case}-v0")


def shape(case, time_limit=None):
    return TrajectoryFormat(Gym(id=f"Files{case}-v0", num_envs=1, time_limit=time_limit))


def arrays_of(case="gru_discrete"):
    with np.load(RECORDED / case / "trajectory.npz") as file:
        return {name: file[name] for name in file.files}


def written(place, arrays, name="one.npz"):
    np.savez(place / name, **arrays)
    return str(place / name)


def whole(dataset, number=0):
    (store,) = dataset.stores
    return store.get([number])[0]


@pytest.mark.parametrize("case", SPACES)
def test_all_entries_are_those_of_the_file(case):
    """The recordings are whole episodes of 60 steps that were cut off by their limit."""
    arrays = arrays_of(case)
    read = whole(amago(str(RECORDED / case / "trajectory.npz"), format=shape(case)))
    length = len(arrays["time_idxs"])
    assert len(read) == length == 61
    assert read["mask"].all()
    for key in ("a", "b"):
        assert np.array_equal(read["observation", key], arrays[f"_OBS_KEY_{key}"])
    assert np.array_equal(read["step_index"], arrays["time_idxs"])
    context = torch.cat([read["prev_reward"], read["prev_action"]], -1)
    assert np.allclose(context, arrays["rl2s"], atol=1e-6)
    assert arrays["rl2s"].any(0).all()
    assert np.array_equal(read["next", "reward"][:-1], arrays["rews"])
    assert read["is_init"].flatten().tolist() == [True] + 60 * [False]
    assert not read["next", "terminated"].any()
    assert read["next", "truncated"].flatten().nonzero().flatten().tolist() == [59]

    actions = read["action"][:-1]
    if case == "gru_discrete":
        assert np.array_equal(actions, arrays["actions"].argmax(-1))
    elif case == "gru_bits":
        assert np.array_equal(actions, arrays["actions"])
    else:
        scaled = np.float32([1, 15]) + arrays["actions"] * np.float32([2, 5])
        assert np.allclose(actions, scaled, atol=1e-5)


def test_a_terminal_step_ends_the_task(tmp_path):
    arrays = arrays_of()
    arrays["dones"][-1] = True
    read = whole(amago(written(tmp_path, arrays), format=shape("gru_discrete")))
    assert read["next", "terminated"].flatten().nonzero().flatten().tolist() == [59]
    assert not read["next", "truncated"].any()


def test_a_part_of_an_episode_is_a_window_of_it(tmp_path):
    """All entries are those of the whole episode, also in a window; the memory is not fresh."""
    arrays = arrays_of()
    first = {"_OBS_KEY_a": 61, "_OBS_KEY_b": 61, "time_idxs": 61, "rl2s": 61}
    cuts = {}
    for part, (begin, end) in enumerate(((0, 25), (25, 60))):
        cut = {}
        for name, array in arrays.items():
            cut[name] = array[begin : end + (name in first)]
        cuts[part] = written(tmp_path, cut, f"{part}.npz")
    form = shape("gru_discrete", time_limit=60)
    expected = whole(amago(written(tmp_path, arrays, "whole.npz"), format=form))
    dataset = amago([cuts[0], cuts[1]], format=form)
    assert dataset.num_timesteps == 26 + 36

    second = whole(dataset, 1)
    for key in expected.keys(True, True):
        assert torch.equal(second[key], expected[key][25:]), key
    assert second["time"][0] == 25 / 60
    assert not second["is_init"].any()
    assert second["prev_action"][0].sum() == 1
    end = whole(dataset, 0)["next", "truncated"].flatten()
    assert end.nonzero().flatten().tolist() == [24]

    windows = amago(cuts[1], format=form, transform=Window(8)).sample(4)
    assert windows["step_index"].min() >= 25
    assert windows["mask"].sum(1).flatten().tolist() == 4 * [9]


def test_folders_and_unused_observations(tmp_path, capsys):
    arrays = arrays_of()
    (tmp_path / "buffer" / "fifo").mkdir(parents=True)
    (tmp_path / "buffer" / "protected").mkdir()
    written(tmp_path / "buffer" / "fifo", arrays)
    written(tmp_path / "buffer" / "protected", arrays)
    np.savez_compressed(tmp_path / "buffer" / "small.npz", **arrays, _OBS_KEY_extra=np.ones(61))
    dataset = amago(str(tmp_path / "buffer"), format=shape("gru_discrete"))
    assert len(dataset) == 3
    assert "not read: extra" in capsys.readouterr().err


class Evil:
    def __reduce__(self):
        return os.mkdir, ("hacked",)


def without(name):
    def change(arrays):
        del arrays[name]

    return change


def with_array(name, array):
    def change(arrays):
        arrays[name] = array

    return change


def with_value(name, place, value):
    def change(arrays):
        arrays[name] = arrays[name].astype(np.float64)
        arrays[name][place] = value

    return change


MANY = np.ones((60, 4), np.float32)
CHANGES = [
    (without("rews"), "rews"),
    (without("time_idxs"), "time_idxs"),
    (without("_OBS_KEY_a"), "'observations'"),
    (with_array("_OBS_KEY_a", np.ones((61, 2, 2))), "'a'"),
    (with_array("_OBS_KEY_a", np.ones((60, 2, 1))), "_OBS_KEY_a"),
    (with_array("_OBS_KEY_a", np.float32(1)), "_OBS_KEY_a"),
    (with_value("_OBS_KEY_b", (3, 0), np.nan), "'b'"),
    (with_array("actions", np.array([Evil()] * 60, object)), "Python objects"),
    (with_array("_OBS_KEY_a", np.array([[Evil()]] * 61, object)), "Python objects"),
    (with_array("rl2s", np.array([["x"] * 5] * 61)), "rl2s"),
    (with_array("actions", MANY), "one-hot"),
    (with_array("actions", MANY[:, :3]), "'actions'"),
    (with_array("actions", MANY[:0]), "'actions'"),
    (with_value("actions", (0, 0), np.nan), "one-hot"),
    (with_array("dones", np.ones((60, 1), bool)), "dones"),
    (with_value("time_idxs", 5, 7), "time_idxs"),
    (with_value("time_idxs", slice(None), -1), "time_idxs"),
    (with_value("time_idxs", 0, np.inf), "time_idxs"),
    (with_value("time_idxs", slice(None), np.nan), "time_idxs"),
    (with_array("time_idxs", np.arange(61.0)[:, None] + 0.5), "time_idxs"),
    (with_array("time_idxs", np.arange(61)[:, None] + 2**62), "time_idxs"),
    (with_array("time_idxs", np.arange(61)[:, None] + 2**31), "time_idxs"),
    (with_value("dones", -1, 0.5), "dones"),
    (with_value("dones", -1, np.nan), "dones"),
    (with_value("dones", -1, -1.0), "dones"),
    (with_value("rews", 3, np.nan), "reward"),
    (with_value("rews", 3, 1e30), "reward"),
    (with_value("rl2s", (0, 0), np.nan), "rl2s"),
    (with_value("rl2s", (0, 0), 1e30), "rl2s"),
    (with_array("rews", np.zeros((0, 1))), "steps"),
    (with_array("rews", np.float32(3)), "steps"),
]


def refused(path, *parts, case="gru_discrete", **options):
    before = sorted(Path.cwd().rglob("*"))
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        amago(path, format=shape(case, **options))
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message, message
    assert sorted(Path.cwd().rglob("*")) == before


@pytest.mark.parametrize(("change", "part"), CHANGES)
def test_arrays_that_do_not_fit_are_refused(tmp_path, monkeypatch, change, part):
    monkeypatch.chdir(tmp_path)
    arrays = arrays_of()
    change(arrays)
    refused(written(tmp_path, arrays), part, "one.npz")


def test_numbers_of_a_box_out_of_range_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arrays = arrays_of("transformer_box")
    arrays["actions"][4, 1] = 1.5
    refused(written(tmp_path, arrays), "[-1, 1]", case="transformer_box")


def test_an_episode_that_is_too_long_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arrays = arrays_of()
    refused(written(tmp_path, arrays), "at most 59", time_limit=59)
    arrays["time_idxs"] += 2**30
    refused(written(tmp_path, arrays), "at most 60", time_limit=60)


def test_pickles_are_refused_and_not_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.traj").write_bytes(pickle.dumps(Evil()))
    remedy = ".freeze().to_dict()"
    refused("one.traj", "one.traj", "pickle", remedy)
    written(tmp_path, arrays_of())
    refused(".", "one.traj", remedy)


def test_damaged_files_and_links_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = Path(written(tmp_path, arrays_of())).read_bytes()
    for name, damaged in (("half", content[: len(content) // 2]), ("text", b"none"), ("no", b"")):
        Path(f"{name}.npz").write_bytes(damaged)
        refused(f"{name}.npz", name)
    refused("nowhere.npz", "nowhere.npz")
    (tmp_path / "empty").mkdir()
    refused("empty", "empty")
    os.mkfifo(tmp_path / "pipe.npz")
    refused("pipe.npz", "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link.npz").symlink_to(tmp_path / "one.npz")
    refused("folder", "link")


def test_arrays_larger_than_their_file_are_refused(tmp_path, monkeypatch):
    """A header declares a terabyte that is not there."""
    monkeypatch.chdir(tmp_path)
    arrays = arrays_of()
    path = written(tmp_path, arrays)
    with zipfile.ZipFile(path, "a") as archive, archive.open("_OBS_KEY_z.npy", "w") as file:
        description = {"descr": "<f8", "fortran_order": False, "shape": (2**37,)}
        np.lib.format.write_array_header_1_0(file, description)
    refused(path, "_OBS_KEY_z")


def test_any_damage_of_a_file_is_told_in_one_line(tmp_path):
    content = Path(written(tmp_path, arrays_of())).read_bytes()
    generator = np.random.default_rng(0)
    form = shape("gru_discrete")
    damaged = tmp_path / "damaged.npz"
    messages = []
    for trial in range(40):
        changed = bytearray(content)
        for place in generator.integers(len(content), size=4):
            changed[place] ^= 1 << (trial % 8)
        damaged.write_bytes(bytes(changed))
        try:
            amago(str(damaged), format=form)
        except ValueError as error:
            messages.append(str(error))
    assert len(messages) > 20
    for message in messages:
        assert "\n" not in message
        assert "damaged.npz" in message
