"""Log of a run, and what MLflow gets of it: each point once, whatever is killed and whenever."""

import json
import os
import random
import resource
import shutil
import sqlite3
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from yamame.checks import ArgumentError, UsageError
from yamame.tracking.log import METRICS_FILE, JsonLines, read_metrics
from yamame.tracking.mlflow_store import MLflowRun
from yamame.tracking.sender import ENTRIES_FILE, OFFSETS_FILE, Sender
from yamame.tracking.thinning import Thinning, interval_of


class StoreDownError(Exception):
    pass


class FakeRun:
    """An MLflow run in memory, which stores every point that it gets, the same ones again too.

    Attributes:
        mood: ``well``; ``down`` (a request fails and changes nothing); ``late`` (it fails after
            everything was stored); ``half`` (after half of its points were).
    """

    def __init__(self):
        self.mood, self.points, self.tags = "well", {}, {}
        self.statuses, self.at_status = [], []

    def answer(self, change):
        if self.mood == "down":
            raise StoreDownError
        change()
        if self.mood == "late":
            raise StoreDownError

    def last_steps(self):
        self.answer(lambda: None)
        return {key: points[-1][0] for key, points in self.points.items()}

    def log_metrics(self, points):
        taken = points[: len(points) // 2] if self.mood == "half" else points

        def store():
            for key, value, _, step in taken:
                self.points.setdefault(key, []).append((step, value))

        self.answer(store)
        if self.mood == "half":
            raise StoreDownError

    def log_tags(self, tags):
        self.answer(lambda: self.tags.update(tags))

    def set_status(self, status, milliseconds):
        def store():
            self.statuses.append(status)
            self.at_status.append((milliseconds, {k: list(v) for k, v in self.points.items()}))

        self.answer(store)


def naive_group(step):
    """The steps of which one is stored: one by one to 512, then 256 for every doubling."""
    width = 1
    while step // width >= 512:
        width *= 2
    return (width, step // width)


KEYS = ("train/loss", "eval/success", "collector/speed")


class Tracked(RuleBasedStateMachine):
    """A run that logs, is killed and goes on from checkpoints, beside a store that comes and goes.

    The naive model is the list of all that was logged, and one pass over it.
    """

    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.logged, self.tags, self.statuses, self.ended_with = [], {}, [], {}
        self.step, self.complete, self.store, self.old_offsets = 0, b"", FakeRun(), None

    @initialize()
    def begin(self):
        (self.directory / "mlflow.json").write_text(json.dumps({"run_uuid": "a"}))
        self.open()

    def open(self):
        """Begin a process of the run."""
        self.log = JsonLines(self.directory / METRICS_FILE)
        self.entries = JsonLines(self.directory / ENTRIES_FILE)
        self.sender = self.make_sender()

    def make_sender(self):
        return Sender(self.directory, lambda: self.store, run=None, pause_s=0.0)

    def teardown(self):
        self.log.close()
        self.entries.close()
        shutil.rmtree(self.directory)

    # The run.

    @rule(
        forward=st.integers(0, 300),
        keys=st.sets(st.sampled_from(KEYS), min_size=1),
        times=st.sampled_from((1, 5, 400)),
    )
    def append(self, forward, keys, times):
        for _ in range(times):
            self.step += forward
            metrics = {key: float(len(self.logged)) for key in sorted(keys)}
            self.log.append({"step": self.step, "time": float(self.step), "metrics": metrics})
            self.logged.append((self.step, metrics))

    @rule(value=st.text(max_size=3), key=st.sampled_from("ab"))
    def tag(self, value, key):
        self.entries.append({"tags": {key: value}})
        self.tags[key] = value

    @rule(status=st.sampled_from(("RUNNING", "FINISHED", "KILLED")))
    def set_status(self, status):
        number = len(self.statuses)
        self.entries.append({"status": status, "ms": number})
        self.statuses.append(status)
        self.ended_with[number] = self.expected()

    @rule(mood=st.sampled_from(("well", "well", "down", "late", "half")))
    def send(self, mood):
        self.store.mood = mood
        try:
            self.sender.send()
        except StoreDownError:
            assert mood != "well"
        else:
            assert self.sender.count_waiting() == 0
            self.check_everything_is_sent()
        self.store.mood = "well"

    # Accidents.

    @rule(
        cut=st.booleans(), which=st.sampled_from((METRICS_FILE, ENTRIES_FILE)), back=st.floats(0, 1)
    )
    def kill_and_go_on(self, cut, which, back):
        """Kill the process, perhaps within a write; another goes on from an earlier checkpoint."""
        self.log.close()
        self.entries.close()
        if cut:
            with (self.directory / which).open("ab") as file:
                file.write(b'{"step": 3, "metrics": {"train/l')
        self.step = int(self.step * back)
        self.open()

    @rule(which=st.sampled_from((METRICS_FILE, ENTRIES_FILE)))
    def damage(self, which):
        """Write lines that are no entries, as a broken disk does."""
        with (self.directory / which).open("ab") as file:
            file.write(b'\0\0\0\n[1]\n{"metrics": {}}\n{"metrics": 3, "step": 1, "time": 0}\n')

    @rule()
    def keep_offsets(self):
        path = self.directory / OFFSETS_FILE
        self.old_offsets = path.read_bytes() if path.exists() else None

    @rule()
    def lose_offsets(self):
        """Cut the power: the file of offsets, which is not flushed to disk, is older or gone."""
        path = self.directory / OFFSETS_FILE
        path.unlink(missing_ok=True)
        if self.old_offsets is not None:
            path.write_bytes(self.old_offsets)
        self.sender = self.make_sender()

    @rule()
    def sync(self):
        """Send the rest from another process."""
        self.make_sender().send()
        self.check_everything_is_sent()
        again = self.make_sender()
        again.send()
        assert again.sent == 0
        self.sender = again

    # The laws.

    def check_everything_is_sent(self):
        assert {
            key: points for key, points in self.store.points.items() if points
        } == self.expected()
        assert self.store.tags == self.tags
        assert self.store.statuses[-1:] == self.statuses[-1:]

    def expected(self):
        """Return what the store has when everything logged so far was sent."""
        kept = {}
        for step, metrics in self.logged:
            for key, value in metrics.items():
                points = kept.setdefault(key, [])
                group = (lambda at: (0, at)) if key.startswith("eval/") else naive_group
                if not points or group(step) > group(points[-1][0]):
                    points.append((step, value))
        return kept

    @invariant()
    def the_store_has_the_first_of_the_expected_points_and_none_twice(self):
        expected = self.expected()
        for key, points in self.store.points.items():
            assert points == expected[key][: len(points)]

    @invariant()
    def a_status_came_after_all_points_that_were_logged_before(self):
        for number, points in self.store.at_status:
            for key, before in self.ended_with[number].items():
                assert points[key][: len(before)] == before

    @invariant()
    def the_log_only_grows_and_can_be_read(self):
        path = self.directory / METRICS_FILE
        content = path.read_bytes() if path.exists() else b""
        complete = content[: content.rfind(b"\n") + 1]
        assert complete.startswith(self.complete)
        self.complete = complete
        last, first_values = {}, []
        for step, metrics in self.logged:
            new = {key: value for key, value in metrics.items() if step > last.get(key, -1)}
            last.update(dict.fromkeys(new, step))
            first_values += [(step, new)] if new else []
        assert [(r.step, r.metrics) for r in read_metrics(self.directory)] == first_values


Tracked.TestCase.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, derandomize=True
)
test_the_store_gets_every_point_once = Tracked.TestCase


def test_a_full_disk_leaves_whole_lines_and_names_the_file(tmp_path):
    log = JsonLines(tmp_path / METRICS_FILE)
    log.append({"step": 1, "time": 0.0, "metrics": {"loss": 1.0}})
    before = log.path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, hard))
        with pytest.raises(OSError, match=f"{METRICS_FILE}'"):
            log.append({"step": 2, "time": 0.0, "metrics": {"loss": 1.0}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert log.path.read_bytes() == before
    log.append({"step": 3, "time": 0.0, "metrics": {"loss": 3.0}})
    assert [record.step for record in read_metrics(tmp_path)] == [1, 3]


def test_a_link_or_a_pipe_in_place_of_the_log_is_refused_and_not_read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text('{"step": 1, "time": 0.0, "metrics": {"pin": 1234.0}}\n')
    (tmp_path / METRICS_FILE).symlink_to(secret)
    with pytest.raises(UsageError, match=METRICS_FILE):
        JsonLines(tmp_path / METRICS_FILE)
    assert list(read_metrics(tmp_path)) == []
    assert Sender(tmp_path, lambda: None, run=None, pause_s=0.0).count_waiting() == 0
    (tmp_path / METRICS_FILE).unlink()
    os.mkfifo(tmp_path / METRICS_FILE)
    with pytest.raises(UsageError, match=METRICS_FILE):
        JsonLines(tmp_path / METRICS_FILE)


def test_damaged_lines_are_named_once_and_a_log_of_another_run_is_sent_from_its_beginning(
    tmp_path, capsys
):
    line = json.dumps({"step": 5, "time": 0.0, "metrics": {"loss": 1.0, "nan": float("nan")}})
    (tmp_path / METRICS_FILE).write_text(f"\0\0\n{line}\n{'[' * 200_000}\n")
    (tmp_path / "mlflow.json").write_text('{"run_uuid": "a"}')
    store = FakeRun()
    sender = Sender(tmp_path, lambda: store, run=None, pause_s=0.0)
    sender.send()
    assert capsys.readouterr().err.endswith(f"{METRICS_FILE}: damaged, and not sent: line 1, 3\n")
    sender.send()
    assert capsys.readouterr().err == ""
    (tmp_path / "mlflow.json").write_text('{"run_uuid": "b"}')
    other = FakeRun()
    Sender(tmp_path, lambda: other, run=None, pause_s=0.0).send()
    assert set(other.points) == {"loss", "nan"}


def test_many_damaged_lines_are_counted_and_a_bool_is_no_number(tmp_path, capsys):
    entries = [
        {"step": True, "time": 0.0, "metrics": {"loss": 1.0}},
        {"step": 1, "time": True, "metrics": {"loss": 1.0}},
        {"step": 1, "time": 0.0, "metrics": {"loss": True}},
    ]
    lines = [json.dumps(entry) for entry in entries] + ["damaged"] * 22
    (tmp_path / METRICS_FILE).write_text("\n".join(lines) + "\n")
    Sender(tmp_path, FakeRun, run=None, pause_s=0.0).send()
    shown = ", ".join(map(str, range(1, 21)))
    assert capsys.readouterr().err.endswith(f"line {shown} and 5 more\n")


def test_requests_have_a_thousand_points_at_most(tmp_path):
    log = JsonLines(tmp_path / METRICS_FILE)
    for step in range(30):
        metrics = dict.fromkeys(map(str, range(100)), 0.0)
        log.append({"step": step, "time": 0.0, "metrics": metrics})
    sizes, store = [], FakeRun()
    store.log_metrics = lambda points: sizes.append(len(points))
    Sender(tmp_path, lambda: store, run=None, pause_s=0.0).send()
    assert sizes == [1000, 1000, 1000]


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.lists(st.integers(0, 10**8), min_size=2).map(sorted))
def test_intervals_get_longer_and_no_step_is_without_one(steps):
    numbers = [interval_of(step) for step in steps]
    assert numbers == sorted(numbers)
    groups = [naive_group(step) for step in steps]
    same = [a == b for a, b in pairwise(groups)]
    assert same == [a == b for a, b in pairwise(numbers)]
    assert numbers[-1] < 5100


def test_evaluations_and_costs_are_never_thinned():
    thinning = Thinning()
    for key in ("eval/success_mean", "cost/cpu_s"):
        assert all(thinning.accept(key, step) for step in range(10**6, 10**6 + 100))
        assert not thinning.accept(key, 10**6)
    assert sum(thinning.accept("train/loss", step) for step in range(10**6, 10**6 + 100)) == 1


KEYS, EVALUATED = 32, 16
"""A default run has 31 metrics of training, collector and machine, and 14 of evaluations and
costs.
"""


def test_a_hundred_million_steps_take_less_than_a_hundred_megabytes(tracking_uri):
    run = MLflowRun.create(tracking_uri, "size", name="a", tags={})
    database = sqlite3.connect(tracking_uri.removeprefix("sqlite:///"))

    def size():
        pages = (
            "select (page_count - freelist_count) * page_size from pragma_page_count, "
            "pragma_freelist_count"
        )
        return database.execute(f"{pages}, pragma_page_size").fetchone()[0]

    before, points = size(), 10_000
    names = [f"train/q_value_gamma_0.{key}" for key in range(KEYS)]
    run.log_metrics(
        [
            (names[i % KEYS], random.random(), 1_700_000_000_000 + i, 10**7 + i // KEYS)
            for i in range(points)
        ]
    )
    per_point = (size() - before) / points
    database.close()
    assert 100 < per_point < 400
    # However short the iterations are.
    kept, interval = interval_of(10**8) + 1, 20_000
    total = per_point * (KEYS * kept + EVALUATED * 10**8 // interval)
    print(f"{per_point:.0f} bytes per point, {kept} points per key, {total / 1e6:.0f} MB in all")
    assert total < 100e6


@pytest.mark.parametrize("name", ["nothing", "metrics.jsonl"])
def test_metrics_are_read_from_a_run_directory_alone(tmp_path, name):
    (tmp_path / "metrics.jsonl").touch()
    assert list(read_metrics(tmp_path)) == []
    with pytest.raises(ArgumentError, match=name):
        list(read_metrics(tmp_path / name))
