"""Two ranks that record their updates learn what one rank learns from the whole batch without
recording.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
MOST_MESSAGES = 6
"""Sums over ranks in one update: counts, two kinds of statistics, gradients and metrics."""


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """What one rank and each of two saw, by kind of agent."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, str(HERE / "program.py"), "run", str(HERE / "ranks.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    one, *two = (torch.load(folder / f"{name}.pt") for name in ("1-0", "2-0", "2-1"))
    return one, two, folder, done.stderr


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_recorded_updates_of_two_ranks_are_those_of_one_rank_from_the_whole_batch(learned):
    from ranks import BROKEN, NUM, PADDED

    alone, both, *_ = learned
    for kind, updates in alone.items():
        for rank, seen in enumerate(both):
            assert len(seen[kind]) == NUM
            for number, (expected, found) in enumerate(zip(updates, seen[kind], strict=True)):
                assert_close(found["state"], expected["state"])
                assert bool(found["metrics"]) == (number != BROKEN)
                # Padding of one rank is the only difference.
                for metrics in (found["metrics"], expected["metrics"]):
                    metrics.pop("padding_share", None)
                assert_close(found["metrics"], expected["metrics"])
                is_recorded = number > 2 and (number, rank) != (PADDED, 1)
                assert (found["launches"] > 0) == is_recorded, (number, rank)
            first, last = seen[kind][0]["state"], seen[kind][-1]["state"]
            with pytest.raises(AssertionError):
                assert_close(last, first)


def test_parameters_of_the_ranks_are_equal_to_the_last_bit(learned):
    _, (one, other), *_ = learned
    for kind, updates in one.items():
        for first, second in zip(updates, other[kind], strict=True):
            assert all(torch.equal(v, second["state"][name]) for name, v in first["state"].items())


def test_ranks_exchange_as_many_messages_however_an_update_is_made(learned):
    from ranks import BROKEN

    alone, both, *_ = learned
    for seen in both:
        for updates in seen.values():
            assert len({update["messages"] for update in updates}) == 1
            assert updates[0]["messages"] <= MOST_MESSAGES
            recorded = updates[-1]
            # Every message divides the first half of the update; the second half is one launch.
            assert recorded["launches"] == recorded["messages"] + 2
            assert recorded["waits"] == 1
            assert updates[BROKEN]["launches"] == recorded["launches"] - 1
    assert all(update["messages"] == 0 for updates in alone.values() for update in updates)


def test_an_update_that_is_refused_leaves_its_evidence_on_the_rank_that_has_it(learned):
    from ranks import BROKEN

    alone, both, folder, _ = learned
    for kind in alone:
        for seen in (alone, *both):
            refused, before = seen[kind][BROKEN], seen[kind][BROKEN - 1]
            assert refused["metrics"] == {}
            assert all(
                torch.equal(v, before["state"][name]) for name, v in refused["state"].items()
            )
        assert [*(folder / "2-1" / kind).glob("nonfinite/*")]
        assert not [*(folder / "2-0" / kind).glob("nonfinite/*")]


def test_one_rank_alone_says_that_updates_are_recorded(learned):
    *_, stderr = learned
    assert stderr.count("records updates as CUDA graphs") == len(learned[0])


def test_states_of_all_ranks_are_gathered_on_the_host(learned):
    _, _, folder, _ = learned
    for rank in range(2):
        states = torch.load(folder / f"states-{rank}.pt", weights_only=False)
        assert states.keys() == {"0", "1"}
        for number, state in states.items():
            assert state["held"]["x"].device.type == "cpu"
            assert state["held"]["x"].tolist() == [int(number)] * 2
