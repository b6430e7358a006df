"""Run directories: what is refused, what is atomic, who may write."""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing, contextmanager

import pytest
from yamame.checks import UsageError
from yamame.files.atomic import TEMPORARY_SUFFIX, atomic_writer, write_json
from yamame.files.run_directory import RunDirectory


@contextmanager
def claimed(root, name="maze", **options):
    """A run that begins at the end of the block, unless it fails there."""
    with closing(RunDirectory.open(root, name, **options)) as run:
        yield run
        run.begin()


def finished_run(root, name="maze"):
    with claimed(root, name) as run:
        (run.path / "note.json").write_text("old")
    return run.path


def test_an_existing_run_is_refused_and_the_message_names_both_options(tmp_path):
    path = finished_run(tmp_path)
    with pytest.raises(UsageError, match=rf"{path} exists.*resume=true.*run\.overwrite=true"):
        RunDirectory.open(tmp_path, "maze")
    assert (path / "note.json").exists()


def test_there_must_be_something_to_resume(tmp_path):
    with pytest.raises(UsageError, match=r"no run to resume.*maze does not exist or is empty"):
        RunDirectory.open(tmp_path / "runs", "maze", resume=True)
    assert not (tmp_path / "runs").exists()


def test_auto_is_refused_what_resuming_is(tmp_path):
    with pytest.raises(UsageError, match=r"run\.overwrite: .* resume=auto"):
        RunDirectory.open(tmp_path, "maze", resume="auto", overwrite=True)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.png").touch()
    with pytest.raises(UsageError, match="photos must be a run's directory"):
        RunDirectory.open(tmp_path, "photos", resume="auto")


def test_what_killed_processes_left_is_swept_and_what_others_are_writing_is_not(tmp_path):
    path = finished_run(tmp_path)
    dead = subprocess.Popen(["true"])
    dead.wait()
    (path / "evaluation").mkdir()
    (path / ".deleted").mkdir()
    (path / ".deleted" / "note.json").touch()
    left = {
        pid: path / "evaluation" / f"a.json.{pid}{TEMPORARY_SUFFIX}"
        for pid in (dead.pid, os.getpid())
    }
    kept = [
        *(path / f"b.{owner}{TEMPORARY_SUFFIX}" for owner in (os.getppid(), "mine")),
        path / f"c.{dead.pid}",
    ]
    for file in [*left.values(), *kept]:
        file.touch()
    with claimed(tmp_path, resume=True):
        assert not any(file.exists() for file in [*left.values(), path / ".deleted"])
        assert all(file.exists() for file in [*kept, path / "note.json"])


def test_resuming_and_overwriting_exclude_each_other(tmp_path):
    with pytest.raises(UsageError, match=r"run\.overwrite: .* resume=true"):
        RunDirectory.open(tmp_path, "maze", resume=True, overwrite=True)


def test_a_directory_that_is_no_run_is_never_deleted(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.png").write_text("precious")
    with pytest.raises(UsageError, match="photos must be a run's directory"):
        RunDirectory.open(tmp_path, "photos", overwrite=True)
    assert (tmp_path / "photos" / "one.png").read_text() == "precious"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../up", "a/b", "/etc", "-x", ".hidden", "a b", "a\n", "x" * 129]
)
def test_names_that_are_no_plain_directory_names_are_refused(tmp_path, name):
    with pytest.raises(UsageError, match=r"run\.name: must be .*, got"):
        RunDirectory.open(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_a_second_process_is_told_who_holds_the_run_and_death_releases_it(tmp_path):
    code = (
        "import sys, time; from yamame.files.run_directory import RunDirectory\n"
        f"run = RunDirectory.open({str(tmp_path)!r}, 'maze'); (run.path / 'a').write_text('a')\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "ready\n"
        for options in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(UsageError, match=f"maze is being written by process {holder.pid}"):
                RunDirectory.open(tmp_path, "maze", **options)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with claimed(tmp_path, "maze", resume=True) as run:
        assert (run.path / "a").read_text() == "a"


def test_the_lock_also_holds_inside_one_process_until_closed(tmp_path):
    finished_run(tmp_path)
    held = RunDirectory.open(tmp_path, "maze", resume=True)
    with pytest.raises(UsageError, match=f"process {os.getpid()}"):
        RunDirectory.open(tmp_path, "maze", resume=True)
    held.close()
    RunDirectory.open(tmp_path, "maze", resume=True).close()


def test_a_write_that_fails_leaves_the_former_content_and_no_rest(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"old")

    def fail_half_way():
        with atomic_writer(path) as file:
            file.write(b"ne")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half"):
        fail_half_way()
    assert path.read_bytes() == b"old"
    with atomic_writer(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
        assert any(entry.name.endswith(TEMPORARY_SUFFIX) for entry in tmp_path.iterdir())
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]


def test_what_is_written_is_strict_json(tmp_path):
    path = tmp_path / "summary.json"
    assert json.loads(write_json(path, {"success": 0.5}).read_text()) == {"success": 0.5}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"success": float("nan")})
    assert json.loads(path.read_text()) == {"success": 0.5}


def test_the_directory_itself_may_be_a_link_and_what_is_in_it_may_not(tmp_path):
    first = RunDirectory.open(tmp_path / "disk", "a")
    first.begin()
    (first.path / "replay").mkdir()
    first.close()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a").symlink_to(first.path)
    (tmp_path / "roots").symlink_to(tmp_path / "runs")
    for root in ("runs", "roots"):
        RunDirectory.open(tmp_path / root, "a", resume=True).close()

    (first.path / "replay").rmdir()
    (tmp_path / "fast").mkdir()
    (first.path / "replay").symlink_to(tmp_path / "fast")
    for options in ({"resume": True}, {"resume": "auto"}, {"overwrite": True}):
        with pytest.raises(UsageError, match=r"a/replay is rejected: it is a link; .* run\.root="):
            RunDirectory.open(tmp_path / "runs", "a", **options)
    assert (tmp_path / "fast").is_dir()
