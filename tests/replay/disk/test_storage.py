"""Trajectories on disk: as a list would hold them, atomic appends, exact rollback, other
readers.
"""

import contextlib
import errno
import json
import os
import pickle
import resource
import shutil
from itertools import count

import pytest
import torch
from tensordict import TensorDict
from yamame.replay import TrajectoryFollower, TrajectoryStorage
from yamame.replay.disk import files
from yamame.replay.disk import storage as storage_module


def trajectory(number: int, length: int) -> TensorDict:
    """Content that tells its number, its length and its timesteps, in every entry."""
    step = torch.arange(length)
    return TensorDict(
        {
            "x": torch.stack([step + 1000 * number, step * 0 + length], -1),
            "flag": (step + number) % 3 == 0,
            "half": (step[:, None] % 128 + number % 7).to(torch.bfloat16),
            "next": {
                "image": ((step + number) % 256)[:, None, None].expand(length, 2, 3).to(torch.uint8)
            },
        },
        batch_size=[length],
    )


STEP_BYTES = 2 * 8 + 1 + 2 + 6


def padded(batch: list[TensorDict]) -> TensorDict:
    longest = max(len(one) for one in batch)
    rows = [
        one.apply(
            lambda v: torch.cat([v, v.new_full((longest - len(v), *v.shape[1:]), 99)]),
            batch_size=[longest],
        )
        for one in batch
    ]
    lengths = torch.tensor([len(one) for one in batch])
    return torch.stack(rows).set("mask", (torch.arange(longest) < lengths[:, None]).unsqueeze(-1))


def content(storage: TrajectoryFollower) -> list[tuple[int, int]]:
    """Number and length of everything that is held; fails unless every entry is what was
    appended.
    """
    if not len(storage):
        return []
    contents = []
    for one in storage.get(range(len(storage))):
        length = int(one["mask"].sum())
        number = int(one["x"][0, 0]) // 1000
        assert int(one["x"][0, 1]) == length
        expected = trajectory(number, length)
        for key in expected.keys(True, True):
            assert torch.equal(one[key][:length], expected[key]), key
            assert not one[key][length:].any()
            assert one[key].dtype == expected[key].dtype
        contents.append((number, length))
    assert storage.lengths.tolist() == [length for _, length in contents]
    return contents


def newest(trajectories: list[tuple[int, int]], capacity: int) -> list[tuple[int, int]]:
    """The naive reference: the last of a list that fit into the capacity."""
    held = list(trajectories)
    while sum(length for _, length in held) > capacity:
        held.pop(0)
    return held


def draw(generator: torch.Generator, low: int, high: int) -> int:
    return int(torch.randint(low, high + 1, (), generator=generator))


def bytes_on_disk(path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.steps"))


@pytest.mark.parametrize("capacity", [200, 37, 9, 1])
def test_it_holds_what_a_list_would_hold_through_many_appends(tmp_path, capacity):
    generator = torch.Generator().manual_seed(capacity)
    storage = TrajectoryStorage(tmp_path, capacity=capacity)
    everything: list[tuple[int, int]] = []
    for turn in range(60):
        longest = min(capacity, 30 if draw(generator, 0, 9) == 0 else 8)
        lengths = [draw(generator, 1, longest) for _ in range(draw(generator, 1, 5))]
        batch = [trajectory(len(everything) + i, length) for i, length in enumerate(lengths)]
        ids = storage.append(padded(batch) if turn % 2 else batch)
        everything += [(len(everything) + i, length) for i, length in enumerate(lengths)]
        assert ids.tolist() == [number for number, _ in everything[-len(batch) :]]
        assert content(storage) == newest(everything, capacity)
        assert storage.num_appended == len(everything)
        # The oldest segment stays until all of it is evicted.
        largest = max(sum(lengths), 150) + capacity // 16
        assert bytes_on_disk(tmp_path) <= (capacity + largest) * STEP_BYTES
    names = sorted(file.suffix for file in tmp_path.iterdir())
    assert len(names) == 2 + 2 * names.count(".steps")


def test_a_batch_comes_back_in_the_order_asked_for_padded_to_the_longest_and_as_a_copy(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=100)
    storage.append([trajectory(n, n + 2) for n in range(5)])
    index = torch.tensor([3, 0, 3])
    batch = storage.get(index)
    assert batch.batch_size == (3, 5)
    assert batch["mask"].sum((1, 2)).tolist() == [5, 2, 5]
    assert (batch["x"][:, 0, 0] // 1000).tolist() == index.tolist()
    batch.zero_()
    assert content(storage) == [(n, n + 2) for n in range(5)]
    assert storage.get(4).batch_size == (6,)
    assert [int(one["x"][0, 0]) // 1000 for one in storage] == [0, 1, 2, 3, 4]
    assert storage.get(slice(1, 3)).batch_size == (2, 4)


def test_entries_of_every_dtype_and_depth_come_back_and_outlive_the_files(tmp_path):
    step = torch.arange(7)
    entries = {
        ("observation", "camera", "rgb"): torch.randint(256, (7, 3, 5, 4), dtype=torch.uint8),
        ("observation", "camera", "depth"): torch.rand(7, 5).half(),
        ("observation", "tokens"): torch.randint(1000, (7, 6)),
        ("observation", "flags"): torch.rand(7, 3) < 0.5,
        ("observation", "odd"): torch.rand(7, 3, dtype=torch.float64),
        ("observation", "nothing"): torch.rand(7, 0),
        "action": step.int(),
        ("next", "reward"): torch.rand(7, 1).bfloat16(),
        ("next", "info", "wave"): torch.rand(7, 2, dtype=torch.complex64),
    }
    whole = TensorDict(entries, batch_size=[7])
    storage = TrajectoryStorage(tmp_path, capacity=20)
    storage.append([whole, whole[:4]])
    batch = storage.get([0, 1, 0])
    storage.append([whole.clone().zero_()] * 3)
    storage.close()
    storage.close()
    del storage
    assert set(batch.keys(True, True)) == {*entries, "mask"}
    assert batch["mask"].sum((1, 2)).tolist() == [7, 4, 7]
    for key, value in entries.items():
        assert batch[key].dtype == value.dtype
        assert torch.equal(batch[key][0], value)
        assert torch.equal(batch[key][2], value)
        assert torch.equal(batch[key][1, :4], value[:4])
        assert not batch[key][1, 4:].any()


# --- atomicity ---


@contextlib.contextmanager
def writing_with(function):
    """Replaces the function by which all files are written."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (files, storage_module):
            patch.setattr(module, "write", function)
        yield


def in_halves(check, real=files.write):
    """Writes, and calls a function before, in the middle of and after that."""

    def write(path, mode, data):
        whole = b"".join(part if isinstance(part, bytes) else part.tobytes() for part in data)
        half = len(whole) // 2
        with writing_with(real):
            check()
            real(path, mode, [whole[:half]])
            check()
            real(path, "ab", [whole[half:]])
            check()

    return write


def test_between_any_two_writes_a_kill_or_a_reader_finds_whole_trajectories_and_the_last_checkpoint(
    tmp_path,
):
    path, copy = tmp_path / "store", tmp_path / "killed"
    storage = TrajectoryStorage(path, capacity=30)
    generator, everything = torch.Generator().manual_seed(0), [(0, 3)]
    storage.append([trajectory(0, 3)])
    checkpoint, held_then = storage.state_dict(), [(0, 3)]
    storage.protect()
    allowed, contents = [], []

    def check():
        contents.append(content(TrajectoryFollower(path)))
        shutil.copytree(path, copy)
        killed = TrajectoryStorage(copy, capacity=30, resume=True)
        assert content(killed) == contents[-1]
        assert contents[-1] in allowed
        killed.load_state_dict(checkpoint)
        assert content(killed) == held_then
        killed.append([trajectory(99, 9)])
        assert content(killed) == newest([*held_then, (99, 9)], 30)
        killed.close()
        shutil.rmtree(copy)

    for turn in range(9):
        batch = [trajectory(len(everything) + i, draw(generator, 1, 12)) for i in range(2)]
        before = newest(everything, 30)
        everything += [(len(everything) + i, len(one)) for i, one in enumerate(batch)]
        allowed[:] = [before, newest(everything, 30)]
        with writing_with(in_halves(check)):
            storage.append(batch)
        check()
        if turn % 4 == 0:
            checkpoint, held_then = storage.state_dict(), content(storage)
            storage.protect()
    assert len(contents) == 9 * (3 * 3 + 1)
    assert len({tuple(held) for held in contents}) == 10


def test_that_check_would_notice_a_manifest_written_before_what_it_names(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=10)
    storage.append([trajectory(0, 5)])
    storage._tail = None
    write = files.write

    def late(path, mode, data):
        if path.suffix == ".steps":
            data = [b"?" * sum(part.nbytes for part in data)]
        write(path, mode, data)

    with writing_with(late):
        storage.append([trajectory(1, 5)])
    with pytest.raises(AssertionError):
        content(TrajectoryFollower(tmp_path))


def test_of_two_manifests_that_a_kill_left_the_newer_counts(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=10)
    for number in range(9):
        storage.append([trajectory(number, 5)])
    (older,) = tmp_path.glob("*.manifest")
    text = older.read_text()
    storage.append([trajectory(9, 5)])
    older.write_text(text)
    (tmp_path / "77.steps").write_bytes(b"left over")
    storage.close()
    storage = TrajectoryStorage(tmp_path, capacity=10, resume=True)
    assert content(storage) == [(8, 5), (9, 5)]
    storage.append([trajectory(10, 5)])
    assert older.exists()  # until it is known that a newer one is on the disk
    storage.state_dict()
    assert not older.exists()
    assert not (tmp_path / "77.steps").exists()


def test_a_full_disk_leaves_everything_as_it_was_whichever_write_fails(tmp_path):
    lengths = [5, 7, 3, 6, 8, 2, 7, 7, 4, 6, 5, 8]
    real = files.write

    def full(after: int, written: list[int]):
        def write(path, mode, data):
            whole = b"".join(part if isinstance(part, bytes) else part.tobytes() for part in data)
            written.append(len(whole))
            if len(written) > after:
                real(path, mode, [whole[: len(whole) // 2]])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(path, mode, [whole])

        return write

    for appended in (0, 3, 8):
        for failing in count():
            folder, written = tmp_path / f"{appended}-{failing}", []
            storage = TrajectoryStorage(folder, capacity=30)
            for number in range(appended):
                storage.append([trajectory(number, lengths[number])])
            before = content(storage)
            batch = [trajectory(appended + i, lengths[appended + i]) for i in range(2)]
            if failing == 3:
                with writing_with(full(failing, written)):
                    storage.append(batch)
                break
            with (
                writing_with(full(failing, written)),
                pytest.raises(OSError, match="No space left"),
            ):
                storage.append(batch)
            assert content(storage) == before == content(TrajectoryFollower(folder))
            assert storage.num_appended == appended
            storage.append(batch)
            assert content(storage)[-2:] == [
                (appended + i, lengths[appended + i]) for i in range(2)
            ]
        assert len(written) == 3


def test_a_file_that_may_not_grow_is_an_error_with_its_path_and_no_signal(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=1600)
    storage.append([trajectory(n, 10) for n in range(9)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2600, hard))
        with pytest.raises(OSError, match=r"there must be room for .*0\.steps, got File too large"):
            storage.append([trajectory(9, 100)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert content(storage) == [(n, 10) for n in range(9)]
    storage.append([trajectory(9, 100)])
    assert content(storage)[-1] == (9, 100)


# --- rollback ---


@pytest.mark.parametrize(("capacity", "keep"), [(50, 1), (30, 3), (9, 2)])
def test_any_of_the_states_protected_last_comes_back_bit_for_bit_also_in_a_new_process(
    tmp_path, capacity, keep
):
    generator = torch.Generator().manual_seed(capacity)
    storage = TrajectoryStorage(tmp_path, capacity=capacity, keep=keep)
    held, number, rolled_back, extra = [], 0, 0, 0.0
    checkpoints = [(storage.state_dict(), [])]
    storage.protect()
    for _ in range(200):
        action = draw(generator, 0, 19)
        if action == 0:
            checkpoints.append((json.loads(json.dumps(storage.state_dict())), held))
            del checkpoints[:-keep]
            storage.protect()
        elif action == 1:
            chosen = draw(generator, 0, len(checkpoints) - 1)
            storage.load_state_dict(checkpoints[chosen][0])
            del checkpoints[chosen + 1 :]
            held, rolled_back = checkpoints[chosen][1], rolled_back + 1
        elif action == 2:
            storage.close()
            storage = TrajectoryStorage(tmp_path, capacity=capacity, keep=keep, resume=True)
        else:
            lengths = [draw(generator, 1, min(10, capacity)) for _ in range(draw(generator, 1, 3))]
            storage.append([trajectory(number + i, length) for i, length in enumerate(lengths)])
            held = newest(
                [*held, *((number + i, length) for i, length in enumerate(lengths))], capacity
            )
            number += len(lengths)
        assert content(storage) == held
        extra = max(extra, bytes_on_disk(tmp_path) / (STEP_BYTES * capacity))
    assert rolled_back > 5
    assert 1.5 < extra < 1 + keep + 4 * 30 / capacity


def test_an_unprotected_state_comes_back_only_until_its_files_are_deleted(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=20, keep=1)
    storage.append([trajectory(n, 5) for n in range(4)])
    state = storage.state_dict()
    storage.append([trajectory(4, 5), trajectory(5, 5)])
    storage.load_state_dict(state)
    assert content(storage) == [(n, 5) for n in range(4)]
    storage.append([trajectory(6, 5)])
    storage.protect()
    for n in range(7, 11):
        storage.append([trajectory(n, 5)])
    storage.protect()
    with pytest.raises(
        ValueError, match=r"trajectories of the state must still be there, got none of segment 0"
    ):
        storage.load_state_dict(state)
    assert content(storage) == [(n, 5) for n in range(7, 11)]


def test_a_state_protected_twice_pushes_no_other_out(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=10, keep=2)
    storage.append([trajectory(0, 10)])
    first = storage.state_dict()
    storage.protect()
    storage.append([trajectory(1, 10)])
    storage.protect()
    storage.protect()
    storage.append([trajectory(2, 10)])
    storage.load_state_dict(first)
    assert content(storage) == [(0, 10)]


def test_an_emptied_storage_goes_on_and_can_be_rolled_back(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=20)
    empty = storage.state_dict()
    storage.append([trajectory(0, 5), trajectory(1, 6)])
    full = storage.state_dict()
    storage.protect()
    storage._empty()
    assert len(storage) == 0
    storage.append([trajectory(2, 4)])
    assert content(storage) == [(2, 4)]
    storage.load_state_dict(full)
    assert content(storage) == [(0, 5), (1, 6)]
    storage.load_state_dict(empty)
    storage.append([trajectory(2, 4)])
    assert content(storage) == [(2, 4)]


def test_what_is_dumped_can_be_read_and_loaded_by_another(tmp_path):
    storage = TrajectoryStorage(tmp_path / "one", capacity=500)
    storage.append([trajectory(n, 3) for n in range(100)])
    storage.dumps(tmp_path / "dump")
    storage.append([trajectory(100, 3)])
    assert content(TrajectoryFollower(tmp_path / "dump")) == [(n, 3) for n in range(100)]
    other = TrajectoryStorage(tmp_path / "two", capacity=240)
    other.append([trajectory(7, 2)])
    other.loads(tmp_path / "dump")
    assert content(other) == [(n, 3) for n in range(20, 100)]
    other.dumps(tmp_path / "dump")
    assert content(TrajectoryFollower(tmp_path / "dump")) == content(other)


# --- other processes ---


def test_a_follower_goes_on_seeing_what_it_saw_until_it_looks_again(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=20)
    follower = TrajectoryFollower(tmp_path)
    storage.append([trajectory(n, 5) for n in range(4)])
    assert len(follower) == 0
    follower.refresh()
    before = set(tmp_path.glob("*.steps"))
    for n in range(4, 9):
        storage.append([trajectory(n, 7)])
    assert not before & set(tmp_path.glob("*.steps"))  # all that it reads is deleted
    assert content(follower) == [(n, 5) for n in range(4)]
    follower.refresh()
    assert content(follower) == [(7, 7), (8, 7)]


def test_a_follower_that_is_overtaken_while_it_looks_sees_what_is_there_afterwards(
    tmp_path, monkeypatch
):
    storage = TrajectoryStorage(tmp_path, capacity=20)
    storage.append([trajectory(n, 5) for n in range(4)])
    follower = TrajectoryFollower(tmp_path)
    storage.append([trajectory(4, 20)])
    load, turns = TrajectoryFollower._load, iter([[trajectory(5, 19)], []])

    def overtaken(self, manifest):
        storage_module.TrajectoryFollower._load = load
        storage.append(next(turns))
        load(self, manifest)

    monkeypatch.setattr(TrajectoryFollower, "_load", overtaken)
    follower.refresh()
    assert content(follower) == [(5, 19)]
    for file in tmp_path.glob("*.steps"):
        file.unlink()
    with pytest.raises(ValueError, match=r"must still be there, got none of segment \d"):
        TrajectoryFollower(tmp_path)


def test_a_follower_sees_a_rollback(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=20)
    storage.append([trajectory(0, 5)])
    state = storage.state_dict()
    storage.append([trajectory(1, 5)])
    follower = TrajectoryFollower(tmp_path)
    storage.load_state_dict(state)
    storage.append([trajectory(2, 5)])
    assert content(follower) == [(0, 5), (1, 5)]
    follower.refresh()
    assert content(follower) == [(0, 5), (2, 5)]


def test_a_pickled_storage_arrives_as_a_follower(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=20)
    storage.append([trajectory(0, 5)])
    copy = pickle.loads(pickle.dumps(storage))
    assert type(copy) is TrajectoryFollower
    assert content(copy) == [(0, 5)]


PROCESSES = """
import json, os, signal, sys, time
import torch
from tensordict import TensorDict
from yamame.replay import TrajectoryFollower, TrajectoryStorage

folder, turns, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
LENGTHS = [3, 40, 17, 58, 1, 29, 9]

def open_store():
    return TrajectoryStorage(folder + "/store", capacity=300, resume=True)

def write_forever():
    storage = open_store()
    for turn in range(10**9):
        n = storage.num_appended
        batch = []
        for i in range(n, n + 3):
            x = torch.arange(LENGTHS[i % 7]) + 1000 * i
            batch.append(TensorDict({"x": x[:, None].expand(-1, 50).contiguous(), "y": x.float()}, [len(x)]))
        storage.append(batch)
        if turn % 20 == 0:  # a checkpoint, as a run makes it
            with open(folder + "/draft", "w") as file:
                json.dump([storage.state_dict(), check(storage)], file)
            if os.path.exists(folder + "/last"):
                os.replace(folder + "/last", folder + "/older")
            os.replace(folder + "/draft", folder + "/last")
            storage.protect()

def check(storage):
    batch = storage.get(range(len(storage)))
    for one in batch:
        length = int(one["mask"].sum())
        number = int(one["x"][0, 0]) // 1000
        expected = torch.arange(length) + 1000 * number
        assert length == LENGTHS[number % 7]
        assert (one["x"][:length] == expected[:, None]).all() and (one["y"][:length] == expected).all()
    return [int(n) for n in batch["x"][:, 0, 0] // 1000]

seen, refused, resumed = [], 0, 0
for turn in range(turns):
    child = os.fork()
    if child == 0:
        write_forever()
    stop, follower = time.monotonic() + seconds * (turn + 1) / turns, None
    try:
        while time.monotonic() < stop or refused == turn:
            if follower is None:
                if not os.path.exists(folder + "/last"):
                    continue
                follower = TrajectoryFollower(folder + "/store")
                before = follower.num_appended
            follower.refresh()
            if refused == turn and follower.num_appended > before:
                try:
                    open_store()
                except ValueError as error:
                    assert "must not be written by another process" in str(error), error
                    refused += 1
            seen += check(follower)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    storage = open_store()
    held = check(storage)
    assert held == list(range(held[0], held[0] + len(held))) and held[-1] == storage.num_appended - 1
    for name in ("last", "older"):
        if os.path.exists(folder + "/" + name):
            state, expected = json.load(open(folder + "/" + name))
            storage.load_state_dict(state)
            assert check(storage) == expected
            resumed += 1
    if os.path.exists(folder + "/older"):  # the run goes on from there, so the newer checkpoint is deleted
        os.replace(folder + "/older", folder + "/last")
    storage.close()
print(len(seen), len(set(seen)), storage.num_appended, resumed)
"""


def test_after_a_kill_another_process_goes_on_from_the_last_checkpoint_or_the_one_before(
    tmp_path, run_forked
):
    result = run_forked(PROCESSES, str(tmp_path), "4", "1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    read, different, appended, resumed = map(int, result.stdout.split())
    assert read > 100
    assert different > 20
    assert appended > 30
    assert resumed >= 4


# --- errors ---


def test_arguments_out_of_range_are_errors(tmp_path):
    with pytest.raises(ValueError, match="capacity must be at least 1, got 0"):
        TrajectoryStorage(tmp_path, capacity=0)
    with pytest.raises(ValueError, match=r"keep must be at least 1, got 0"):
        TrajectoryStorage(tmp_path, capacity=5, keep=0)
    with pytest.raises(ValueError, match="TrajectoryFollower: path must hold trajectories, got"):
        TrajectoryFollower(tmp_path / "nothing")


def test_a_folder_of_something_else_is_an_error_and_stays_as_it_is(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(
        ValueError, match=r"path must be empty or hold trajectories, got .*thesis\.tex"
    ):
        TrajectoryStorage(tmp_path, capacity=5, resume=True)
    other = TrajectoryStorage(tmp_path / "other", capacity=5)
    with pytest.raises(
        ValueError, match=r"path must be empty or hold trajectories, got .*thesis\.tex"
    ):
        other.dumps(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_a_storage_of_another_run_size_or_format_is_an_error(tmp_path):
    TrajectoryStorage(tmp_path, capacity=20, owner="ayu").close()
    with pytest.raises(ValueError, match=r"owner must be 'ayu' as in .*, got 'iwana'"):
        TrajectoryStorage(tmp_path, capacity=20, owner="iwana", resume=True)
    with pytest.raises(ValueError, match=r"capacity must be 20 as in .*, got 21"):
        TrajectoryStorage(tmp_path, capacity=21, owner="ayu", resume=True)
    with pytest.raises(ValueError, match="path must be new or empty unless resume=True, got"):
        TrajectoryStorage(tmp_path, capacity=20, owner="ayu")
    manifest = tmp_path / "0.manifest"
    manifest.write_text(manifest.read_text().replace(files.FORMAT, "butterflies"))
    with pytest.raises(ValueError, match=rf"must be '{files.FORMAT}', got 'butterflies'"):
        TrajectoryStorage(tmp_path, capacity=20, owner="ayu", resume=True)


def test_a_state_of_another_run_is_an_error(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=20, owner="ayu")
    with pytest.raises(ValueError, match="owner of the state must be 'ayu', got 'iwana'"):
        storage.load_state_dict({**storage.state_dict(), "owner": "iwana"})


def test_what_cannot_be_stored_is_an_error_and_nothing_is_written(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=20)
    one = trajectory(0, 5)
    storage.append([one])
    with pytest.raises(ValueError, match="length of a trajectory must be at most 20, got 21"):
        storage.append([trajectory(1, 5), trajectory(2, 21)])
    for key, value, difference in [
        (
            "x",
            one["x"].float(),
            r"\[\['x'\], 'int64', \[2\]\]\], got \[\[\['x'\], 'float32', \[2\]\]\]",
        ),
        ("flag", one["flag"][:, None], r"\[\['flag'\], 'bool', \[\]\]\], got .*'bool', \[1\]\]\]"),
        (("next", "more"), one["x"], r"\[\], got \[\[\['next', 'more'\], 'int64', \[2\]\]\]"),
    ]:
        with pytest.raises(ValueError, match=f"trajectories must hold .*{difference}"):
            storage.append([one.clone().set(key, value)])
        with pytest.raises(ValueError, match="must hold"):
            storage.append([one, one.clone().set(key, value)])
    with pytest.raises(ValueError, match=r"must hold .*'half'\], 'bfloat16', \[1\]\]\], got \[\]"):
        storage.append([one.exclude("half")])
    with pytest.raises(ValueError, match=r"lengths of trajectories must be positive, got \[5, 0\]"):
        storage.append([one, one[:0]])
    gap = padded([one]).set("mask", torch.tensor([[True, True, False, True, True]]))
    with pytest.raises(
        ValueError, match="mask must be right padded, got 'a real timestep after padding'"
    ):
        storage.append(gap)
    with pytest.raises(IndexError, match=r"index 1 is out of bounds"):
        storage.get([1])
    with pytest.raises(RuntimeError, match=r"must not be changed, got set\(0\)"):
        storage[0] = one
    assert content(storage) == [(0, 5)]
    assert storage.append([]).tolist() == []


def test_what_a_collector_gives_must_be_packed_first(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=20)
    observation = torch.arange(6.0).reshape(2, 3, 1)
    following = {"observation": observation + 1, "reward": observation}
    batch = TensorDict(
        {"observation": observation, "action": torch.ones(2, 3), "next": following}, [2, 3]
    )
    with pytest.raises(
        ValueError, match=r"must be packed, with yamame.replay.pack, got \['observation'\]"
    ):
        storage.append(batch)
    with pytest.raises(ValueError, match=r"must be \[n, L\], see yamame.replay.pack, got \(6,\)"):
        storage.append(batch.flatten())
    assert len(storage) == 0
