"""Trajectories on disk: equal to a list, atomic appends, exact rollback, other readers."""

import contextlib
import errno
import itertools
import json
import os
import pickle
import resource
import shutil
import tempfile
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tensordict import TensorDict
from yamame.replay import TrajectoryFollower, TrajectoryStorage
from yamame.replay.disk import files
from yamame.replay.disk import storage as storage_module
from yamame.replay.disk.index import TrajectoryIndex


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
    """Number and length of everything held; fails unless every entry is the one appended."""
    if not len(storage):
        return []
    batch = storage.get(range(len(storage)))
    numbers, lengths = batch["x"][:, 0, 0] // 1000, batch["mask"].sum((1, 2))
    assert storage.lengths.tolist() == lengths.tolist()

    number, step = numbers[:, None], torch.arange(batch.shape[1])
    tag = number + step
    expected = {
        "x": torch.stack([1000 * number + step, lengths[:, None].expand_as(tag)], -1),
        "flag": tag % 3 == 0,
        "half": (step % 128 + number % 7).to(torch.bfloat16)[..., None],
        ("next", "image"): (tag % 256)[..., None, None].expand(*tag.shape, 2, 3).to(torch.uint8),
    }
    padding = step >= lengths[:, None]
    assert set(batch.keys(True, True)) == {*expected, "mask"}
    for key, value in expected.items():
        assert batch[key].dtype == value.dtype
        value = value.clone()
        value[padding] = 0
        assert torch.equal(batch[key], value), key
    return list(zip(numbers.tolist(), lengths.tolist(), strict=True))


def newest(trajectories: list[tuple[int, int]], capacity: int) -> list[tuple[int, int]]:
    """The naive reference: the last of a list that fit into the capacity."""
    held = list(trajectories)
    while sum(length for _, length in held) > capacity:
        held.pop(0)
    return held


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


class Killed(BaseException):
    """The process dies at this moment."""


@dataclass(frozen=True)
class State:
    """A state dict, and the trajectories that were held then."""

    state: str
    held: tuple[tuple[int, int], ...]
    num_appended: int

    @property
    def segments(self) -> set[int]:
        return {number for number, _, _ in json.loads(self.state)["parts"]}


LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=4)


class StorageMachine(RuleBasedStateMachine):
    """Appends, rollbacks, kills, full disks and damage, beside a list of numbers and lengths."""

    states = Bundle("states")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "store"

    @initialize(capacity=st.sampled_from([1, 20, 200, 500]), keep=st.integers(1, 3))
    def open_new(self, capacity, keep):
        self.options = {"capacity": capacity, "owner": "ayu", "keep": keep}
        self.storage = TrajectoryStorage(self.path, **self.options)
        self.follower = TrajectoryFollower(self.path)
        self.seen = self.held = ()
        self.number = self.num_appended = 0
        self.protected: list[State] = []
        self.files_are_tidy = True

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def reopen(self) -> None:
        self.storage = TrajectoryStorage(self.path, **self.options, resume=True)
        # A killed process may have left files that the next change deletes.
        self.files_are_tidy = False

    def batch(self, lengths):
        """Trajectories with new numbers, and the list that is held once they are appended."""
        lengths = [min(length, self.options["capacity"]) for length in lengths]
        new = [(self.number + i, length) for i, length in enumerate(lengths)]
        self.number += len(new)
        held = tuple(newest([*self.held, *new], self.options["capacity"]))
        return [trajectory(*one) for one in new], held

    @rule(lengths=LENGTHS, is_padded=st.booleans())
    def append(self, lengths, is_padded):
        batch, held = self.batch(lengths)
        numbers = self.storage.append(padded(batch) if is_padded else batch)
        first = self.num_appended
        assert numbers.tolist() == list(range(first, first + len(batch)))
        self.num_appended += len(batch)
        self.held = held
        self.files_are_tidy = True

    @rule(lengths=LENGTHS, failing=st.integers(0, 2), share=st.sampled_from([0.0, 0.5, 1.0]))
    def append_to_a_full_disk(self, lengths, failing, share):
        """A fragment at the end of a segment is never part of a later trajectory."""
        self.append([1], is_padded=False)
        batch, _ = self.batch(lengths)
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with writing_with(fail_at(failing, share, error)), pytest.raises(OSError, match="No space"):
            self.storage.append(batch)
        self.files_are_tidy = False
        self.what_is_held_is_the_newest()
        self.append([2, 1], is_padded=False)

    @rule(lengths=LENGTHS, failing=st.integers(0, 2), share=st.sampled_from([0.0, 0.5, 1.0]))
    def kill_while_writing(self, lengths, failing, share):
        batch, _ = self.batch(lengths)
        with writing_with(fail_at(failing, share, Killed())), pytest.raises(Killed):
            self.storage.append(batch)
        self.reopen()

    @rule(lengths=LENGTHS, before=st.integers(0, 3))
    def kill_while_deleting(self, lengths, before):
        batch, held = self.batch(lengths)
        deletions = itertools.count()
        unlink = Path.unlink

        def killed(path):
            if next(deletions) == before:
                raise Killed
            unlink(path)

        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
            patch.setattr(Path, "unlink", killed)
            self.storage.append(batch)
        self.num_appended += len(batch)
        self.held = held
        self.reopen()

    @rule(is_closed=st.booleans())
    def reopen_newest(self, is_closed):
        if is_closed:
            self.storage.close()
        self.reopen()

    @rule(target=states, is_protected=st.booleans())
    def checkpoint(self, is_protected):
        state = State(json.dumps(self.storage.state_dict()), self.held, self.num_appended)
        if is_protected:
            self.protect(state)
        return state

    def protect(self, state):
        self.storage.protect()
        older = [one for one in self.protected if one.num_appended < state.num_appended]
        self.protected = [*older, state][-self.options["keep"] :]
        self.files_are_tidy = True

    @rule(state=states, is_reopened=st.booleans())
    def roll_back(self, state, is_reopened):
        if is_reopened:
            self.reopen()
        on_disk = {int(file.stem) for file in self.path.glob("*.steps")}
        if not state.segments <= on_disk:
            assert all(state.segments != one.segments for one in self.protected)
            with pytest.raises(ValueError, match="trajectories of the state are missing"):
                self.storage.load_state_dict(json.loads(state.state))
            return
        self.storage.load_state_dict(json.loads(state.state))
        self.held = state.held
        self.num_appended = state.num_appended
        # The state is protected now, later ones no longer are.
        older = [one for one in self.protected if one.num_appended < state.num_appended]
        self.protected = [*older, state][-self.options["keep"] :]
        self.files_are_tidy = True

    @rule(lengths=LENGTHS, is_protected=st.booleans())
    def roll_back_over_an_append(self, lengths, is_protected):
        self.append([1], is_padded=False)
        state = self.checkpoint(is_protected)
        self.append(lengths, is_padded=False)
        self.roll_back(state, is_reopened=False)
        self.append([2, 1], is_padded=False)

    @precondition(lambda self: self.protected)
    @rule(choice=st.integers(0, 2))
    def roll_back_to_a_protected_state(self, choice):
        self.roll_back(self.protected[choice % len(self.protected)], is_reopened=True)

    @rule()
    def empty(self):
        self.storage._empty()
        self.held = ()

    @precondition(lambda self: self.protected and self.protected[-1].segments)
    @rule(place=st.floats(0, 1, exclude_max=True))
    def damage_the_newest_segment(self, place):
        """A flipped bit is found in each trajectory that has it, and in no other."""
        damaged = self.folder / "damaged"
        shutil.copytree(self.path, damaged)
        newest_segment = max(self.protected[-1].segments)
        file = damaged / f"{newest_segment}.steps"
        content_of_file = bytearray(file.read_bytes())
        byte = int(place * len(content_of_file))
        content_of_file[byte] ^= 1
        file.write_bytes(content_of_file)
        rows = files.Segment.open(damaged, newest_segment).rows

        with contextlib.closing(TrajectoryStorage(damaged, **self.options, resume=True)) as storage:
            for state in reversed(self.protected):
                is_hit = False
                for number, first, end in json.loads(state.state)["parts"]:
                    if number == newest_segment:
                        for _, start, length, _ in rows[first:end].tolist():
                            is_hit |= start <= byte // STEP_BYTES < start + length
                if is_hit:
                    with pytest.raises(ValueError, match=f"{newest_segment}.steps must be as it"):
                        storage.load_state_dict(json.loads(state.state))
                else:
                    storage.load_state_dict(json.loads(state.state))
                    assert tuple(content(storage)) == state.held
        shutil.rmtree(damaged)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def sample(self, data):
        positions = data.draw(st.lists(st.integers(0, len(self.held) - 1), min_size=1, max_size=5))
        chosen = [self.held[position] for position in positions]
        batch = self.storage.get(torch.tensor(positions))
        assert batch.shape == (len(chosen), max(length for _, length in chosen))
        assert (batch["x"][:, 0, 0] // 1000).tolist() == [number for number, _ in chosen]
        assert batch["mask"].sum((1, 2)).tolist() == [length for _, length in chosen]

    @rule()
    def refresh_the_follower(self):
        self.follower.refresh()
        self.seen = self.held

    @invariant()
    def what_is_held_is_the_newest(self):
        assert tuple(content(self.storage)) == self.held
        assert self.storage.num_appended == self.num_appended
        assert self.storage.num_timesteps == sum(length for _, length in self.held)

    @invariant()
    def the_follower_sees_its_last_refresh(self):
        assert tuple(content(self.follower)) == self.seen

    @invariant()
    def a_new_follower_sees_everything(self):
        assert tuple(content(TrajectoryFollower(self.path))) == self.held

    @invariant()
    def files_are_those_that_the_manifest_names(self):
        named = set()
        manifest = files.read_manifests(self.path)[0]
        for state in (manifest["held"], *manifest["protected"]):
            named.update(number for number, _, _ in state["parts"])
        assert len(manifest["protected"]) == len(self.protected)
        # Adjacent ranges of a segment are one, or a manifest would grow with every append.
        held = [number for number, _, _ in manifest["held"]["parts"]]
        assert len(held) == len(set(held))
        for suffix in (".steps", ".index"):
            present = {int(file.stem) for file in self.path.glob(f"*{suffix}")}
            assert present == named if self.files_are_tidy else present >= named


def fail_at(failing: int, share: float, error: BaseException):
    """Write as `files.write`, but write a share of the data of one call and then raise."""
    real = files.write
    calls = itertools.count()

    def write(path, mode, data):
        whole = b"".join(part if isinstance(part, bytes) else part.tobytes() for part in data)
        if next(calls) == failing:
            real(path, mode, [whole[: int(share * len(whole))]])
            raise error
        real(path, mode, [whole])

    return write


# A failing sequence is not shrunk, which takes minutes.
StorageMachine.TestCase.settings = settings(
    deadline=None,
    max_examples=30,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
)


class TestStorage(StorageMachine.TestCase):
    """Every sequence of operations."""


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


def test_a_file_that_may_not_grow_is_an_error_with_its_path_and_no_signal(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=1600)
    storage.append([trajectory(n, 10) for n in range(9)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2600, hard))
        with pytest.raises(OSError, match=r"0\.steps cannot be written \(File too large\)"):
            storage.append([trajectory(9, 100)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert content(storage) == [(n, 10) for n in range(9)]
    storage.append([trajectory(9, 100)])
    assert content(storage)[-1] == (9, 100)


# --- what an append costs ---


def work_of_appends(path, held: int, capacity: int) -> tuple[int, int]:
    """Bytes allocated and bytes written by 100 appends to a store that holds trajectories."""
    storage = TrajectoryStorage(path, capacity=capacity)
    few = [trajectory(number, 1) for number in range(10)]
    storage.append(torch.stack([trajectory(0, 2)]).expand(held, 2))
    storage.append(few)
    allocated = written = 0
    write = files.write

    def count(file, mode, data):
        nonlocal written
        buffers = [bytes(part) for part in data]
        written += sum(map(len, buffers))
        write(file, mode, buffers)

    with writing_with(count):
        for _ in range(100):
            tracemalloc.start()
            storage.append(few)
            allocated += tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    storage.close()
    return allocated, written


def assert_independent_of_what_is_held(tmp_path, capacity_per_held: int) -> None:
    (few, few_written), (many, many_written) = (
        work_of_appends(tmp_path / f"{held}", held, capacity_per_held * held)
        for held in (500, 20_000)
    )
    assert many_written <= 1.1 * few_written
    assert many <= 1.5 * few


@pytest.mark.parametrize("capacity_per_held", [2, 8], ids=["evicting", "growing"])
def test_an_append_does_as_much_work_however_many_trajectories_are_held(
    tmp_path, capacity_per_held
):
    assert_independent_of_what_is_held(tmp_path, capacity_per_held)


def test_a_copy_of_the_index_in_each_append_would_be_noticed(tmp_path, monkeypatch):
    def evict(self, count):
        self.__init__(self.rows[count:].copy())

    monkeypatch.setattr(TrajectoryIndex, "evict", evict)
    with pytest.raises(AssertionError):
        assert_independent_of_what_is_held(tmp_path, 2)


def test_reading_the_segment_again_in_each_append_would_be_noticed(tmp_path, monkeypatch):
    def map_bytes(path, number):
        return files.Segment.open(path, number).data

    monkeypatch.setattr(storage_module, "map_bytes", map_bytes)
    monkeypatch.setattr(storage_module, "SEGMENTS", 1)
    with pytest.raises(AssertionError):
        assert_independent_of_what_is_held(tmp_path, 8)


# --- stores of former versions ---


def test_a_store_of_a_former_version_goes_on_and_is_rolled_back(tmp_path):
    former = Path(__file__).parent / "former_store"
    expected = json.loads((former / "states.json").read_text())
    shutil.copytree(former / "store", tmp_path / "store")
    newest_held = [tuple(one) for one in expected["newest"]]
    assert content(TrajectoryFollower(tmp_path / "store")) == newest_held
    storage = TrajectoryStorage(tmp_path / "store", capacity=60, owner="ayu", resume=True)
    storage.verify()
    storage.append([trajectory(18, 6)])
    assert content(storage) == newest([*newest_held, (18, 6)], 60)
    for protected in reversed(expected["protected"]):
        storage.load_state_dict(protected["state"])
        assert content(storage) == [tuple(one) for one in protected["held"]]
        assert storage.state_dict() == protected["state"]


# --- rollback ---


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
    with pytest.raises(ValueError, match=r"trajectories of the state are missing, segment 0"):
        storage.load_state_dict(state)
    assert content(storage) == [(n, 5) for n in range(7, 11)]


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
    with pytest.raises(ValueError, match=r"trajectories are missing, segment \d"):
        TrajectoryFollower(tmp_path)


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
            wide = x[:, None].expand(-1, 50).contiguous()
            batch.append(TensorDict({"x": wide, "y": x.float()}, [len(x)]))
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
        assert (one["x"][:length] == expected[:, None]).all()
        assert (one["y"][:length] == expected).all()
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
    assert held == list(range(held[0], held[0] + len(held)))
    assert held[-1] == storage.num_appended - 1
    for name in ("last", "older"):
        if os.path.exists(folder + "/" + name):
            state, expected = json.load(open(folder + "/" + name))
            storage.load_state_dict(state)
            assert check(storage) == expected
            resumed += 1
    # The run goes on from there, so the newer checkpoint is deleted.
    if os.path.exists(folder + "/older"):
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
    with pytest.raises(ValueError, match=r"got \['observation'\]; pack .* yamame.replay.pack"):
        storage.append(batch)
    with pytest.raises(ValueError, match=r"must be \[n, L\], got \(6,\)"):
        storage.append(batch.flatten())
    assert len(storage) == 0
