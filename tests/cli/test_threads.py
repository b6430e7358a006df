"""How many threads compute and how they wait, which is decided before torch is imported."""

import os
import subprocess
import sys

import pytest
import torch
from yamame.cli.threads import share_threads

PROGRAM = """
import os, sys
import yamame.cli.threads
assert "torch" not in sys.modules
print(os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.mark.parametrize(
    ("chosen", "spin_count"),
    [({}, "5000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
)
def test_waiting_is_bounded_before_torch_is_there_unless_the_environment_says_how_to_wait(
    chosen, spin_count
):
    free = {
        name: value
        for name, value in os.environ.items()
        if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=free | chosen,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == spin_count


@pytest.fixture
def eight_threads(monkeypatch):
    """Torch with eight threads that nobody chose; gives how many it has."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(8)
    yield torch.get_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("others", "left"),
    [
        ({}, 8),
        ({"num_jobs": 4}, 2),
        ({"num_jobs": 3, "num_workers": 1}, 1),
        ({"num_workers": 3}, 5),
        ({"num_workers": 20}, 1),
        ({"num_jobs": -1}, 1),
    ],
)
def test_threads_are_shared_with_jobs_and_workers_that_run_at_the_same_time(
    eight_threads, others, left
):
    share_threads(**others)
    assert eight_threads() == left


def test_jobs_of_one_process_get_equal_shares_one_after_the_other(eight_threads):
    for _ in range(3):
        share_threads(num_jobs=2)
        assert eight_threads() == 4
        share_threads(num_workers=1)
        assert eight_threads() == 3
    share_threads(num_jobs=1)
    assert eight_threads() == 8
    torch.set_num_threads(6)  # by somebody else
    share_threads(num_jobs=2)
    assert eight_threads() == 3


def test_a_number_of_threads_that_the_environment_gives_stays(eight_threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    share_threads(num_jobs=4)
    assert eight_threads() == 8
