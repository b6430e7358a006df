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


# Threads of this process before the present job took its share, and after.
_before = 0
_after = 0


def share_threads(*, num_jobs: int | None = None, num_workers: int = 0) -> None:
    """Limit torch in this process to its share of the cores.

    A number of threads in the environment takes precedence.

    Args:
        num_jobs: Runs at the same time, this one included; below 1: as many as there are
            processors. A process may run several jobs in turn: each gets its share of all threads.
            None: the present job goes on, with the threads that it has.
        num_workers: Processes that act beside the learner of this run, with a thread each.
    """
    global _before, _after
    if "OMP_NUM_THREADS" in os.environ:
        return
    import torch

    present = torch.get_num_threads()
    # Otherwise the number is the share of an earlier job of this process.
    if present != _after:
        _before = present
    share = present
    if num_jobs is not None:
        share = _before // num_jobs if num_jobs > 0 else 1
    share = max(1, share - num_workers)
    if share != present:
        torch.set_num_threads(share)
    _after = share
