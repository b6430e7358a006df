"""The tool that counts which tasks of an evaluation training meets."""

import runpy
import sys
from pathlib import Path

import pytest
from yamame_envs import MazeRunner

TOOL = Path(__file__).parents[1] / "tools" / "overlap.py"
COLUMNS = ("settings", "new", "trained", "evaluated", "met", "relabelled", "layouts")


@pytest.fixture
def overlap(monkeypatch, capsys):
    """Runs the tool: the cells of its row for some overrides."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [str(TOOL), *arguments, "evaluation.num_episodes=64"])
        runpy.run_path(str(TOOL), run_name="__main__")
        header, _, row = capsys.readouterr().out.splitlines()
        cells = [cell.strip() for cell in row.strip("| ").split(" | ")]
        assert len(header.strip("| ").split(" | ")) == len(cells)
        return dict(zip(COLUMNS, cells, strict=True))

    return run


def test_of_two_tasks_all_are_met_and_of_winds_none(overlap):
    row = overlap("env=tmaze", "--episodes", "50")
    assert (row["met"], row["trained"], row["evaluated"], row["layouts"]) == ("100%", "2", "2", "-")
    assert row["new"] == "new seeds; training may meet the same tasks"
    row = overlap("env=wind", "--episodes", "500")
    assert (row["met"], row["trained"], row["relabelled"]) == ("0%", "500", "-")


def test_what_is_held_out_is_not_met_and_without_a_split_it_is(overlap):
    row = overlap("env=mazerunner", "env.num_goals=1", "relabel=all", "--episodes", "300")
    assert (row["met"], row["relabelled"], row["layouts"], row["new"]) == (
        "0%",
        "0%",
        "0%",
        "new mazes",
    )
    split_all = ("env.split=all", "evaluation.env.split=all")
    row = overlap(
        "env=mazerunner", "env.num_goals=1", "relabel=all", "--episodes", "300", *split_all
    )
    assert int(row["relabelled"].rstrip("%")) > 50
    assert row["new"] == "new seeds; training may meet the same tasks"


def test_a_description_that_promises_too_much_is_found(overlap, monkeypatch):
    """Goals are held out in a maze together with permuted actions, so training may meet them with
    other actions.
    """
    settings = ("env=mazerunner", "env.split_by=walls_and_goals", "env.randomize_actions=true")
    short = ("env.num_goals=1", "relabel=none", "--episodes", "500")
    row = overlap(*settings, *short)
    assert (row["met"], row["new"]) == ("0%", "new combinations of maze, goals and actions")
    monkeypatch.setattr(MazeRunner, "novelty", "new goals in known mazes")
    row = overlap(*settings, *short)
    assert row["new"] == "new goals in known mazes"
    assert int(row["met"].rstrip("%")) > 20


def test_a_description_that_it_does_not_know_is_refused(overlap, monkeypatch):
    monkeypatch.setattr(MazeRunner, "novelty", "new halls")
    with pytest.raises(SystemExit, match=r"CLAIMS .* 'new halls'"):
        overlap("env=mazerunner", "relabel=none", "--episodes", "20")


def test_without_arguments_it_names_the_environments_that_have_no_split(monkeypatch, capsys):
    tool = runpy.run_path(str(TOOL))
    assert all(
        name in " ".join(tool["ROWS"])
        for name in ("maze", "package_delivery", "dark_key_to_door", "frozenlake")
    )
    lines = dict(line.split(": ") for line in tool["without_split"]())
    assert lines["too few tasks for a split"] == "active_tmaze (2), tmaze (2)"
    assert lines["no split"].startswith("bandits, wind;")


def test_environments_of_which_only_seeds_are_known_are_named(overlap):
    with pytest.raises(SystemExit, match=r"overlap: env must be a native one, .* got Gym"):
        overlap("env=gym")
