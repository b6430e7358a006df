"""The commands and scripts of the page on deployment run."""

import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

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
            program, script, *arguments = shlex.split(line, comments=True)
            if program == "python":
                more = ["logger=none"] if script.endswith("train.py") else []
                subprocess.run(
                    [sys.executable, ROOT / script, *arguments, *more],
                    check=True,
                    capture_output=True,
                )
                ran.append(script)
    assert ran == ["recipes/train.py", "recipes/export.py", "recipes/export.py"]
    assert names["outputs"]["action"].shape == (4,)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "agents",
        "mine.onnx",
        "mine.pt2",
        "models",
        "runs",
    ]
