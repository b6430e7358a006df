"""The comparison with parts of other libraries: both sides do the same work, in alternation."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import side_by_side


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    sizes = {"BATCH": 3, "LENGTH": 60, "SIZE": 8, "LAYERS": 2, "NUM_ENVS": 4, "TRAJECTORIES": 10}
    for name, size in sizes.items():
        monkeypatch.setattr(side_by_side, name, size)


@pytest.mark.parametrize("name", ["recurrent", "replay"])
def test_each_pair_has_a_row(name):
    rows = [side_by_side.row(pair, 1) for pair in side_by_side.SECTIONS[name]()]
    assert len(rows) == {"recurrent": 6, "replay": 2}[name]
    for row in rows:
        _, what, library, times, ratio, _ = (cell.strip() for cell in row.split("|"))
        assert what
        assert library == "TorchRL"
        assert all(float(time) >= 0 for time in times.split(", "))
        assert ratio.replace(".", "").isdigit()


def test_both_replay_buffers_sample_as_many_steps():
    pair = next(side_by_side.replay())
    theirs, ours = pair.theirs(), pair.ours()
    assert theirs.numel() == ours.numel() == 3 * side_by_side.STEPS
    assert theirs["observation"].shape[-1] == ours["observation"].shape[-1]


def test_sides_are_measured_in_turn_and_may_measure_themselves():
    calls = []
    pair = side_by_side.Pair(
        "a",
        "b",
        lambda: calls.append("ours") or 0.002,
        lambda: calls.append("theirs") or 0.004,
        2.0,
    )
    assert side_by_side.row(pair, 2) == "| a | b | 2.00, 1.00 | 0.50 |"
    assert calls == ["ours", "theirs", *["theirs", "ours"] * 2]


def test_sections_are_checked_and_left_out_without_their_package(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["side_by_side.py", "speed"])
    with pytest.raises(SystemExit):
        side_by_side.main()
    assert "section must be one of recurrent, replay, ppo, amago" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["side_by_side.py", "amago"])
    monkeypatch.setitem(side_by_side.PACKAGES, "amago", "no_such_package")
    threads = torch.get_num_threads()
    side_by_side.main()
    torch.set_num_threads(threads)
    assert "amago: left out, no_such_package is not installed" in capsys.readouterr().err


def test_recurrent_ppo_is_measured_without_building(monkeypatch):
    pytest.importorskip("sb3_contrib")
    monkeypatch.setattr(side_by_side, "PPO_STEPS", 2048)
    (pair,) = side_by_side.ppo()
    assert 0 < pair.ours() < 60
