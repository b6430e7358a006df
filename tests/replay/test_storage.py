"""Trajectories on disk: a ring like its naive reference, atomic appends, exact rollback, other readers."""

import errno
import json
import os
import pickle
import re
import resource
import subprocess
import sys
from collections import deque
from itertools import count

import pytest
import torch
from tensordict import TensorDict
from yamame.replay import TrajectoryFollower, TrajectoryStorage


def trajectory(number: int, length: int) -> TensorDict:
    """Content that tells its number, its length and its timesteps, in every entry."""
    step = torch.arange(length)
    return TensorDict(
        {
            "x": torch.stack([step + 1000 * number, step * 0 + length], -1),
            "flag": (step + number) % 3 == 0,
            "half": (step[:, None] % 128 + number % 7).to(torch.bfloat16),
            "next": {"image": ((step + number) % 256)[:, None, None].expand(length, 2, 3).to(torch.uint8)},
        },
        batch_size=[length],
    )


def padded(batch: list[TensorDict]) -> TensorDict:
    longest = max(len(one) for one in batch)
    rows = [
        one.apply(
            lambda v: torch.cat([v, v.new_full((longest - len(v), *v.shape[1:]), 99)]), batch_size=[longest]
        )
        for one in batch
    ]
    lengths = torch.tensor([len(one) for one in batch])
    return torch.stack(rows).set("mask", (torch.arange(longest) < lengths[:, None]).unsqueeze(-1))


def content(storage: TrajectoryFollower) -> list[tuple[int, int]]:
    """Number and length of everything that is held; fails unless every entry is what was appended."""
    if not len(storage):
        return []
    batch = storage.get(range(len(storage)))
    found = []
    for one in batch:
        length = int(one["mask"].sum())
        number, told = int(one["x"][0, 0]) // 1000, int(one["x"][0, 1])
        assert told == length
        expected = trajectory(number, length)
        for key in expected.keys(True, True):
            assert torch.equal(one[key][:length], expected[key]), key
            assert not one[key][length:].any()
            assert one[key].dtype == expected[key].dtype
        found.append((number, length))
    return found


class Ring:
    """The naive reference: a list of trajectories and the rows wasted before each."""

    def __init__(self, capacity: int, rows: int) -> None:
        self.capacity, self.rows, self.head = capacity, rows, 0
        self.held: deque[tuple[int, int, int]] = deque()

    def append(self, number: int, length: int) -> None:
        wasted = self.rows - self.head if self.head + length > self.rows else 0
        self.head = (0 if wasted or self.head == self.rows else self.head) + length
        self.held.append((number, length, wasted))
        while sum(n + w for _, n, w in self.held) - self.held[0][2] > self.capacity:
            self.held.popleft()

    def content(self) -> list[tuple[int, int]]:
        return [(number, length) for number, length, _ in self.held]

    def copy(self) -> "Ring":
        other = Ring(self.capacity, self.rows)
        other.head, other.held = self.head, self.held.copy()
        return other


def draw(generator: torch.Generator, low: int, high: int) -> int:
    return int(torch.randint(low, high + 1, (), generator=generator))


@pytest.mark.parametrize(("capacity", "slack"), [(50, 0.0), (37, 0.25), (60, 1.0), (9, 0.4), (1, 0.0)])
def test_the_ring_holds_what_a_list_would_hold_through_a_thousand_appends(tmp_path, capacity, slack):
    generator = torch.Generator().manual_seed(capacity)
    storage = TrajectoryStorage(tmp_path, capacity=capacity, slack=slack)
    ring = Ring(capacity, capacity + int(capacity * slack))
    number = 0
    for turn in range(350):
        batch = []
        for _ in range(draw(generator, 1, 5)):
            length = draw(generator, 1, min(capacity, 30) if draw(generator, 0, 9) == 0 else min(capacity, 8))
            batch.append(trajectory(number, length))
            ring.append(number, length)
            number += 1
        ids = storage.append(padded(batch) if turn % 2 else batch)
        assert ids.tolist() == list(range(number - len(batch), number))
        assert content(storage) == ring.content()
        assert storage.num_appended == number
        assert storage.num_timesteps == sum(length for _, length in ring.content())


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


@pytest.mark.parametrize("ahead", [0, 1 << 60])
def test_reading_beyond_an_end_or_not_gives_the_same(tmp_path, monkeypatch, ahead):
    monkeypatch.setattr("yamame.replay.follower.MOST_READ_AHEAD", ahead)
    generator = torch.Generator().manual_seed(0)
    storage = TrajectoryStorage(tmp_path, capacity=40, slack=0.0)
    ring = Ring(40, 40)
    for number in range(120):  # some of them end with the file
        length = draw(generator, 1, 9)
        storage.append([trajectory(number, length)])
        ring.append(number, length)
        assert content(storage) == ring.content()


def test_entries_of_every_dtype_and_depth_come_back_and_outlive_the_files(tmp_path):
    step = torch.arange(7)
    entries = {
        ("observation", "camera", "rgb"): torch.randint(256, (7, 3, 5, 4), dtype=torch.uint8),
        ("observation", "camera", "depth"): torch.rand(7, 5).half(),
        ("observation", "tokens"): torch.randint(1000, (7, 6)),
        ("observation", "flags"): torch.rand(7, 3) < 0.5,
        ("observation", "odd"): torch.rand(7, 3, dtype=torch.float64),
        "action": step.int(),
        ("next", "reward"): torch.rand(7, 1).bfloat16(),
        ("next", "info", "wave"): torch.rand(7, 2, dtype=torch.complex64),
    }
    whole = TensorDict({}, batch_size=[7])
    for key, value in entries.items():
        whole.set(key, value)
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


def test_parts_of_trajectories_are_the_slices_of_the_whole(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=100)
    storage.append([trajectory(n, 9 + n) for n in range(3)])
    begin, end = torch.tensor([0, 4, 10]), torch.tensor([3, 10, 11])
    batch = storage.get((torch.tensor([0, 1, 2]), begin, end))
    for b in range(3):
        expected = trajectory(b, 9 + b)["x"][begin[b] : end[b]]
        assert torch.equal(batch["x"][b, : len(expected)], expected)
    with pytest.raises(IndexError, match="parts must lie in their trajectories"):
        storage.get((torch.tensor([0]), torch.tensor([0]), torch.tensor([10])))


def refusal(storage: TrajectoryStorage, batch: list[TensorDict]) -> Exception | None:
    """What append raised."""
    try:
        storage.append(batch)
    except (OSError, RuntimeError) as error:
        return error
    return None


# --- atomicity ---


@pytest.fixture
def at_every_write(monkeypatch):
    """Calls a function before, in the middle of and after every write to a file."""
    real = os.pwrite

    def install(function):
        def pwrite(descriptor, data, offset):
            half = len(data) // 2
            function()
            real(descriptor, data[:half], offset)
            function()
            written = half + real(descriptor, data[half:], offset + half)
            function()
            return written

        monkeypatch.setattr(os, "pwrite", pwrite)

    return install


@pytest.mark.parametrize("slack", [0.0, 0.5])
def test_between_any_two_writes_the_folder_holds_whole_trajectories_only(tmp_path, at_every_write, slack):
    """What a kill at that moment would leave behind, and what another process would see."""
    storage = TrajectoryStorage(tmp_path, capacity=30, slack=slack)
    generator = torch.Generator().manual_seed(0)
    storage.append([trajectory(0, 3)])
    seen = []
    allowed = []

    def check():
        found = content(TrajectoryFollower(tmp_path))
        assert any(found == before[len(before) - len(found) :] for before in allowed)
        seen.append(len(found))

    at_every_write(check)
    ring = Ring(30, 30 + int(30 * slack))
    ring.append(0, 3)
    number = 1
    for _ in range(25):
        before = ring.content()
        batch = [trajectory(number + i, draw(generator, 1, 12)) for i in range(2)]
        for one in batch:
            ring.append(number, len(one))
            number += 1
        allowed[:] = [before, ring.content()]
        storage.append(batch)
    assert len(seen) > 500


def test_that_check_would_notice_rows_overwritten_before_the_eviction_is_published(
    tmp_path, at_every_write, monkeypatch
):
    storage = TrajectoryStorage(tmp_path, capacity=10, slack=0.0)
    storage.append([trajectory(0, 5), trajectory(1, 5)])
    publish = storage._publish
    monkeypatch.setattr(
        storage, "_publish", lambda **changes: publish(**changes) if "row" in changes else None
    )
    at_every_write(lambda: content(TrajectoryFollower(tmp_path)))
    with pytest.raises(AssertionError):
        storage.append([trajectory(2, 5)])


def full_disk(monkeypatch, after: int) -> list[int]:
    """Lets ``after`` writes succeed and writes only half of the next one. Counts the writes."""
    calls = count()
    real = os.pwrite

    def pwrite(descriptor, data, offset):
        made.append(next(calls))
        if made[-1] >= after:
            if made[-1] == after and len(data) > 1:
                return real(descriptor, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, offset)

    made: list[int] = []
    monkeypatch.setattr(os, "pwrite", pwrite)
    return made


def test_a_full_disk_leaves_everything_as_it_was_whichever_write_fails(tmp_path, monkeypatch):
    lengths = [5, 7, 3, 6, 8, 2, 7, 7, 4, 6, 5, 8]
    for appended in (0, 3, 8):
        for failing in count():
            folder = tmp_path / f"{appended}-{failing}"
            storage = TrajectoryStorage(folder, capacity=30, slack=1.0)
            for number in range(appended):
                storage.append([trajectory(number, lengths[number])])
            before = content(storage)
            batch = [trajectory(appended + i, lengths[appended + i]) for i in range(2)]
            with monkeypatch.context() as patch:
                writes = full_disk(patch, failing)
                failed = refusal(storage, batch)
            if failed is None:
                break
            assert isinstance(failed, OSError)
            assert failed.errno == errno.ENOSPC
            assert re.search(f"{folder}.* must have room for", str(failed))
            assert content(storage) == before == content(TrajectoryFollower(folder))
            assert storage.num_appended == appended
            storage.append(batch)
            assert content(storage)[-2:] == [(appended + i, lengths[appended + i]) for i in range(2)]
        assert failing == len(writes)
        assert failing >= 2 + 4 + 1


def test_without_slack_a_full_disk_loses_the_oldest_trajectories_and_no_other(tmp_path, monkeypatch):
    storage = TrajectoryStorage(tmp_path, capacity=20, slack=0.0)
    storage.append([trajectory(n, 5) for n in range(4)])
    with monkeypatch.context() as patch:
        full_disk(patch, 2)
        with pytest.raises(OSError, match="must have room for"):
            storage.append([trajectory(4, 7)])
    assert content(storage) == [(2, 5), (3, 5)]
    storage.append([trajectory(4, 7)])
    assert content(storage) == [(2, 5), (3, 5), (4, 7)]


def test_a_file_that_may_not_grow_is_an_error_with_path_and_size_and_no_signal(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16000, hard))
        with pytest.raises(OSError, match=r"0\.rows must be able to hold 20000 bytes"):
            storage.append([trajectory(0, 5)])
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        storage.append([trajectory(n, 100) for n in range(9)])
        resource.setrlimit(resource.RLIMIT_FSIZE, (14600, hard))
        with pytest.raises(OSError, match=r"0\.rows must have room for 1600 bytes"):
            storage.append([trajectory(9, 100)])
        assert content(storage) == [(n, 100) for n in range(9)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    storage.append([trajectory(9, 100)])
    assert content(storage)[-1] == (9, 100)


# --- rollback ---


@pytest.mark.parametrize(("capacity", "slack"), [(50, 0.5), (40, 1.0), (30, 0.0)])
def test_a_protected_state_comes_back_bit_for_bit_also_in_a_new_process(tmp_path, capacity, slack):
    generator = torch.Generator().manual_seed(capacity)
    storage = TrajectoryStorage(tmp_path, capacity=capacity, slack=slack)
    ring = Ring(capacity, capacity + int(capacity * slack))
    state, remembered, refused, rolled_back = storage.state_dict(), ring.copy(), 0, 0
    fresh = count()
    for _ in range(400):
        what = draw(generator, 0, 19)
        if what == 0:
            state, remembered = json.loads(json.dumps(storage.state_dict())), ring.copy()
            storage.protect(state)
        elif what == 1 and remembered.held:
            storage.load_state_dict(state)
            ring, rolled_back = remembered.copy(), rolled_back + 1
        elif what == 2:
            storage.close()
            storage = TrajectoryStorage(tmp_path, capacity=capacity, slack=slack, resume=True)
        else:
            batch = [trajectory(next(fresh), draw(generator, 1, 10)) for _ in range(draw(generator, 1, 3))]
            total = sum(len(one) for one in batch)
            asked = storage.needs_protect(total)
            if asked:
                failed = refusal(storage, batch)
                if failed is not None:
                    assert f"must not overwrite protected rows, got {total} timesteps" in str(failed)
                    assert content(storage) == ring.content()
                    refused += 1
                    continue
            else:
                storage.append(batch)
            for one in batch:
                ring.append(int(one["x"][0, 0]) // 1000, len(one))
        assert content(storage) == ring.content()
    assert refused > 10
    assert rolled_back > 10


def test_without_protection_nothing_is_refused_and_an_overwritten_state_cannot_come_back(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=20, slack=0.5)
    storage.append([trajectory(n, 5) for n in range(4)])
    state = storage.state_dict()
    storage.append([trajectory(4, 5), trajectory(5, 5)])
    storage.load_state_dict(state)
    assert content(storage) == [(n, 5) for n in range(4)]
    for number in range(4, 9):
        assert not storage.needs_protect(5)
        storage.append([trajectory(number, 5)])
    with pytest.raises(ValueError, match="rows of the state must not be overwritten, got start=0"):
        storage.load_state_dict(state)
    with pytest.raises(ValueError, match="rows of the state must not be overwritten, got start=0"):
        storage.protect(state)
    assert content(storage) == [(n, 5) for n in range(5, 9)]


def test_a_state_of_an_abandoned_branch_is_refused(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=100)
    storage.append([trajectory(0, 5)])
    old = storage.state_dict()
    storage.append([trajectory(1, 5)])
    abandoned = storage.state_dict()
    storage.load_state_dict(old)
    storage.append([trajectory(2, 5)])
    with pytest.raises(ValueError, match="rows of the state must not be overwritten"):
        storage.load_state_dict(abandoned)
    storage.load_state_dict(old)
    assert content(storage) == [(0, 5)]
    with pytest.raises(ValueError, match=r"next of the state must be at most 1, .* got 2"):
        storage.load_state_dict(abandoned)


def test_protecting_a_newer_state_releases_the_older(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=20, slack=0.5)
    storage.append([trajectory(n, 5) for n in range(4)])
    storage.protect()
    storage.append([trajectory(4, 10)])
    assert storage.needs_protect(1)
    with pytest.raises(RuntimeError, match="must not overwrite protected rows, got 1 timesteps"):
        storage.append([trajectory(5, 1)])
    storage.protect()
    assert not storage.needs_protect(10)
    storage.append([trajectory(5, 10)])
    assert content(storage) == [(4, 10), (5, 10)]


def test_an_emptied_storage_goes_on_and_can_be_rolled_back(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=20)
    empty = storage.state_dict()
    storage.append([trajectory(0, 5), trajectory(1, 6)])
    full = storage.state_dict()
    storage._empty()
    assert len(storage) == 0
    assert storage.num_timesteps == 0
    storage.load_state_dict(full)
    assert content(storage) == [(0, 5), (1, 6)]
    storage.load_state_dict(empty)
    storage.append([trajectory(2, 4)])
    assert content(storage) == [(2, 4)]


# --- other processes ---


def test_a_follower_sees_appends_and_leaves_out_what_is_evicted_while_it_reads(tmp_path, monkeypatch):
    storage = TrajectoryStorage(tmp_path, capacity=20, slack=0.0)
    follower = TrajectoryFollower(tmp_path)
    assert len(follower) == 0
    storage.append([trajectory(n, 5) for n in range(4)])
    assert len(follower) == 0
    follower.refresh()
    assert content(follower) == [(n, 5) for n in range(4)]
    copy = follower._copy

    def overtaken(*args):
        storage.append([trajectory(4, 7)])
        return copy(*args)

    monkeypatch.setattr(follower, "_copy", overtaken)
    assert (follower.get([0, 1, 2, 3])["x"][:, 0, 0] // 1000).tolist() == [2, 3]
    monkeypatch.setattr(follower, "_copy", copy)
    with pytest.raises(RuntimeError, match="trajectories that are held, got 2 evicted"):
        follower.get([0, 1])
    follower.refresh()
    assert content(follower) == [(2, 5), (3, 5), (4, 7)]


def test_a_follower_that_did_not_look_again_would_read_overwritten_rows(tmp_path, monkeypatch):
    storage = TrajectoryStorage(tmp_path, capacity=20, slack=0.0)
    storage.append([trajectory(n, 5) for n in range(4)])
    follower = TrajectoryFollower(tmp_path)
    monkeypatch.setattr(follower, "_still_held", lambda ids: ids >= 0)
    storage.append([trajectory(4, 7)])
    with pytest.raises(AssertionError):
        content(follower)


def test_a_follower_trusts_nothing_it_knew_before_a_rollback(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=20)
    storage.append([trajectory(0, 5)])
    state = storage.state_dict()
    storage.append([trajectory(1, 5)])
    follower = TrajectoryFollower(tmp_path)
    storage.load_state_dict(state)
    storage.append([trajectory(2, 5)])
    with pytest.raises(RuntimeError, match="got 1 evicted"):
        follower.get([1])
    follower.refresh()
    assert content(follower) == [(0, 5), (2, 5)]


def test_a_pickled_storage_arrives_as_a_follower(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=20)
    storage.append([trajectory(0, 5)])
    copy = pickle.loads(pickle.dumps(storage))
    assert type(copy) is TrajectoryFollower
    assert content(copy) == [(0, 5)]


PROCESSES = """
import os, signal, sys, time
import torch
from tensordict import TensorDict
from yamame.replay import TrajectoryFollower, TrajectoryStorage

folder, turns, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
LENGTHS = [3, 40, 17, 58, 1, 29, 9]

def write_forever():
    storage = TrajectoryStorage(folder, capacity=300, slack=0.1, resume=True)
    while True:
        n = storage.num_appended
        batch = []
        for i in range(n, n + 3):
            x = torch.arange(LENGTHS[i % 7]) + 1000 * i
            batch.append(TensorDict({"x": x[:, None].expand(-1, 50).contiguous(), "y": x.float()}, [len(x)]))
        storage.append(batch)

def check(storage):
    batch = storage.get(range(len(storage)))
    for one in batch:
        length = int(one["mask"].sum())
        number = int(one["x"][0, 0]) // 1000
        expected = torch.arange(length) + 1000 * number
        assert length == LENGTHS[number % 7]
        assert (one["x"][:length] == expected[:, None]).all() and (one["y"][:length] == expected).all()
    return [int(n) for n in batch["x"][:, 0, 0] // 1000]

seen, refused = [], 0
for turn in range(turns):
    child = os.fork()
    if child == 0:
        write_forever()
    stop, follower = time.monotonic() + seconds * (turn + 1) / turns, None
    try:
        while time.monotonic() < stop or refused == turn:
            if follower is None:
                if not os.path.exists(folder + "/meta.json"):
                    continue
                follower = TrajectoryFollower(folder)
                before = follower.num_appended
            follower.refresh()
            if refused == turn and follower.num_appended > before:
                try:
                    TrajectoryStorage(folder, capacity=300, slack=0.1, resume=True)
                except ValueError as error:
                    assert "must not be written by another process" in str(error), error
                    refused += 1
            try:
                seen += check(follower) if len(follower) else []
            except RuntimeError as error:
                assert "evicted" in str(error), error
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    storage = TrajectoryStorage(folder, capacity=300, slack=0.1, resume=True)
    held = check(storage)
    assert held == list(range(held[0], held[0] + len(held))) and held[-1] == storage.num_appended - 1
    storage.close()
print(len(seen), len(set(seen)), storage.num_appended)
"""


def test_other_processes_read_whole_trajectories_cannot_write_and_take_over_after_a_kill(tmp_path):
    command = [sys.executable, "-c", PROCESSES, str(tmp_path / "store"), "6", "0.6"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert result.returncode == 0, result.stderr
    read, different, appended = map(int, result.stdout.split())
    assert read > 200
    assert different > 50
    assert appended > 100


# --- errors ---


def test_arguments_out_of_range_are_errors(tmp_path):
    with pytest.raises(ValueError, match="capacity must be at least 1, got 0"):
        TrajectoryStorage(tmp_path, capacity=0)
    with pytest.raises(ValueError, match=r"slack must be at least 0, got -0\.1"):
        TrajectoryStorage(tmp_path, capacity=5, slack=-0.1)
    with pytest.raises(ValueError, match="TrajectoryFollower: path must hold trajectories, got"):
        TrajectoryFollower(tmp_path / "nothing")


def test_a_folder_of_something_else_is_an_error_and_stays_as_it_is(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match=r"path must be empty or hold trajectories, got .*thesis\.tex"):
        TrajectoryStorage(tmp_path, capacity=5, resume=True)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_storage_of_another_run_size_or_format_is_an_error(tmp_path):
    TrajectoryStorage(tmp_path, capacity=20, owner="ayu").close()
    with pytest.raises(ValueError, match=r"owner must be 'ayu' as in .*, got 'iwana'"):
        TrajectoryStorage(tmp_path, capacity=20, owner="iwana", resume=True)
    with pytest.raises(ValueError, match=r"capacity must be 20 as in .*, got 21"):
        TrajectoryStorage(tmp_path, capacity=21, owner="ayu", resume=True)
    with pytest.raises(ValueError, match=r"rows must be 25 as in .*, got 40"):
        TrajectoryStorage(tmp_path, capacity=20, slack=1.0, owner="ayu", resume=True)
    with pytest.raises(ValueError, match="path must be new or empty unless resume=True, got"):
        TrajectoryStorage(tmp_path, capacity=20, owner="ayu")
    meta = json.loads((tmp_path / "meta.json").read_text())
    (tmp_path / "meta.json").write_text(json.dumps({**meta, "version": 99}))
    with pytest.raises(ValueError, match=r"path must hold 'yamame trajectories' of version 1, got .*99"):
        TrajectoryStorage(tmp_path, capacity=20, owner="ayu", resume=True)


def test_a_state_of_another_run_is_an_error(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=20, owner="ayu")
    with pytest.raises(ValueError, match="owner of the state must be 'ayu', got 'iwana'"):
        storage.load_state_dict({**storage.state_dict(), "owner": "iwana"})


def test_a_damaged_header_is_an_error_and_not_an_empty_storage(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=20)
    storage.append([trajectory(0, 5)])
    storage.close()
    (tmp_path / "header").write_bytes(bytes(128))
    with pytest.raises(ValueError, match="header must have a valid checksum, got none"):
        TrajectoryStorage(tmp_path, capacity=20, resume=True)


def test_what_cannot_be_stored_is_an_error_and_nothing_is_written(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=20)
    one = trajectory(0, 5)
    storage.append([one])
    with pytest.raises(ValueError, match="a trajectory must have at most 20 timesteps, got 21"):
        storage.append([trajectory(1, 5), trajectory(2, 21)])
    for key, value, shown in [
        ("x", one["x"].float(), r"x torch\.int64 \[2\], got x torch\.float32 \[2\]"),
        ("flag", one["flag"][:, None], r"flag torch\.bool \[\], got flag torch\.bool \[1\]"),
        (("next", "more"), one["x"], r"None, got next\.more torch\.int64 \[2\]"),
    ]:
        with pytest.raises(ValueError, match=f"TrajectoryStorage: trajectories must hold {shown}"):
            storage.append([one.clone().set(key, value)])
        with pytest.raises(ValueError, match="must hold"):
            storage.append([one, one.clone().set(key, value)])
    with pytest.raises(ValueError, match=r"must hold half torch\.bfloat16 \[1\], got None"):
        storage.append([one.exclude("half")])
    with pytest.raises(ValueError, match=r"a trajectory must have a timestep, got lengths \[5 0\]"):
        storage.append([one, one[:0]])
    gap = padded([one]).set("mask", torch.tensor([[True, True, False, True, True]]))
    with pytest.raises(ValueError, match="mask must be right padded, got a real timestep after padding"):
        storage.append(gap)
    with pytest.raises(IndexError, match=r"positions must be in 0\.\.0, got \[1\]"):
        storage.get([1])
    with pytest.raises(RuntimeError, match=r"must not be changed, got set\(0\)"):
        storage[0] = one
    assert content(storage) == [(0, 5)]
    assert storage.append([]).tolist() == []


def test_an_entry_without_elements_is_an_error(tmp_path):
    storage = TrajectoryStorage(tmp_path, capacity=20)
    with pytest.raises(ValueError, match=r"must have at least one element, got x torch\.float32 \[0\]"):
        storage.append(TensorDict({"x": torch.zeros(1, 4, 0)}, batch_size=[1, 4]))
    storage.append([trajectory(0, 5)])
    assert content(storage) == [(0, 5)]
