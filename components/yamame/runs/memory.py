"""Keeping freed memory in the process instead of asking the operating system for it again."""

import ctypes
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tells the allocator of this process to keep what is freed; returns whether it can be told.

    Glibc hands a large block back to the system as soon as it is freed, and every page of the next one costs a page
    fault again: a tenth of the time of an update on long sequences, all of them large temporaries. Afterwards
    the process holds the most memory it ever needed at once. Does nothing but on Linux with glibc; to be called
    before large tensors are made.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(option, _LARGEST) == 1 for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))
