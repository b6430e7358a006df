"""C functions of this package, compiled where they run: for the sizes and the processor at hand."""

import ctypes
import math
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

import torch

_FLAGS = (
    *("-O3", "-march=native", "-shared", "-fPIC"),
    # Sums may be taken in any order, so that many numbers are added at once. What is no number stays none.
    *("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno"),
)
_LANES = 16  # numbers of four bytes that the widest registers hold


def compile_c(beside: str, *, setting: str, size: int | None = None, **macros: int) -> ctypes.CDLL:
    """The functions of a C file, within half a second. Without OpenMP, where a compiler has none, one thread works.

    Args:
        beside: The Python file beside it, of the same name.
        setting: What asks for it, for the message of an error.
        size: Of the vectors that it works on, if it has to know: its macro SIZE, and LANES, how many of it are computed
            at once.
        macros: More of the file.

    Raises:
        ValueError: If there is no compiler, or it fails.
    """
    source = Path(beside).with_suffix(".c")
    command = [*shlex.split(os.environ.get("CC", "cc")), *_FLAGS, str(source)]
    if size is not None:
        macros |= {"SIZE": size, "LANES": math.gcd(size, _LANES)}
    command += [f"-D{macro}={value}" for macro, value in macros.items()]
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder) / f"{source.stem}.so")
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


def compile_c_if_possible(beside: str) -> ctypes.CDLL | None:
    """The functions of a C file that change no number, and need not be there; None where they cannot be compiled."""
    try:
        return compile_c(beside, setting=Path(beside).stem)
    except ValueError:
        return None


def require_acting_dtype(dtype: torch.dtype) -> None:
    """Raises where functions for acting are not made for a dtype.

    Raises:
        ValueError: If it is neither float32 nor bfloat16.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(
            f"compile_policy must be false in other dtypes than float32 and bfloat16, got {dtype}"
        )
