"""Model cards of a stranger's agent: what is a text in it stays one on the page of a hub."""

import copy
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yamame
import yaml
from yamame.deploy.card import model_card

ZOO = Path(__file__).parents[2] / "zoo"

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


def metadata(card):
    """The front matter of a card, as hubs find and read it."""
    found = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    return yaml.safe_load(found[1])


NAMES = (
    *HOSTILE,
    'it\'s a "quoted" name: with # colons',
    "a\n---\nlicense: other",
    "ein Käfig für Äffchen, 迷路, 🐒",
    "- [x]",
    "null",
    "1e5",
    "\u2028\x85\ud83d",
    "x" * 5000,
    "",
)


@pytest.mark.parametrize("text", NAMES)
def test_the_front_matter_of_any_agent_is_yaml_with_the_same_fields(maze, text):
    config = maze.saved.config | {"env": {"_target_": "yamame_envs.Gym", "id": text}}
    results = {"return_mean": 0.5, f"return_{text}": 1e-5, "success_mean": 1, text: 3.0}
    about = {"evaluated_on": text, "results": results}
    data = metadata(model_card(replace(maze.saved, config=config, about=about), text))
    assert set(data) == {"library_name", "pipeline_tag", "tags", "model-index"}
    assert data["library_name"] == "yamame"
    assert data["tags"][:2] == ["reinforcement-learning", "in-context-reinforcement-learning"]
    (model,) = data["model-index"]
    (result,) = model["results"]
    assert result["task"]["type"] == "reinforcement-learning"
    assert re.fullmatch(r"[\w.-]+", result["dataset"]["type"], re.ASCII)
    assert result["dataset"]["type"] == data["tags"][-1]
    texts = [model["name"], result["dataset"]["name"], *data["tags"]]
    texts += [metric["name"] for metric in result["metrics"]]
    assert all(isinstance(each, str) and each and len(each) <= 200 for each in texts)
    values = [(metric["type"], metric["value"]) for metric in result["metrics"]]
    assert values[0] == ("mean_reward", 0.5)
    assert values[1][1] == 1e-5
    assert values[2] == ("success_rate", 1)
    assert len(values) == 3
    if text == NAMES[10]:
        assert text in result["dataset"]["name"]


def test_without_finite_results_the_front_matter_has_no_index(maze):
    for results in (None, {}, {"return_mean": math.nan, "success_mean": math.inf}):
        about = {"results": results}
        data = metadata(model_card(replace(maze.saved, about=about), "mine"))
        assert set(data) == {"library_name", "pipeline_tag", "tags"}


def test_cards_of_the_zoo_have_their_results_in_the_front_matter():
    for path in sorted(ZOO.glob("*/README.md")):
        data = metadata(path.read_text())
        assert data["license"] == "mit"
        (model,) = data["model-index"]
        assert model["name"] == path.parent.name
        metrics = {each["type"]: each["value"] for each in model["results"][0]["metrics"]}
        stored = yamame.load(f"zoo:{path.parent.name}").saved.about["results"]
        assert metrics["mean_reward"] == pytest.approx(stored["return_mean"], rel=1e-4)


def test_a_folder_that_a_hub_has_added_files_to_is_read(tmp_path):
    agent = yamame.load("zoo:cpu_tmaze")
    folder = tmp_path / "theirs"
    agent.save_pretrained(folder)
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (folder / ".cache" / "huggingface" / "download").mkdir(parents=True)
    (folder / ".cache" / "huggingface" / "download" / "config.json.metadata").write_text("0\n")
    assert yamame.load(folder).gammas == agent.gammas
