"""Thumbnails of environments: the page shows those that the tool draws, in small files."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools" / "thumbnails.py"
FOLDER = ROOT / "docs" / "figures" / "environments"
PAGE = (ROOT / "docs" / "environments.md").read_text()
MOST_BYTES = 500_000


@pytest.fixture(scope="module")
def tool():
    return runpy.run_path(str(TOOL))


def test_the_page_shows_every_picture_of_the_tool_once(tool):
    shown = re.findall(r"!\[[^\]]+\]\(figures/environments/(\w+)\.png\)", PAGE)
    assert sorted(shown) == sorted(tool["SETTINGS"])
    files = sorted(FOLDER.iterdir())
    assert [file.stem for file in files] == sorted(shown)
    assert sum(file.stat().st_size for file in files) < MOST_BYTES


def test_pictures_are_drawn_anew(tool, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(TOOL), "tmaze", "--out", str(tmp_path)])
    tool["main"]()
    drawn = np.asarray(Image.open(tmp_path / "tmaze.png").convert("RGB"))
    stored = np.asarray(Image.open(FOLDER / "tmaze.png").convert("RGB"))
    assert drawn.shape == stored.shape
    assert drawn.shape[1] <= tool["SIZE"][0]
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 4
    assert "tmaze.png" in capsys.readouterr().out


def test_an_environment_without_pictures_is_drawn_by_its_numbers(tool):
    # A bandit shows one number; it is drawn here as if it had no picture of its own.
    import yamame
    from yamame.runs.build import build_env

    env = build_env(yamame.compose("env=bandits", "logger=none"), num_envs=1, seed=0)
    picture = tool["numbers_over_time"](env, env.reset())
    assert picture.shape[1] == tool["COLUMNS"] * tool["CELL"]
    assert picture.dtype == np.uint8
