"""Python's garbage collector, while modules are imported."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the garbage collector within the block, and exempt what exists at its end for good.

    Large packages create a million objects, none of them garbage, and the collector looks at all of
    them again and again: a third of the time of an import.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
