"""NVIDIA's Multi-Process Service (MPS), with which kernels of several processes share a GPU.

Without it, processes take turns on a GPU, and a small run leaves most of it idle in its turn.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from yamame.system.messages import one_line, print_stderr

_CONTROL = "nvidia-cuda-mps-control"
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_DEFAULT_PIPES = "/tmp/nvidia-mps"
_TIMEOUT_S = 20.0


@contextmanager
def sharing_gpus(is_needed: bool) -> Iterator[None]:
    """Let processes that are started within the block share GPUs by MPS, where there is one.

    A service that runs already is used and left running. Otherwise one is started, and ended with
    the block. A line is printed if there is none, or if it does not start.

    Args:
        is_needed: Whether several processes share a GPU; the block is left alone otherwise.
    """
    if not is_needed or _is_running():
        yield
        return
    if shutil.which(_CONTROL) is None:
        print_stderr(f"launcher: jobs that share a GPU take turns on it: no {_CONTROL} on PATH")
        yield
        return
    with tempfile.TemporaryDirectory(prefix="yamame-mps-") as folder:
        former = {name: os.environ.get(name) for name in (_PIPES, _LOGS)}
        os.environ |= {_PIPES: folder, _LOGS: folder}
        is_started = _start()
        try:
            yield
        finally:
            if is_started:
                _control("quit\n")
            for name, value in former.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def _is_running() -> bool:
    pipes = Path(os.environ.get(_PIPES, _DEFAULT_PIPES))
    return (pipes / "control").exists()


def _start() -> bool:
    # Jobs name GPUs as this machine does, so the service must have all of them.
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    try:
        subprocess.run([_CONTROL, "-d"], env=env, check=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        print_stderr(
            f"launcher: jobs that share a GPU take turns on it: MPS does not start, "
            f"{one_line(error)}"
        )
        return False
    return True


def _control(command: str) -> None:
    try:
        subprocess.run(
            [_CONTROL],
            input=command,
            text=True,
            check=True,
            timeout=_TIMEOUT_S,
            stdout=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError) as error:
        print_stderr(f"launcher: MPS is not ended: {one_line(error)}")
