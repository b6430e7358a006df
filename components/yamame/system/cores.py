"""Number of processor cores."""

import os


def usable_cores() -> int:
    """Return the number of cores that this process may use.

    A container or a scheduler may leave a process fewer cores than the machine has.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    # macOS has no call for the cores of a process.
    return os.cpu_count() or 1
