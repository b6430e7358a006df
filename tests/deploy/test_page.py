"""The commands and scripts of the page on deployment run."""

import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import yamame

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text()
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    names, ran = {}, []
    for kind, text in BLOCKS:
        if kind == "python":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # MLflow has many
                exec(compile(text, "docs/deploy.md", "exec"), names)
            continue
        for line in text.splitlines():
            _, command, *arguments = shlex.split(line, comments=True)
            if command != "serve":  # it would not end
                more = ["logger=none"] if command == "train" else []
                subprocess.run(
                    [sys.executable, ROOT / "recipes" / f"{command}.py", *arguments, *more],
                    check=True,
                    capture_output=True,
                )
                ran.append(command)
    assert ran == ["train", "export", "export"]
    assert names["outputs"]["action"].shape == (4,)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "agents",
        "mine.onnx",
        "mine.pt2",
        "models",
        "runs",
    ]


def test_the_page_names_settings_of_the_server():
    commands = re.findall(r"yamame serve (.*)", PAGE)
    assert len(commands) == 2  # one of them in a container
    for command in commands:
        assert yamame.compose(*command.split(), recipe="serve").port == 8000
