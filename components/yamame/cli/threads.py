"""Number of OpenMP threads and their waiting policy. Import this module before torch.

In GNU OpenMP, which torch uses, a waiting thread spins for some milliseconds before it sleeps. That
is fastest on an idle machine. Next to other processes, it takes their cores and those of the
threads that it waits for. The spin count is therefore limited, unless the environment sets it.
"""

import os

_SPIN_COUNT = "5000"  # a few hundred microseconds at most
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")

if not any(name in os.environ for name in _WAITING):
    os.environ["GOMP_SPINCOUNT"] = _SPIN_COUNT


def share_threads(*, num_jobs: int = 1, num_workers: int = 0) -> None:
    """Limit torch in this process to its share of the cores.

    A number of threads in the environment takes precedence.

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
