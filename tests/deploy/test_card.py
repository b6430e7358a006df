"""Model cards of a stranger's agent: what is a text in it stays one on the page of a hub."""

import copy
import re
from dataclasses import replace

import pytest
from yamame.deploy.card import model_card

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "![a](http://evil/track.gif)",
    "[click](javascript:alert(1))",
    "a | b | c",
    "first\n# heading\n| x | y |",
    "`code` \x1b[2J \u202e",
    "&lt;b&gt;",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_an_agent_become_no_html_links_or_cells(maze, text):
    saved = maze.saved
    config = copy.deepcopy(saved.config)
    config["env"] = {"_target_": "yamame_envs.Maze", "note": text, text: 1}
    config["seed"] = text
    about = {"step": text, "revision": text, "evaluated_on": text, "cpu_s": text}
    about["results"] = {text: text, "success_mean": 0.5}
    hostile = model_card(replace(saved, config=config, about=about), "mine")
    about = dict.fromkeys(about, "plain") | {"results": {"plain": "plain", "success_mean": 0.5}}
    config["env"] = {"_target_": "yamame_envs.Maze", "note": "plain", "plain": 1}
    config["seed"] = "plain"
    plain = model_card(replace(saved, config=config, about=about), "mine")

    assert not re.search(r"<(script|img|b)\b", hostile)
    assert not re.search(r"(?<!\\)\]\(", hostile)
    assert hostile.isprintable() or all(
        character.isprintable() or character == "\n" for character in hostile
    )
    # As many lines, and as many cells in each, as with harmless texts.
    cells = [len(re.findall(r"(?<!\\)\|", line)) for line in hostile.splitlines()]
    assert cells == [line.count("|") for line in plain.splitlines()]
    assert [line for line in hostile.splitlines() if line.startswith("#")] == [
        line for line in plain.splitlines() if line.startswith("#")
    ]
