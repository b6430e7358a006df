"""Tutorials run from top to bottom, as a reader pastes them, each in an empty folder. Notebooks of
them have the same code.
"""

import base64
import contextlib
import importlib.util
import json
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
LARGEST_PICTURE = 100_000  # bytes


def _tool():
    path = ROOT / "tools" / "notebooks.py"
    spec = importlib.util.spec_from_file_location("notebooks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


notebooks = _tool()


def blocks(tutorial: Path) -> list:
    """The code of a page, in its order."""
    parts = notebooks.split(tutorial.read_text())
    return [part for part in parts if isinstance(part, notebooks.Block)]


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
    monkeypatch.setenv("MPLBACKEND", "agg")
    if tutorial.stem == "0_popgym":
        pytest.importorskip("popgym")
    names: dict = {}
    with contextlib.ExitStack() as stack:
        for block in blocks(tutorial):
            text = block.text
            if ": " in block.note:  # less than a reader would wait for
                old, new = block.note.split(": ")
                assert old in text
                text = text.replace(old, new)
            if block.title:
                Path(block.title).write_text(text)
            elif block.language == "python":
                exec(compile(text, tutorial.name, "exec"), names)
            for line in text.splitlines() if block.language == "sh" else ():
                command = shlex.split(line)
                if block.note == notebooks.BACKGROUND:
                    stack.enter_context(serving(begin_forked, command))
                    continue
                more = ["--cfg", "job"] if block.note == "only checked" else []
                words = command[1:]
                if more and "-m" in words:  # of a sweep the first job
                    words = [word.partition(",")[0] for word in words if word != "-m"]
                status = yamame([*words, *more])
                assert status == 0, (line, capsys.readouterr().err)


def test_there_are_six():
    assert [path.name[0] for path in TUTORIALS] == list("012345")


BOX = ("> - **You will have** ", "> - **You need** ", "> - **Time**: ")


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_has_a_box_expected_output_and_a_picture(tutorial):
    text = tutorial.read_text()
    introduction = text.partition("\n## ")[0]
    assert [line for line in BOX if f"\n{line}" not in introduction] == []
    assert "\n```text\n" in text
    assert len(blocks(tutorial)) >= 3
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert pictures
    for picture in pictures:
        assert (tutorial.parent / picture).stat().st_size <= LARGEST_PICTURE


CELLS = {
    "markdown": {"cell_type", "id", "metadata", "source"},
    "code": {"cell_type", "id", "metadata", "source", "execution_count", "outputs"},
}


def faults(notebook: dict) -> list[str]:
    """What the schema of nbformat 4.5 does not allow in a notebook that has not been run."""
    found = []
    if set(notebook) != {"cells", "metadata", "nbformat", "nbformat_minor"}:
        found.append(f"keys {sorted(notebook)}")
    if (notebook.get("nbformat"), notebook.get("nbformat_minor")) != (4, 5):
        found.append("version")
    ids = [cell.get("id", "") for cell in notebook["cells"]]
    if len(set(ids)) < len(ids) or not all(re.fullmatch(r"[\w-]{1,64}", name) for name in ids):
        found.append(f"ids {ids}")
    for cell in notebook["cells"]:
        kind = cell.get("cell_type")
        if kind not in CELLS or set(cell) - {"attachments"} != CELLS[kind]:
            found.append(f"a cell with {sorted(cell)}")
            continue
        if not isinstance(cell["source"], str) or not isinstance(cell["metadata"], dict):
            found.append(f"source of {cell['id']}")
        if kind == "code" and (cell["execution_count"] is not None or cell["outputs"] != []):
            found.append(f"output of {cell['id']}")
        for name, media in cell.get("attachments", {}).items():
            if kind == "code" or f"(attachment:{name})" not in cell["source"]:
                found.append(f"attachment {name}")
            for content in media.values():
                base64.b64decode(content, validate=True)
    return found


def code_of(cell: dict) -> tuple[str, str]:
    """What Jupyter does with a code cell, and with which text."""
    magic, _, rest = cell["source"].partition("\n")
    if magic.startswith("%%"):
        return magic, f"{rest}\n"
    return "", f"{cell['source']}\n"


def expected_code(block) -> tuple[str, str]:
    if block.title:
        return f"%%writefile {block.title}", block.text
    if block.language == "python":
        return "", block.text
    return "%%bash --bg" if block.note == "in the background" else "%%bash", block.text


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_notebook_has_the_code_of_its_page_and_needs_no_other_file(tutorial):
    notebook = json.loads(notebooks.write(notebooks.make_notebook(tutorial)))
    assert faults(notebook) == []
    setup, *code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert "%pip install" in setup["source"]
    assert list(map(code_of, code)) == list(map(expected_code, blocks(tutorial)))
    text = "\n".join(cell["source"] for cell in notebook["cells"] if cell not in code)
    assert "```python" not in text
    assert "```sh" not in text
    assert "<!--" not in text
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert [name for name in targets if not name.startswith(("https://", "attachment:"))] == []


def test_a_damaged_notebook_has_faults():
    notebook = notebooks.make_notebook(TUTORIALS[1])
    first, second, *rest = notebook["cells"]
    for cells in (
        [first, first],
        [{**first, "source": None}],
        [{key: value for key, value in first.items() if key != "metadata"}],
        [first, {**second, "outputs": ["text"]}],
        [{**first, "attachments": {"a.png": {"image/png": ""}}}],
    ):
        assert len(faults({**notebook, "cells": cells})) == 1, cells
    assert faults({**notebook, "cells": [first, second, *rest]}) == []
    assert len(faults({**notebook, "nbformat": 3})) == 1


def test_the_parts_of_a_page_are_its_text():
    """Nothing is lost between the blocks, also where a block is not code of the tutorial."""
    page = 'a\n\n```text\nb\n```\n\n<!-- c: d -->\n```sh\ne\n```\n```python title="f"\ng\n```\nh\n'
    first, shell, file, last = notebooks.split(page)
    assert (first, last) == ("a\n\n```text\nb\n```\n\n", "h\n")
    assert (shell.note, shell.text, file.title, file.text) == ("c: d", "e\n", "f", "g\n")
