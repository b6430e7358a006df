"""Entries that MLflow refuses for good are kept aside, and block nothing that comes after them."""

import json
import math
import random
import string

import pytest
from yamame.checks import UsageError
from yamame.tracking import MLflowTracker, send_rest
from yamame.tracking.mlflow_store import MLflowRun
from yamame.tracking.names import clean_key, clean_value


def odd_keys():
    """Names of all kinds that MLflow does not take, and some that it does."""
    draw = random.Random(0)
    alphabet = [*"abc/.@ :-_", "..", "//", "\n", "\0", "é", "\ud800", "\u202e", "🙂"]
    keys = ["", ".", "..", "/", "x/", "/x", "a/./b", "a//b", "../x", "..x", "a/../..", "x" * 5000]
    keys += ["/" * 300, "y" * 249 + "/y", "." * 300, " ", string.punctuation]
    for _ in range(150):
        keys.append("".join(draw.choices(alphabet, k=draw.randint(1, 12))))
    return keys


@pytest.fixture
def begin(tracking_uri, tmp_path):
    """Starts a tracker of a run with some parameters and tags."""

    def begin(params, tags=None):
        tracker = MLflowTracker(
            tracking_uri=tracking_uri, system_metrics=False, flush_s=0.0, wait_s=60.0
        )
        return tracker.start(tmp_path, name="a", params=params, tags=tags)

    return begin


def refused_of(directory):
    path = directory / "mlflow.refused.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_no_name_keeps_later_points_and_the_end_from_the_store(begin, tmp_path, capfd):
    keys = odd_keys()
    tracker = begin(dict.fromkeys(keys, "v" * 9000), dict.fromkeys(keys, "a\0b\nc"))
    values = [1.0, math.nan, math.inf, -math.inf, 10**400, -(10**400), 5e-324, True]
    with tracker:
        for step, key in enumerate(keys):
            tracker.log({key: values[step % len(values)]}, step=step)
            tracker.log({"train/loss": 1.0}, step=step)
    run = tracker.run.client.get_run(tracker.run.run_id)
    points = tracker.run.client.get_metric_history(tracker.run.run_id, "train/loss")
    assert [point.step for point in points] == list(range(len(keys)))
    assert run.info.status == "FINISHED"
    expected = {clean_key(key) for key in keys}
    assert expected <= run.data.metrics.keys()
    assert expected <= run.data.params.keys()
    assert expected <= run.data.tags.keys()
    assert refused_of(tmp_path) == []
    assert "does not answer" not in capfd.readouterr().err


def test_a_clean_name_is_one_that_mlflow_takes_and_stays_itself():
    from mlflow.utils.validation import _validate_metric_name, _validate_param, _validate_tag

    for key in odd_keys():
        cleaned = clean_key(key)
        _validate_metric_name(cleaned)
        _validate_param(cleaned, clean_value("v" * 9000))
        _validate_tag(cleaned, "")
        assert clean_key(cleaned) == cleaned


def test_two_names_that_become_one_are_not_mixed(begin, capfd):
    with begin({}) as tracker:
        for step in range(3):
            tracker.log({"a@": 1.0, "a#": 2.0}, step=step)
    points = tracker.run.client.get_metric_history(tracker.run.run_id, "a_")
    assert [point.value for point in points] == [1.0, 1.0, 1.0]
    assert capfd.readouterr().err.count("'a#'") == 1


def test_a_clock_before_1970_loses_nothing(begin, monkeypatch):
    monkeypatch.setattr("yamame.tracking.tracker.time.time", lambda: -1e9)
    with begin({"seed": 1}) as tracker:
        tracker.log({"train/loss": 1.0}, step=1)
    monkeypatch.undo()
    run = tracker.run.client.get_run(tracker.run.run_id)
    assert (run.info.status, run.data.params["seed"]) == ("FINISHED", "1")
    assert run.data.metrics["train/loss"] == 1.0


@pytest.fixture
def uncleaned(monkeypatch):
    """Names reach MLflow as they are, as those that a later version of it may refuse."""
    for module in ("tracker", "entries", "mlflow_store"):
        monkeypatch.setattr(f"yamame.tracking.{module}.clean_key", str)


def test_one_refused_entry_is_kept_aside_and_all_others_are_stored(
    begin, tmp_path, uncleaned, capfd
):
    params = {"good": 1, "a//b": 2, "last": 3}
    with begin(params, {"t//": "1", "kind": "x"}) as tracker:
        for step in range(40):
            tracker.log({"train/loss": 0.5, "goal//x": 1.0}, step=step)
    run = tracker.run.client.get_run(tracker.run.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"good": "1", "last": "3"}
    assert run.data.tags["kind"] == "x"
    points = tracker.run.client.get_metric_history(tracker.run.run_id, "train/loss")
    assert [point.step for point in points] == list(range(40))

    refused = refused_of(tmp_path)
    assert all(entry.pop("reason") for entry in refused)
    assert {"params": {"a//b": "2"}} in refused
    assert {"tags": {"t//": "1"}} in refused
    metrics = [entry for entry in refused if "metrics" in entry]
    assert [entry["step"] for entry in metrics] == list(range(40))
    assert {json.dumps(entry["metrics"]) for entry in metrics} == {'{"goal//x": 1.0}'}
    err = capfd.readouterr().err
    for name in ("a//b", "t//", "goal//x"):
        assert sum(repr(name) in line and "rejects" in line for line in err.splitlines()) == 1


def test_a_deleted_run_gives_nothing_up(begin, tmp_path):
    with begin({}) as tracker:
        tracker.log({"train/loss": 1.0}, step=1)
    client = tracker.run.client
    client.delete_run(tracker.run.run_id)
    with (tmp_path / "metrics.jsonl").open("a") as log:
        log.write('{"step": 2, "time": 1.0, "metrics": {"train/loss": 2.0}}\n')
    (tmp_path / ".lock").touch()
    run = MLflowRun(client, tracker.run.run_id, tracker.run.experiment_id)
    assert not run.takes_entries()
    with pytest.raises(UsageError):
        send_rest(tmp_path)
    client.restore_run(tracker.run.run_id)
    assert send_rest(tmp_path) == 1
    assert refused_of(tmp_path) == []


def test_a_server_that_fails_or_is_away_is_no_refusal(server, tmp_path, monkeypatch):
    """Only an answer about the entry itself counts, while others are taken."""
    tracker = MLflowTracker(
        tracking_uri=server.uri, system_metrics=False, models=False, wait_s=0.5, flush_s=0.0
    )
    with tracker.start(tmp_path, name="a", params={}):
        for mood in (400, 413, 500, 503):
            server.mood = mood
            tracker.log({"train/loss": 1.0}, step=mood)
    (tmp_path / ".lock").touch()
    server.mood = "well"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    send_rest(tmp_path)
    (run,) = server.runs.values()
    assert [step for _, step, _ in run["metrics"]] == [400, 413, 500, 503]
    assert run["status"] == "FINISHED"
    assert refused_of(tmp_path) == []
