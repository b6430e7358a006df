"""A run that was resumed elsewhere, or with other settings, is marked and gives no row of
evidence.
"""

import csv

import pytest
from yamame.report import make_sections, write_evidence
from yamame.tracking import tracker as tracking
from yamame.tracking.history import RunReader
from yamame.tracking.tracker import MLflowTracker

MADE_BY = {
    "mlflow.source.git.commit": "a" * 40,
    "machine.processor": "EPYC",
    "version.torch": "2.13.0",
}
PARAMS = {
    "seed": 0,
    "device": "cpu",
    "schedule.autocast": None,
    "budget.updates": 2,
    "logger.flush_s": 1,
    "workers.num_processes": 1,
}


@pytest.fixture
def session(tracking_uri, tmp_path, settle, monkeypatch):
    """Starts a run or resumes it, evaluates once, and lets it finish."""

    def session(step, made_by=None, **params):
        made = {**MADE_BY, **(made_by or {})}
        monkeypatch.setattr(tracking, "_made_by", lambda: dict(made))
        params = PARAMS | {key.replace("__", "."): value for key, value in params.items()}
        tags = {"command": "python recipes/train.py experiment=cpu_tmaze", "axis": "env_steps"}
        with MLflowTracker(tracking_uri=tracking_uri, system_metrics=False, flush_s=0.0) as tracker:
            tracker.start(tmp_path, name="a", params=params, tags=tags)
            tracker.log({"eval/success_mean": step / 10}, step=step)
            settle(tracker)

    return session


def evidence(tracking_uri, folder):
    lines = write_evidence(folder, make_sections(RunReader.open(tracking_uri, "yamame").read())[0])
    with (folder / "runs.csv").open(newline="") as file:
        return list(csv.DictReader(file)), lines or []


DIFFERENT = [
    ({"mlflow.source.git.commit": "b" * 40}, {}),
    ({"mlflow.source.git.commit": "a" * 40 + "-dirty"}, {}),
    ({"machine.processor": "Xeon"}, {}),
    ({"machine.gpu": "H100"}, {}),
    ({"version.torch": "2.14.0"}, {}),
    ({}, {"device": "cuda"}),
    ({}, {"schedule__autocast": "bfloat16"}),
]


@pytest.mark.parametrize(("made_by", "params"), DIFFERENT)
@pytest.mark.parametrize("back", [False, True])
def test_a_run_whose_sessions_differ_gives_no_row(
    session, tracking_uri, tmp_path, made_by, params, back
):
    session(1)
    rows, lines = evidence(tracking_uri, tmp_path / "kept")
    assert (len(rows), lines) == (1, [])
    session(2, made_by, **params)
    if back:  # the last session is like the first again
        session(3)
    rows, lines = evidence(tracking_uri, tmp_path / "kept")
    assert rows == []
    assert len(lines) == 1
    value = str(next(iter({**made_by, **params}.values())))
    assert value in lines[0]


def test_the_order_of_sessions_does_not_matter(session, tracking_uri, tmp_path):
    """A run that began on a dirty tree does not get the clean revision of its resume."""
    session(1, {"mlflow.source.git.commit": "a" * 40 + "-dirty"})
    session(2)
    assert evidence(tracking_uri, tmp_path / "kept")[0] == []


def test_a_run_that_is_resumed_alike_or_extended_keeps_its_row(session, tracking_uri, tmp_path):
    session(1)
    session(2)
    session(3, budget__updates=5, logger__flush_s=9, workers__num_processes=2)
    rows, lines = evidence(tracking_uri, tmp_path / "kept")
    assert [row["value"] for row in rows] == ["0.3"]
    assert lines == []


def test_a_run_of_an_earlier_version_that_is_resumed_gives_no_row(session, tracking_uri, tmp_path):
    session(1)
    (tmp_path / "sessions.json").unlink(missing_ok=True)
    session(2)
    assert evidence(tracking_uri, tmp_path / "kept")[0] == []
