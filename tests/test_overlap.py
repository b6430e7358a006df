"""The tool that counts which held-out tasks training meets."""

import re
import runpy
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "overlap.py"


@pytest.fixture
def overlap(monkeypatch, capsys):
    """Runs the tool: how many held-out tasks training meets, as configured and without a split."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [str(TOOL), *arguments, "evaluation.num_episodes=64"])
        runpy.run_path(str(TOOL), run_name="__main__")
        return [int(met) for met in re.findall(r"training meets (\d+) of 64", capsys.readouterr().out)]

    return run


def test_of_two_tasks_all_are_met_and_of_winds_none(overlap):
    assert overlap("env=tmaze", "--episodes", "50") == [64, 64]
    assert overlap("env=wind", "--episodes", "500") == [0, 0]


def test_what_is_held_out_is_not_met(overlap):
    as_configured, without = overlap("env=frozenlake", "env.size=4", "--episodes", "2000")
    assert as_configured == 0
    assert without > 32


def test_environments_of_which_only_seeds_are_known_are_named(overlap):
    with pytest.raises(SystemExit, match=r"overlap: env must be a native one, .* got Gym"):
        overlap("env=gym")
