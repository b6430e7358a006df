"""Tutorials run from top to bottom, as a reader pastes them, each in an empty folder."""

import contextlib
import os
import re
import runpy
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from yamame import recipes_dir

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"(?:<!-- (.*?) -->\n)?```(python|sh)(?: title=\"(.*?)\")?\n(.*?)```", re.DOTALL)


def yamame(arguments: list[str]) -> int:
    """Runs a command of the console script in this process."""
    path, argv = recipes_dir() / f"{arguments[0]}.py", sys.argv
    sys.argv = [str(path), *arguments[1:]]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.argv = argv
    return 0


SERVE = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
STOPPED = "ended by SIGTERM"


@contextlib.contextmanager
def serving(begin_forked: Callable, command: list[str]) -> Iterator[None]:
    """A server, which ends well when it is stopped."""
    path = str(recipes_dir() / f"{command[1]}.py")
    process = begin_forked(SERVE, path, *command[2:], cwd=Path.cwd())
    try:
        wait_for_port(int(command[-1].partition("=")[2]), process.pid)
        yield
        os.kill(process.pid, signal.SIGTERM)
        ended = process.wait()
        assert (ended.returncode, STOPPED in ended.stderr) == (0, True), ended.stderr
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        raise


def wait_for_port(port: int, pid: int) -> None:
    for _ in range(600):
        with socket.socket() as asked:
            if asked.connect_ex(("127.0.0.1", port)) == 0:
                return
        os.kill(pid, 0)  # it is still there
        time.sleep(0.1)
    raise TimeoutError(port)


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_as_it_stands(
    tutorial, begin_forked, empty_store, tmp_path, monkeypatch, capsys
):
    shutil.copy(empty_store, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("YAMAME_TRUST_RECORD", str(tmp_path / "trusted.jsonl"))
    names, ran = {}, 0
    with contextlib.ExitStack() as stack:
        for note, kind, title, text in BLOCK.findall(tutorial.read_text()):
            if ": " in note:  # less than a reader would wait for
                old, new = note.split(": ")
                assert old in text
                text = text.replace(old, new)
            if kind == "python" and title:
                Path(title).write_text(text)
            elif kind == "python":
                exec(compile(text, tutorial.name, "exec"), names)
            for line in text.splitlines() if kind == "sh" else ():
                command = shlex.split(line)
                if note == "in the background":
                    stack.enter_context(serving(begin_forked, command))
                    continue
                more = ["--cfg", "job"] if note == "only checked" else []
                words = command[1:]
                if more and "-m" in words:  # of a sweep the first job
                    words = [word.partition(",")[0] for word in words if word != "-m"]
                status = yamame([*words, *more])
                assert status == 0, (line, capsys.readouterr().err)
            ran += 1
    assert ran >= 4


def test_there_are_five():
    assert [path.name[0] for path in TUTORIALS] == list("12345")
