"""Files of strangers, damaged files and odd episodes: read without an effect on any file, or
refused in one line with the name of the file.
"""

import json
import os
import random
import shutil
import zipfile
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict
from yamame.data import TrajectoryFormat, hdf5, minari, npz, runs, torchrl
from yamame.data.hdf5_files import count_all, opened
from yamame.data.sizes import Sizes
from yamame.data.tensordict_files import read_folder
from yamame.replay import TrajectoryReplayBuffer, pack
from yamame_envs import Gym

KEY = b"my own words, ten years of work\n"


@pytest.fixture(scope="module")
def shape():
    return TrajectoryFormat(Gym(id="CartPole-v1", num_envs=2))


def episode(num_steps, seed=0, *, truncated=False):
    """Arrays of one episode."""
    rng = np.random.default_rng(seed)
    ends = np.zeros(num_steps, bool)
    ends[num_steps - 1 :] = True
    return {
        "observations": rng.uniform(-0.1, 0.1, (num_steps + 1, 4)).astype(np.float32),
        "actions": rng.integers(0, 2, num_steps),
        "rewards": np.ones(num_steps),
        "terminated": ends & (not truncated),
        "truncated": ends & truncated,
    }


def rollout(*num_steps):
    """The same as a rollout of TorchRL."""
    made = [episode(num, seed) for seed, num in enumerate(num_steps)]

    def joined(cut):
        return torch.from_numpy(np.concatenate([cut(arrays) for arrays in made]))

    done = joined(lambda arrays: arrays["terminated"])[:, None]
    following = {
        "observation": joined(lambda arrays: arrays["observations"][1:]),
        "reward": joined(lambda arrays: arrays["rewards"][:, None]).float(),
        "terminated": done,
        "done": done,
    }
    steps = {
        "observation": joined(lambda arrays: arrays["observations"][:-1]),
        "action": joined(lambda arrays: arrays["actions"]),
        "next": following,
    }
    return TensorDict(steps, [sum(num_steps)])


def write_hdf5(path, *num_steps):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for number, num in enumerate(num_steps):
            for name, array in episode(num, number).items():
                file[f"episode_{number}/{name}"] = array
    return str(path)


def write_minari(*num_steps):
    """The folder of a dataset in Minari's format."""
    library = pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer

    names = {"terminated": "terminations", "truncated": "truncations"}
    buffers = []
    for number, num in enumerate(num_steps):
        arrays = {names.get(key, key): array for key, array in episode(num, number).items()}
        buffers.append(EpisodeBuffer(id=number, **arrays))
    made = gymnasium.make("CartPole-v1")
    spaces = {"observation_space": made.observation_space, "action_space": made.action_space}
    author = {"author": "a", "author_email": "a@b.c", "code_permalink": "a", "algorithm_name": "a"}
    library.create_dataset_from_buffers("test/cart-v0", buffers, **spaces, **author)
    return Path(os.environ["MINARI_DATASETS_PATH"]) / "test" / "cart-v0"


@pytest.fixture(autouse=True)
def _minari_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.chdir(tmp_path)


def everything_in(folder):
    """Contents and times of all files, and targets of links."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_symlink():
            found[path] = os.readlink(path)
        elif path.is_file():
            found[path] = (path.read_bytes(), path.stat().st_mtime_ns)
    return found


def refused(read, *parts):
    """Asserts that reading is refused in one line with the parts, and that no file has changed."""
    before = everything_in(".")
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read()
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message, message
    assert everything_in(".") == before
    return message


def lengths(dataset):
    (store,) = dataset.stores
    return store.lengths.tolist()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("num_steps", [(1,), (1, 1, 1), (4, 1, 3)])
def test_episodes_of_one_step_are_read_everywhere(num_steps, shape, tmp_path):
    expected = [num + 1 for num in num_steps]
    for number, num in enumerate(num_steps):
        np.savez(f"{number}.npz", **episode(num, number))
    assert lengths(npz("*.npz", format=shape)) == expected

    made = [episode(num, number) for number, num in enumerate(num_steps)]
    flat = {key: np.concatenate([arrays[key] for arrays in made]) for key in made[0]}
    for name, cut in (("observations", slice(None, -1)), ("next_observations", slice(1, None))):
        flat[name] = np.concatenate([arrays["observations"][cut] for arrays in made])
    np.savez("flat", **flat)
    assert lengths(npz("flat.npz", format=shape)) == expected
    assert lengths(hdf5(write_hdf5("a.h5", *num_steps), format=shape)) == expected
    write_minari(*num_steps)
    assert lengths(minari("test/cart-v0", format=shape)) == expected

    steps = rollout(*num_steps)
    steps.memmap("steps")
    assert lengths(torchrl(steps, format=shape)) == expected
    assert lengths(torchrl("steps", format=shape)) == expected
    buffer = TrajectoryReplayBuffer("replay", capacity=1000, batch_size=2)
    (timesteps, real) = shape.trajectories(rollout(*num_steps), "a test")[0]
    ends = real.cumsum(0).tolist()
    for first, end in zip([0, *ends[:-1]], ends, strict=True):
        part = timesteps[first:end].unsqueeze(0)
        buffer.extend(part.set("mask", torch.ones(*part.shape, 1, dtype=torch.bool)))
    assert lengths(runs("replay", format=shape)) == expected


def test_episodes_without_steps_are_left_out_with_a_line(shape, capsys):
    assert lengths(hdf5(write_hdf5("a.h5", 4, 0, 2, 0), format=shape)) == [5, 3]
    (line,) = capsys.readouterr().err.splitlines()
    assert "a.h5: episode_1" in line
    assert "2 such" in line
    for name, change in (("zero", {}), ("flat", {"observations": np.zeros((1, 4), np.float32)})):
        np.savez(name, **episode(1 if change else 0, truncated=True) | change)
        refused(lambda name=name: npz(f"{name}.npz", format=shape), f"{name}.npz", "next_observ")
    refused(lambda: torchrl(rollout(0), format=shape), "steps")


@pytest.mark.parametrize("size", [1e13, 1e30, -1e30, np.inf, np.nan, 1e300])
def test_rewards_that_no_loss_can_be_computed_of_are_refused(size, shape, capsys):
    np.savez("a", **episode(3) | {"rewards": np.array([1.0, size, 0.0])})
    refused(lambda: npz("a.npz", format=shape), "a.npz", "reward")
    steps = rollout(3)
    steps["next", "reward"] = steps["next", "reward"].double()
    steps["next", "reward"][1] = size
    refused(lambda: torchrl(steps, format=shape), "reward")
    assert capsys.readouterr().err == ""


def test_large_rewards_are_reported(shape, capsys):
    for size, num_lines in ((1e5, 0), (1e8, 1)):
        np.savez("a", **episode(3) | {"rewards": np.array([1.0, -size, 0.0])})
        npz("a.npz", format=shape)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == num_lines
        assert all("1e+08" in line and "reward_multiplier" in line for line in lines)


@pytest.mark.parametrize("value", [0.5, np.nan, 2.0, -1.0, np.inf])
@pytest.mark.parametrize("key", ["terminated", "truncated", "success"])
def test_flags_that_are_neither_0_nor_1_are_refused(key, value, shape):
    flags = np.array([0.0, 0.0, value])
    np.savez("a", **episode(3) | {key: flags})
    refused(lambda: npz("a.npz", format=shape), "a.npz", repr(key), value)
    # One flag may stand for the whole episode.
    np.savez("a", **episode(3) | {key: flags[-1:]})
    refused(lambda: npz("a.npz", format=shape), "a.npz", repr(key), value)
    path = write_hdf5("a.h5", 3)
    with pytest.importorskip("h5py").File(path, "a") as file:
        if key in file["episode_0"]:
            del file[f"episode_0/{key}"]
        file[f"episode_0/{key}"] = flags
    refused(lambda: hdf5(path, format=shape), "a.h5", repr(key), value)
    steps = rollout(3)
    end = "done" if key == "success" else key
    steps["next", end] = torch.from_numpy(flags).unsqueeze(-1)
    refused(lambda: torchrl(steps, format=shape), repr(end), value)


# Folders of TensorDicts


def test_a_folder_is_never_written_to(shape):
    rollout(4, 2).memmap("steps")
    for path in Path("steps").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = everything_in("steps")
    steps = read_folder("steps", Sizes())
    # Changes of what is read stay in memory.
    steps["next", "reward"].zero_()
    steps["observation"].add_(1)
    assert len(torchrl("steps", format=shape)) == 2
    assert everything_in("steps") == before


@pytest.mark.parametrize("size", [0, 1, 95])
def test_a_file_that_is_too_short_stays_as_it_is(size, shape):
    rollout(4, 2).memmap("steps")
    Path("steps/observation.memmap").write_bytes(KEY[:1] * size)
    refused(lambda: torchrl("steps", format=shape), "observation.memmap", size, "96")
    Path("steps/observation.memmap").unlink()
    refused(lambda: torchrl("steps", format=shape), "observation.memmap")
    Path("steps/observation.memmap").write_bytes(bytes(96))
    Path("steps/next/reward.memmap").write_bytes(b"")
    refused(lambda: torchrl("steps", format=shape), "next/reward.memmap", 24)


@pytest.mark.parametrize("kind", ["link", "link to a folder", "pipe", "meta", "hard"])
def test_links_and_pipes_in_a_folder_are_refused(kind, shape):
    rollout(4, 2).memmap("steps")
    Path("thesis").write_bytes(KEY * 100)
    path = Path("steps/next/reward.memmap")
    if kind == "meta":
        path = Path("steps/next/meta.json")
    elif kind == "link to a folder":
        shutil.move("steps/next", "elsewhere")
        path = Path("steps/next")
    if path.exists():
        path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "hard":
        os.link("thesis", path)
        # It is a file as any other, and only read.
        before = everything_in(".")
        steps = read_folder("steps", Sizes())
        steps["next", "reward"].zero_()
        assert everything_in(".") == before
        return
    else:
        path.symlink_to(Path("elsewhere" if "folder" in kind else "thesis").absolute())
    refused(lambda: torchrl("steps", format=shape), path)


def test_folders_of_all_dtypes_and_forms_are_read_as_tensordict_reads_them():
    dtypes = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
    dtypes += [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    torch.manual_seed(0)
    values = {str(dtype): (torch.rand(3, 2) * 9).to(dtype) for dtype in dtypes}
    names = ("a/b", "..", ".", "%", "a b", "ä", "a.b", "*")
    values |= {name: torch.rand(3) for name in names}
    values |= {"deep": {"er": {"x": torch.rand(3, 1)}, "empty": {}}, "none": torch.zeros(3, 0)}
    steps = TensorDict(values, [3])
    steps.memmap("steps")
    read = read_folder("steps", Sizes())
    assert set(read.keys(True, True)) == set(steps.keys(True, True))
    for key in steps.keys(True, True):
        assert torch.equal(read[key], steps[key]), key
        assert read[key].dtype == steps[key].dtype

    steps.set("note", NonTensorData("text", batch_size=[3]))
    steps.memmap("noted")
    assert set(read_folder("noted", Sizes()).keys()) == set(values)
    parts = [TensorDict({"x": torch.full((2,), number)}, []) for number in range(12)]
    LazyStackedTensorDict(*parts).memmap("stack")
    assert read_folder("stack", Sizes())["x"][:, 0].tolist() == list(range(12))


META = [
    ("dtype", "torch.complex64"),
    ("dtype", "torch.load"),
    ("dtype", None),
    ("dtype", ["torch.float32"]),
    ("shape", [-6, -4]),
    ("shape", [2**40, 2**40]),
    ("shape", [6.0, 4]),
    ("shape", "6"),
    ("shape", None),
    ("is_nested", True),
    ("type", "TensorDict"),
    ("type", "NonTensorData"),
]


@pytest.mark.parametrize(("name", "value"), META)
def test_wrong_descriptions_of_tensors_are_refused(name, value, shape):
    rollout(4, 2).memmap("steps")
    meta = json.loads(Path("steps/meta.json").read_text())
    meta["observation"][name] = value
    Path("steps/meta.json").write_text(json.dumps(meta))
    refused(lambda: torchrl("steps", format=shape), "steps")


@pytest.mark.parametrize(
    "text", ["", "[", "[1]", "null", "[" * 10**5, '{"shape": [7]}', '{"_type": "os.system"}']
)
def test_wrong_descriptions_of_folders_are_refused(text, shape):
    rollout(4, 2).memmap("steps")
    Path("steps/next/meta.json").write_text(text)
    refused(lambda: torchrl("steps", format=shape), "steps")


@pytest.mark.parametrize("kind", ["link", "pipe", "link to a folder"])
def test_links_and_pipes_in_a_run_are_refused(kind, shape):
    buffer = TrajectoryReplayBuffer("run/replay", capacity=1000, batch_size=2)
    steps = torch.zeros(1, 3, 1, dtype=torch.bool)
    buffer.extend(TensorDict({"is_init": steps, "mask": ~steps}, [1, 3]))
    path = Path("run/replay") if "folder" in kind else sorted(Path("run/replay").iterdir())[0]
    shutil.move(path, "elsewhere")
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(Path("elsewhere").absolute())
    refused(lambda: runs("run", format=shape), path)


# Sizes


def test_small_files_of_huge_arrays_are_refused_before_they_are_read(shape, tmp_path):
    arrays = episode(3)
    np.savez("bomb", **arrays)
    with zipfile.ZipFile("bomb.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"zeros_{number}.npy", npy((2**29,), "|u1", bytes(2**20)))
            # As if it had been written as a whole.
            archive.infolist()[-1].file_size = 2**29
    refused(lambda: npz("bomb.npz", format=shape), "bomb.npz", "1.5 GiB")

    path = write_hdf5("bomb.h5", 3)
    with pytest.importorskip("h5py").File(path, "a") as file:
        del file["episode_0/observations"]
        file.create_dataset("episode_0/observations", (2**27, 4), "f4")
    refused(lambda: hdf5(path, format=shape), "bomb.h5", "2.0 GiB")

    rollout(4, 2).memmap("steps")
    meta = json.loads(Path("steps/meta.json").read_text())
    meta["observation"]["shape"] = [6, 4, 2**27]
    Path("steps/meta.json").write_text(json.dumps(meta))
    os.truncate("steps/observation.memmap", 6 * 4 * 2**29)
    with pytest.raises(ValueError, match=r"observation.memmap: arrays of 12.0 GiB"):
        torchrl("steps", format=shape)


def test_sizes_of_many_files_are_summed():
    sizes = Sizes()
    for _ in range(10):
        sizes.add("a", 100 * 2**20, 2**10)
    with pytest.raises(ValueError, match="b: arrays of 1"):
        sizes.add("b", 100 * 2**20, 2**10)
    sizes = Sizes()
    for _ in range(1000):
        # Data without much compression may have any size.
        sizes.add("a", 2**30, 2**26)


# Files of NumPy and HDF5


@pytest.mark.parametrize("read", [npz, hdf5])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "empty"])
def test_what_is_no_regular_file_is_refused(read, kind, shape):
    if read is hdf5:
        pytest.importorskip("h5py")
    suffix = read.__name__
    if kind == "link":
        Path("folder").mkdir()
        np.savez("folder/other.npz", **episode(3))
        target = "folder/other.npz" if read is npz else write_hdf5("folder/other.hdf5", 3)
        # One to a file beside it, such as the latest of several, stays within the folder.
        Path(f"folder/a.{suffix}").symlink_to(Path(target).absolute())
        assert lengths(read(f"folder/a.{suffix}", format=shape)) == [4]
        Path(f"a.{suffix}").symlink_to(target)
        Path(target).rename(f"other.{suffix}")
        Path(f"folder/a.{suffix}").unlink()
        Path(f"folder/a.{suffix}").symlink_to(Path(f"other.{suffix}").absolute())
        refused(lambda: read("folder/*", format=shape), f"folder/a.{suffix}")
        Path(f"a.{suffix}").unlink()
        Path(f"a.{suffix}").symlink_to("nothing")
    elif kind == "pipe":
        os.mkfifo(f"a.{suffix}")
    elif kind == "folder":
        Path(f"a.{suffix}").mkdir()
    else:
        Path(f"a.{suffix}").touch()
    refused(lambda: read(f"a.{suffix}", format=shape), f"a.{suffix}")


def with_member(name, content):
    np.savez("a", **{key: array for key, array in episode(3).items() if key != name})
    with zipfile.ZipFile("a.npz", "a") as archive:
        archive.writestr(f"{name}.npy", content)


def npy(shape, dtype="<f8", data=b""):
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape}) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + data


@pytest.mark.parametrize(
    "content",
    [
        npy((2**50,)),
        npy((3,), data=bytes(23)),
        npy((3,), data=bytes(25)),
        npy((-3,), data=bytes(24)),
        npy((3,), "|O", b"cos\nsystem\n(S'touch x'\ntR."),
        npy((3,), [("a", "<f8")], bytes(24)),
        npy((3,), "<U2", bytes(24)),
        b"\x93NUMPY\x09\x00",
        b"",
    ],
    ids=range(9),
)
def test_wrong_members_of_an_archive_are_refused(content, shape):
    with_member("rewards", content)
    refused(lambda: npz("a.npz", format=shape), "a.npz")
    assert not Path("x").exists()


def test_other_members_of_an_archive_are_named(shape, capsys):
    np.savez("a", **episode(3))
    with zipfile.ZipFile("a.npz", "a") as archive:
        archive.writestr("readme.txt", b"words")
    assert lengths(npz("a.npz", format=shape)) == [4]
    assert "readme.txt" in capsys.readouterr().err


def hdf5_cases(h5py, file):
    """Files that lead elsewhere, by name."""
    root = file["episode_0"]
    rewards = root["rewards"][:]
    secret = Path("secret").absolute()
    secret.write_bytes(KEY * 10)

    def replace(**options):
        del root["rewards"]
        return root.create_dataset("rewards", rewards.shape, "f8", **options)

    def external_link():
        write_hdf5("other.h5", 3)
        del root["rewards"]
        root["rewards"] = h5py.ExternalLink("other.h5", "/episode_0/rewards")

    def link_to_a_pipe():
        os.mkfifo("pipe")
        file["more"] = h5py.ExternalLink("pipe", "/")
        root["deep"] = h5py.SoftLink("/more/x")

    def virtual():
        layout = h5py.VirtualLayout(rewards.shape, "f8")
        layout[:] = h5py.VirtualSource("other.h5", "episode_0/rewards", rewards.shape)
        write_hdf5("other.h5", 3)
        del root["rewards"]
        root.create_virtual_dataset("rewards", layout)

    def soft_cycle():
        file["a"] = h5py.SoftLink("/b")
        file["b"] = h5py.SoftLink("/a")

    def dangling():
        file["a"] = h5py.SoftLink("/nothing")

    def hard_cycle():
        root.create_group("in")["again"] = root

    def many_names():
        group = file.create_group("names")
        for _ in range(30):
            inner = group.create_group("a")
            group["b"] = inner
            group = inner

    def deep():
        group = file
        for _ in range(500):
            group = group.create_group("a")

    def references():
        del root["rewards"]
        root.create_dataset("rewards", data=[root.ref] * 3, dtype=h5py.ref_dtype)

    def regions():
        region = root["observations"].regionref[0:1]
        del root["rewards"]
        root.create_dataset("rewards", data=[region] * 3, dtype=h5py.regionref_dtype)

    def texts():
        del root["rewards"]
        root.create_dataset("rewards", data=["1", "2", "3"])

    def nothing():
        del root["rewards"]
        root["rewards"] = h5py.Empty("f8")

    def a_type():
        del root["rewards"]
        root["rewards"] = np.dtype("f8")

    return {
        "external storage": lambda: replace(external=[(str(secret), 0, 24)]),
        "a device as storage": lambda: replace(external=[("/dev/zero", 0, 24)]),
        "external link": external_link,
        "link to a pipe": link_to_a_pipe,
        "virtual": virtual,
        "soft cycle": soft_cycle,
        "dangling": dangling,
        "hard cycle": hard_cycle,
        "many names": many_names,
        "deep": deep,
        "references": references,
        "regions": regions,
        "texts": texts,
        "nothing": nothing,
        "a type": a_type,
    }


CASES = (
    "external storage",
    "a device as storage",
    "external link",
    "link to a pipe",
    "virtual",
    "soft cycle",
    "dangling",
    "hard cycle",
    "many names",
    "deep",
    "references",
    "regions",
    "texts",
    "nothing",
    "a type",
)


@pytest.mark.parametrize("case", CASES)
def test_hdf5_files_that_lead_elsewhere_or_hold_no_numbers_are_refused(case, shape):
    h5py = pytest.importorskip("h5py")
    with h5py.File(write_hdf5("a.h5", 3), "a") as file:
        cases = hdf5_cases(h5py, file)
        assert tuple(cases) == CASES
        cases[case]()
    refused(lambda: hdf5("a.h5", format=shape), "a.h5")


def test_what_is_not_used_of_an_hdf5_file_is_not_read(shape, capsys):
    h5py = pytest.importorskip("h5py")
    with h5py.File(write_hdf5("a.h5", 3), "a") as file:
        file.create_dataset("episode_0/infos/huge", (2**33,), "f4")
        file["episode_0/names"] = ["some", "texts"]
        file["type"] = np.dtype("f8")
    assert lengths(hdf5("a.h5", format=shape)) == [4]
    assert "names" in capsys.readouterr().err


# Minari


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", ["link", "pipe", "data link", *CASES[:5]])
def test_minari_datasets_that_lead_elsewhere_are_refused(case, shape):
    data = write_minari(3, 2) / "data"
    main = data / "main_data.hdf5"
    if case in CASES:
        h5py = pytest.importorskip("h5py")
        with h5py.File(main, "a") as file:
            hdf5_cases(h5py, file)[case]()
    elif case == "data link":
        shutil.move(data, "elsewhere")
        data.symlink_to(Path("elsewhere").absolute())
    else:
        shutil.move(main, "other")
        main.symlink_to(Path("other").absolute()) if case == "link" else os.mkfifo(main)
    refused(lambda: minari("test/cart-v0", format=shape), "test/cart-v0")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("observation_space", None),
        ("action_space", None),
        ("dataset_id", None),
        ("minari_version", None),
        ("data_format", "pickle"),
        ("total_episodes", 10**15),
        ("total_episodes", 3),
        ("total_episodes", "2"),
        ("env_spec", "{}"),
        ("observation_space", '{"type": "Box"}'),
        ("observation_space", '{"type": "os.system"}'),
        ("observation_space", "["),
    ],
)
def test_wrong_metadata_of_minari_datasets_are_refused(key, value, shape):
    path = write_minari(3, 2) / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    # Minari would make this environment to ask for its spaces.
    spec = {"id": "a-v0", "entry_point": "pathlib:Path.touch", "kwargs": {"self": "x"}}
    metadata["env_spec"] = json.dumps(spec)
    metadata[key] = value
    if value is None:
        del metadata[key]
    path.write_text(json.dumps(metadata))
    refused(lambda: minari("test/cart-v0", format=shape), "test/cart-v0")
    assert not Path("x").exists()


# Damaged files


def damaged(content, number, rng):
    """A content that was cut, or of which a bit was flipped."""
    if number % 2:
        return content[: rng.randrange(len(content))]
    place = rng.randrange(len(content))
    return (
        content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :]
    )


def reason(read):
    """Why reading is refused; None if it is not."""
    try:
        read()
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["npz", "compressed", "hdf5", "torchrl", "minari"])
def test_damaged_files_are_refused_by_name_or_read(kind, shape):
    if kind in ("npz", "compressed"):
        save = np.savez if kind == "npz" else np.savez_compressed
        save("a.npz", **episode(3))
        files, name, read = [Path("a.npz")], "a.npz", lambda: npz("a.npz", format=shape)
    elif kind == "hdf5":
        write_hdf5("a.h5", 3)
        files, name, read = [Path("a.h5")], "a.h5", lambda: hdf5("a.h5", format=shape)
    elif kind == "torchrl":
        rollout(3).memmap("steps")
        files = sorted(path for path in Path("steps").rglob("*") if path.is_file())
        name, read = "steps", lambda: torchrl("steps", format=shape)
    else:
        files = sorted(path for path in write_minari(3).rglob("*") if path.is_file())
        name, read = "test/cart-v0", lambda: minari("test/cart-v0", format=shape)

    rng = random.Random(f"{kind}")
    num_refused = 0
    for number in range(60):
        file = files[number % len(files)]
        content = file.read_bytes()
        file.write_bytes(damaged(content, number // len(files), rng))
        before = everything_in(".")
        message = reason(read)
        if message is not None:
            num_refused += 1
            assert "\n" not in message
            assert name in message
        assert everything_in(".") == before
        file.write_bytes(content)
    assert num_refused >= 15
    assert lengths(read()) == [4]


def test_episodes_of_very_different_lengths_take_little_memory(shape, monkeypatch):
    padded = []

    def packing(steps):
        packed = pack(steps)
        padded.append(packed.numel())
        return packed

    monkeypatch.setattr("yamame.data.format.PER_CHUNK", 64)
    monkeypatch.setattr("yamame.data.format.pack", packing)
    num_steps = [30, *[1] * 40, 30, 2, 29, 1, 100, 1]
    read = torchrl(rollout(*num_steps), format=shape)
    assert lengths(read) == [num + 1 for num in num_steps]
    (store,) = read.stores
    for place, num in enumerate(num_steps):
        expected = rollout(*num_steps)[sum(num_steps[:place]) :][:num]["observation"]
        assert torch.equal(store.get([place])[0]["observation"][:num], expected)
    # The longest episode alone is longer than a chunk.
    assert sorted(padded)[-2] <= 2 * 64


def test_bytes_with_many_names_count_once_on_the_disk():
    sizes = Sizes()
    sizes.add("a", 2**29, 2**24, identity=1)
    sizes.add("b", 2**29, 2**24, identity=1)
    with pytest.raises(ValueError, match=r"c: arrays of 2.0 GiB"):
        sizes.add("c", 2**30, 2**24, identity=1)
    Sizes().add("d", 2**31, 2**25)


def test_names_of_one_array_count_once():
    h5py = pytest.importorskip("h5py")
    with h5py.File("names.h5", "w") as file:
        array = file.create_dataset("a", data=np.zeros(2**16))
        for number in range(300):
            file[f"l{number}"] = array
        file.create_dataset("b", data=np.ones(4))
    sizes = Sizes()
    with opened(Path("names.h5"), h5py, sizes) as tree:
        count_all(tree)
    assert sizes._read > 300 * sizes._stored / 2
    assert sizes._stored == 2**19 + 32
