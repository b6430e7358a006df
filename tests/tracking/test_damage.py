"""Damaged files of a run: bad lines are named and skipped, wrong offsets lose nothing, and a record
that cannot be used is explained.
"""

import json
import os
import shutil

import pytest
from yamame.checks import UsageError
from yamame.tracking import MLflowTracker, read_metrics, send_rest
from yamame.tracking.entries import parse_entry, parse_metrics
from yamame.tracking.follower import Follower
from yamame.tracking.log import LONGEST_LINE, METRICS_FILE
from yamame.tracking.sender import ENTRIES_FILE, OFFSETS_FILE, Sender

GOOD = {"step": 5, "time": 1.5, "metrics": {"train/loss": 0.5}}


def metrics_line(**changes):
    return json.dumps({**GOOD, **changes})


BAD_METRICS = [
    *(metrics_line(time=time) for time in (float("nan"), float("inf"), 1e300, None)),
    *(metrics_line(ms=ms) for ms in (float("nan"), None, 10**400)),
    *(metrics_line(step=step) for step in (2**70, -(2**70), 1.5, None)),
    *(metrics_line(metrics={"train/loss": value}) for value in (10**400, "1", None, True)),
    '{"status": "KILLED", "ms": 1}',
    '{"tags": {"a": "b"}}',
    '{"foo": 1}',
]
BAD_ENTRIES = [
    '{"params": [1]}',
    '{"params": [1], "tags": {"a": "b"}}',
    '{"tags": "x"}',
    '{"tags": {"a": %s}}' % ("[" * 60 + "]" * 60),
    '{"status": "BOGUS", "ms": 5}',
    '{"status": ["KILLED"], "ms": 5}',
    '{"status": "KILLED", "ms": NaN}',
    '{"status": "KILLED", "ms": 1.5}',
    '{"status": "KILLED", "ms": 9223372036854775808}',
    '{"status": "KILLED"}',
    '{"artifact": 3, "folder": null}',
    '{"artifact": "a\\u0000b", "folder": null}',
    json.dumps({"artifact": "x" * 256, "folder": None}),
    '{"artifact": "config.yaml", "folder": "../../x"}',
    '{"artifact": "config.yaml", "folder": 7}',
    '{"table": "../../evil.json", "content": {"a": 1}}',
    '{"table": "/evil.json", "content": {"a": 1}}',
    '{"table": "t.json", "content": [1]}',
    '{"table": "t.json", "content": {"a": %s}}' % ("[" * 60 + "]" * 60),
    '{"model": "model", "step": "x", "mark": "m"}',
    '{"model": "model", "step": 1, "mark": 7}',
    '{"foo": 1}',
    metrics_line(time=float("nan")),
]


@pytest.fixture(scope="module")
def tracking_uri(empty_store, tmp_path_factory):
    """A database of these tests, whose metrics are no results of another test's runs."""
    return f"sqlite:///{shutil.copy(empty_store, tmp_path_factory.mktemp('damage'))}"


@pytest.fixture
def ended(start, tmp_path):
    """The directory of a run that has ended and was sent."""
    (tmp_path / ".lock").touch()
    with start(wait_s=30.0) as tracker:
        tracker.log({"train/loss": 1.0}, step=1)
    return tmp_path, tracker.run


def fetch(run):
    return run.client.get_run(run.run_id)


def append(path, *lines):
    """Append lines and return the numbers that they have."""
    before = path.read_text().count("\n")
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))
    return range(before + 1, before + 1 + len(lines))


def test_lines_that_mlflow_would_refuse_are_named_and_all_others_sent(ended, capfd):
    directory, run = ended
    metrics = directory / METRICS_FILE
    entries = directory / ENTRIES_FILE
    before = len(list(read_metrics(directory)))
    bad_metrics = append(metrics, *BAD_METRICS)
    append(metrics, '{"step": 9, "time": 1.5, "metrics": {"eval/late": 3}}')
    bad_entries = append(entries, *BAD_ENTRIES)
    append(entries, '{"tags": {"late": "yes"}}')
    assert send_rest(directory) == 2

    data = fetch(run).data
    assert (data.metrics["eval/late"], data.tags["late"]) == (3.0, "yes")
    assert (fetch(run).info.status, data.params["seed"]) == ("FINISHED", "1")
    assert [record.metrics for record in read_metrics(directory)][before:] == [{"eval/late": 3.0}]
    err = capfd.readouterr().err
    for path, numbers in ((metrics, bad_metrics), (entries, bad_entries)):
        shown = ", ".join(map(str, numbers[:20]))
        rest = f" and {len(numbers) - 20} more" if len(numbers) > 20 else ""
        assert f"{path}: damaged, and not sent: line {shown}{rest}\n" in err


def test_entries_that_runs_write_are_none_of_them():
    for entry in (
        {"params": {"success@64": 1, "agent.gammas": "[0.9]"}},
        {"params": {}},
        {"tags": {"mlflow.note.content": "a\0b", "b": None}},
        {"status": "FINISHED", "ms": 1},
        {"artifact": "videos/a b.gif", "folder": "videos"},
        {"artifact": "../x", "folder": ""},
        {"table": "evaluation.json", "content": {"columns": ["a"], "data": [[1.0]]}},
        {"model": "model", "step": 3, "mark": "0a"},
    ):
        assert parse_entry(json.dumps(entry).encode()) == entry
    old = {"metrics": {"train/loss": 1}, "step": 1, "ms": 1500}
    assert parse_entry(json.dumps(old).encode()).time == 1.5


def test_a_line_is_found_by_any_of_its_bytes(tmp_path):
    path = tmp_path / ENTRIES_FILE
    path.write_text("ab\n\ncdef\n")
    follower = Follower(path, parse_entry)
    assert follower.line_numbers([0, 3, 6]) == [1, 2, 3]
    assert follower.line_numbers([2]) == [1]
    assert follower.line_numbers([8]) == [3]


@pytest.mark.parametrize("missing", [1, 4])
def test_a_shorter_file_of_entries_loses_none_of_the_next_session(
    ended, tracking_uri, missing, capfd
):
    """The offset lies in the entries that the session appends first."""
    directory, run = ended
    entries = directory / ENTRIES_FILE
    lines = entries.read_bytes().splitlines(keepends=True)
    entries.write_bytes(b"".join(lines[:-missing]))
    tracker = MLflowTracker(tracking_uri=tracking_uri, system_metrics=False, wait_s=30.0)
    tags = {"second": "yes"}
    with tracker.start(directory, name="a", params={"seed": 1, "new": "p" * 500}, tags=tags):
        pass
    data = fetch(run).data
    assert (data.params["new"], data.tags["second"]) == ("p" * 500, "yes")
    points = run.client.get_metric_history(run.run_id, "train/loss")
    assert [point.step for point in points] == [1]
    assert capfd.readouterr().err == ""


def test_an_offset_within_a_line_is_corrected_on_disk_before_the_file_grows(ended):
    directory, _ = ended
    offsets = json.loads((directory / OFFSETS_FILE).read_text())
    wrong = {**offsets, ENTRIES_FILE: offsets[ENTRIES_FILE] - 1}
    (directory / OFFSETS_FILE).write_text(json.dumps(wrong))
    Sender(directory, lambda: None, run=None, pause_s=0.0)
    corrected = json.loads((directory / OFFSETS_FILE).read_text())
    assert corrected == {**offsets, ENTRIES_FILE: 0}


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ("{}", "tracking_uri is missing"),
        ('{"tracking_uri": 3}', "tracking_uri is missing or no text"),
        ('{"tracking_uri": "sqlite:///a.db"}', "experiment is missing"),
        ("{", "cannot be read"),
        (None, "is missing"),
    ],
)
def test_a_damaged_record_of_the_run_is_explained(ended, record, problem):
    directory, _ = ended
    path = directory / "mlflow.json"
    path.unlink()
    if record is not None:
        path.write_text(record)
    append(directory / METRICS_FILE, json.dumps(GOOD))
    with pytest.raises(UsageError, match=problem) as caught:
        send_rest(directory)
    assert str(path) in str(caught.value)
    assert "resume the run" in str(caught.value)


def test_names_that_mlflow_refuses_warn_when_they_are_logged(tmp_path, tracking_uri, capfd):
    tracker = MLflowTracker(tracking_uri=tracking_uri, system_metrics=False, wait_s=30.0)
    params = {"": 1, "seed": 2, "a@": 3, "a#": 4}
    with tracker.start(tmp_path, name="a", params=params, tags={"../t": "1", "u": "\ud800"}):
        for step in (1, 2):
            tracker.log({"../x": 1.0, "": 1.0, "y" * 300: 2.0, "train/loss": 0.5}, step=step)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 6  # once for each name
    for kind, name in (("parameter", ""), ("tag", "../t"), ("metric", "../x"), ("metric", "")):
        assert sum(line.startswith(f"{kind} {name!r}: logged as") for line in lines) == 1
    data = fetch(tracker.run).data
    assert data.metrics == {"x": 1.0, "_": 1.0, "y" * 250: 2.0, "train/loss": 0.5}
    assert data.params == {"_": "1", "seed": "2", "a_": "3"}
    assert (data.tags["u"], data.tags["t"]) == ("?", "1")


def test_names_that_earlier_versions_logged_are_sent_under_names_that_mlflow_takes(ended):
    directory, run = ended
    line = metrics_line(time=-5.0, metrics={"goal//x": 1.0, "../y": 2.0, "z@5": 3.0})
    append(directory / METRICS_FILE, line)
    append(directory / ENTRIES_FILE, '{"tags": {"": "c", "u//v": "d"}}')
    assert send_rest(directory) == 4
    data = fetch(run).data
    assert (data.metrics["goal/x"], data.metrics["y"], data.metrics["z_5"]) == (1.0, 2.0, 3.0)
    assert (data.tags["_"], data.tags["u/v"]) == ("c", "d")


def test_artifacts_and_tables_have_places_in_the_run(start, tmp_path):
    tracker = start()
    (tmp_path / "config.yaml").touch()
    with pytest.raises(UsageError, match="folder"):
        tracker.log_artifact(tmp_path / "config.yaml", folder="../x")
    with pytest.raises(UsageError, match="name"):
        tracker.log_table("../x", {"a": [1]})


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", [METRICS_FILE, ENTRIES_FILE])
def test_a_file_that_pretends_to_be_large_is_refused_at_once(tmp_path, name):
    (tmp_path / ".lock").touch()
    (tmp_path / name).write_text(f"{metrics_line()}\n")
    os.truncate(tmp_path / name, 2**42)
    with pytest.raises(UsageError, match="its size"):
        send_rest(tmp_path)


def test_lines_without_end_and_many_damaged_ones_take_little_memory(tmp_path):
    path = tmp_path / METRICS_FILE
    path.write_bytes(b"x" * (2 * LONGEST_LINE) + b"\n" * 100_000 + metrics_line().encode() + b"\n")
    follower = Follower(path, parse_metrics)
    batch = follower.read_batch()
    assert batch.num_damaged == 100_002
    assert len(batch.damaged) == 20
    assert batch.end == path.stat().st_size
    assert len(batch.records) == 1
    assert follower.line_numbers(batch.damaged[:2]) == [1, 2]
