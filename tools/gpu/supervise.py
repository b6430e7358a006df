"""Processes with a time limit, killed at its end together with all of their descendants."""

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

GRACE = 2.0
"""Seconds between the request to end and the kill."""
_MARK = "FIRST_GPU_RUN"
"""Environment variable that all processes of a run inherit, to find orphaned ones."""
_QUERY = "timestamp,utilization.gpu,memory.used,clocks.sm,power.draw"


def run_limited(
    command: Sequence[str], *, seconds: float, output: Path, env: Mapping[str, str]
) -> int | None:
    """Run a command, and end all processes that it started.

    Args:
        command: The program and its arguments.
        seconds: Time limit.
        output: A file to which its output is appended.
        env: Its environment.

    Returns:
        Its exit status, None if it was stopped at the limit.
    """
    env = {**env, _MARK: str(os.getpid())}
    with output.open("ab") as file:
        process = psutil.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=env,
            start_new_session=True,
        )
    try:
        return process.wait(timeout=seconds)
    except psutil.TimeoutExpired:
        return None
    finally:
        end_descendants()


def end_descendants() -> None:
    """Ask all descendants of this process to end, and kill those that do not.

    Gives up after some seconds: a process that hangs in a driver cannot be killed, and must not
    hold up the rest.
    """
    asked = _descendants()
    for process in asked:
        _signal(process, kill=False)
    psutil.wait_procs(asked, timeout=GRACE)

    give_up = time.monotonic() + 3.0
    while time.monotonic() < give_up and (left := _descendants()):
        for process in left:  # others may have been started meanwhile
            _signal(process, kill=True)
        psutil.wait_procs(left, timeout=0.5)


def _descendants() -> list[psutil.Process]:
    """Return all descendants, and orphaned processes that `run_limited` has started."""
    found = {process.pid: process for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        # Processes of other users have no environment that can be read; those that just ended have
        # none at all.
        with contextlib.suppress(psutil.Error):
            if process.pid not in found and process.environ().get(_MARK) == str(os.getpid()):
                found[process.pid] = process
    return [process for process in found.values() if _is_running(process)]


def _is_running(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _signal(process: psutil.Process, *, kill: bool) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill() if kill else process.terminate()


def sample_gpu(path: Path, seconds: float = 10.0) -> None:
    """Append the state of the GPU to a file every few seconds, in a thread of this process."""
    if shutil.which("nvidia-smi") is None:
        return

    def sample() -> None:
        command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
        while True:
            done = subprocess.run(command, capture_output=True, text=True)
            with path.open("a") as file:
                file.write(done.stdout)
            time.sleep(seconds)

    threading.Thread(target=sample, daemon=True).start()
