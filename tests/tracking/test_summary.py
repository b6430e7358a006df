"""The summary: complete, strict JSON, and honest about how the run ended."""

import json
import subprocess

import pytest
from yamame.system.signals import Terminated
from yamame.tracking import summary
from yamame.tracking.summary import build_summary, git_revision, run_status

FIELDS = {
    "success": 0.5,
    "return_mean": float("nan"),
    "env_steps": 10,
    "updates": 2,
    "cpu_s": 1.0,
    "wall_s": 2.0,
    "seed": 3,
}


def test_every_field_is_there_and_numbers_json_cannot_hold_become_null():
    built = build_summary(FIELDS, status="FINISHED", extra={"curve": [1.0, float("inf")]})
    assert built.keys() == FIELDS.keys() | {"status", "git_revision", "versions", "curve"}
    assert built["return_mean"] is None
    assert built["curve"] == [1.0, None]
    assert {"python", "cpu", "torch", "torchrl", "tensordict", "numpy", "yamame"} == built[
        "versions"
    ].keys()
    assert json.loads(json.dumps(built, allow_nan=False)) == built


def test_extra_fields_may_not_replace_others():
    with pytest.raises(ValueError, match=r"extra must not repeat a field, got \['seed'\]"):
        build_summary(FIELDS, status="FINISHED", extra={"seed": 9})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "FINISHED"),
        (ValueError("x"), "FAILED"),
        (FloatingPointError, "FAILED"),
        (SystemExit(2), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (Terminated(), "KILLED"),
    ],
)
def test_the_status_follows_the_exception(error, status):
    assert run_status(error) == status


def test_the_revision_is_that_of_the_checkout_and_shows_changes(tmp_path, monkeypatch):
    package = tmp_path / "components" / "yamame" / "runs"
    package.mkdir(parents=True)
    monkeypatch.setattr(summary, "__file__", str(package / "summary.py"))
    assert git_revision() is None
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "file").write_text("1")
    for command in (["init", "-q"], ["add", "file"], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    revision = git_revision()
    assert len(revision) == 40
    (tmp_path / "file").write_text("2")
    assert git_revision() == f"{revision}-dirty"
