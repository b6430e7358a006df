"""Runs laws, with arguments of pytest, or a recipe, on the emulated device::

    python tests/gpu_emulation/program.py laws tests/gpu_emulation/laws_of_device.py -k pinned
    python tests/gpu_emulation/program.py run recipes/train.py device=cuda debug=tiny

A law that a test of the suite runs by a process of its own is found by its name:
``laws ... -k name``.
"""

import os
import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from emulated_cuda.building import library, missing


def main(arguments: list[str]) -> None:
    """Starts this program again below the library, and there what was asked for."""
    reason = missing()
    if reason is not None:
        sys.exit(reason)
    path = str(library())
    if os.environ.get("LD_PRELOAD") != path:
        program = [sys.executable, __file__, *arguments]
        os.execve(sys.executable, program, {**os.environ, "LD_PRELOAD": path})
    del os.environ["LD_PRELOAD"]  # programs that this one starts do without

    from emulated_cuda.api import start

    start()
    kind, *rest = arguments
    if kind == "laws":
        import pytest

        sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *rest]))
    sys.argv = rest
    sys.path.insert(0, str(Path(rest[0]).resolve().parent))
    runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
