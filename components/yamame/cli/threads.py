"""How many threads compute, and how they wait for each other: recipes import this before anything
imports torch.

GNU's OpenMP, which torch computes with, lets a thread that waits for the others look again and
again for some milliseconds before it sleeps. That is fastest on an idle machine. Beside other
processes it keeps them, and the very threads it waits for, from their cores. So the number of looks
is bounded, unless the environment says how to wait.
"""

import os

_SPIN_COUNT = "5000"  # looks: a few hundred microseconds at most
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")

if not any(name in os.environ for name in _WAITING):
    os.environ["GOMP_SPINCOUNT"] = _SPIN_COUNT


def share_threads(*, num_jobs: int = 1, num_workers: int = 0) -> None:
    """Leaves torch in this process its share of the machine, unless the environment says how many
    threads it has.

    Args:
        num_jobs: Runs at the same time, this one included; below 1: as many as there are
            processors.
        num_workers: Processes that act beside the learner of this run, with a thread each.
    """
    if "OMP_NUM_THREADS" in os.environ or (num_jobs, num_workers) == (1, 0):
        return
    import torch

    share = torch.get_num_threads() // num_jobs if num_jobs > 0 else 1
    torch.set_num_threads(max(1, share - num_workers))
