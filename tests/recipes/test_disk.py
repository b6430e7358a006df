"""Disks that fail: a run ends with one line, and goes on to the same parameters once the disk is
back.
"""

import contextlib
import errno
import json
import os
import resource
import shutil
import subprocess
from unittest.mock import Mock

import pytest
from yamame.runs.run import Run
from yamame.tracking.mlflow_store import MLflowRun, NoAnswerError

FAILURES = {
    errno.ENOSPC: "No space left on device; make room on its disk",
    errno.EROFS: "Read-only file system; make the file system writable",
}


def check_failed(
    folder, status: int, errors: str, *texts: str, keeps_traceback: bool = True
) -> None:
    """A run that ended with one line, which holds some texts, and says so."""
    assert status == 1
    assert errors.count("\n") == 1
    assert errors.startswith("train: ")
    for text in texts:
        assert text in errors
    assert "; once that is fixed, resume=true continues the run" in errors
    assert errors.endswith("; the traceback is in runs/a/error.txt\n") == keeps_traceback
    assert "Traceback" in (folder / "runs/a/error.txt").read_text()
    assert json.loads((folder / "runs/a/summary.json").read_text())["status"] == "FAILED"


def check_goes_on(finished, play, folder, components, differing) -> None:
    status, _, errors = play("train", folder, *finished.goes_on)
    assert status == 0
    # A run as short as this one is advised to go on.
    assert finished.without_advice(errors) == []
    # Padding of open episodes, which nothing reads, may differ.
    same = differing(
        finished.expected, components(folder / "runs/a"), skip=("/collector/open/steps",)
    )
    assert same == []
    assert json.loads((folder / "runs/a/summary.json").read_text())["status"] == "FINISHED"
    assert not (folder / "runs/a/error.txt").exists()
    assert not list((folder / "runs/a").rglob("*.partial"))


@pytest.mark.parametrize(
    ("function", "call", "number"),
    [
        ("fsync", 3, errno.ENOSPC),
        *(
            pytest.param("fsync", call, errno.ENOSPC, marks=pytest.mark.slow)
            for call in (1, 2, 4, 5, 6, 7, 8, 9, 12)
        ),
        ("replace", 1, errno.EROFS),
    ],
)
def test_a_disk_that_fails_while_a_run_saves_is_one_line_and_the_run_goes_on_afterwards(
    finished, play, tmp_path, monkeypatch, components, differing, function, call, number
):
    folder, calls, real = tmp_path / "work", [], getattr(os, function)
    saved, save = [], Run.save
    shutil.copytree(finished.folder, folder)

    def saving(self, *arguments):
        saved.append(self)
        save(self, *arguments)

    def failing(*arguments):
        if not saved or len(calls) >= call:  # once is enough: the summary can be written
            return real(*arguments)
        calls.append(arguments)
        if len(calls) == call:
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, function, failing)
        patch.setattr(Run, "save", saving)
        status, _, errors = play("train", folder, *finished.goes_on)
    check_failed(folder, status, errors, "runs/a/", FAILURES[number])
    check_goes_on(finished, play, folder, components, differing)


@pytest.mark.parametrize(("limit", "file"), [(100_000, "checkpoints/step-"), (5000, "replay/")])
def test_a_file_that_may_not_grow_is_one_line_and_the_run_goes_on_afterwards(
    finished, play, tmp_path, components, differing, limit, file
):
    folder = tmp_path / "work"
    shutil.copytree(finished.folder, folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        status, _, errors = play("train", folder, *finished.goes_on)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    check_failed(
        folder,
        status,
        errors,
        f"runs/a/{file}",
        "File too large",
        "allow larger files, with ulimit -f",
    )
    check_goes_on(finished, play, folder, components, differing)


@contextlib.contextmanager
def small_disk(place, size: int):
    """A file system of a size in bytes, with all but that much taken."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(
    finished, play, tmp_path, components, differing
):
    with small_disk(tmp_path, 200_000_000):
        folder, filler = tmp_path / "work", tmp_path / "filler"
        shutil.copytree(finished.folder, folder)
        filler.write_bytes(bytes(shutil.disk_usage(tmp_path).free - 20_000))
        status, _, errors = play("train", folder, *finished.goes_on)
        assert (status, errors.count("\n")) == (1, 1)
        assert "No space left on device" in errors
        assert "make room on its disk" in errors
        assert "resume=true continues the run" in errors
        filler.unlink()
        check_goes_on(finished, play, folder, components, differing)


def test_a_store_that_takes_no_new_run_is_one_line_and_the_run_goes_on_afterwards(
    play, tmp_path, monkeypatch
):
    arguments = ["debug=tiny", "env=bandits", "env.time_limit=9", "encoder=gru", "run.name=a"]
    arguments += ["logger.system_metrics=false", "logger.models=false"]

    # A function of this file would be code of a user.
    refuse = Mock(
        side_effect=NoAnswerError(
            "tracking_uri: must be a store that takes a run, got mlflow.db: readonly database"
        )
    )
    with monkeypatch.context() as broken:
        broken.setattr(MLflowRun, "create", refuse)
        status, _, errors = play("train", tmp_path, *arguments)
    assert (status, errors.count("\n")) == (2, 1)
    assert "mlflow.db: readonly database" in errors
    status, out, _ = play("train", tmp_path, *arguments, "resume=auto")
    assert status == 0
    assert "mlflow ui" in out
    assert json.loads((tmp_path / "runs/a/summary.json").read_text())["status"] == "FINISHED"
