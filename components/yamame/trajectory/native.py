"""C functions of this package, compiled where they run: for the sizes and the processor at hand."""

import ctypes
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

_FLAGS = (
    *("-O3", "-march=native", "-shared", "-fPIC"),
    # Sums may be taken in any order, so that many numbers are added at once. What is no number stays none.
    *("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno"),
)


def compile_c(name: str, *, setting: str, **sizes: int) -> ctypes.CDLL:
    """The functions of ``<name>.c``, within half a second. Without OpenMP, where a compiler has none, one thread works.

    Args:
        name: Of the file beside this one.
        setting: What asks for it, for the message of an error.
        sizes: Macros of the file.

    Raises:
        ValueError: If there is no compiler, or it fails.
    """
    source = str(Path(__file__).with_name(f"{name}.c"))
    command = [*shlex.split(os.environ.get("CC", "cc")), *_FLAGS, source]
    command += [f"-D{macro}={size}" for macro, size in sizes.items()]
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder) / f"{name}.so")
        try:
            threaded = subprocess.run([*command, "-fopenmp", "-o", library], capture_output=True, check=False)
            if threaded.returncode:
                subprocess.run([*command, "-o", library], capture_output=True, check=True, text=True)
            return ctypes.CDLL(library)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[0]
            raise ValueError(
                f"{setting} must be false without a C compiler (cc, or what the variable CC names), got true;"
                f" compiling ended with {reason!r}"
            ) from error
