"""Freed memory stays with the process: fewer page faults in a process of its own."""

import platform
import subprocess
import sys

import pytest
from yamame.runs import memory

PROGRAM = """
import resource, sys, torch
from yamame.runs.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
for turn in range(6):
    if turn == 1:  # what the first turn takes is new to the process in any case
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    parts = [torch.ones(size, 1 << 20) for size in (12, 16, 20)]  # 48, 64 and 80 MB
    del parts
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(setting: str) -> int:
    command = [sys.executable, "-c", PROGRAM, setting]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_large_blocks_that_come_and_go_cost_no_page_faults():
    kept, given_back = page_faults("keep"), page_faults("default")
    # Five turns of 192 MB in pages of 4 kB are 245,760 faults; where the system has huge pages they are fewer.
    assert given_back > 400
    assert kept < 0.1 * given_back


@pytest.mark.parametrize(("system", "libc"), [("Darwin", ""), ("Windows", ""), ("Linux", "musl")])
def test_elsewhere_nothing_is_done(monkeypatch, system, libc):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))
    monkeypatch.setattr(memory.ctypes, "CDLL", None)  # must not be reached
    assert memory.keep_freed_memory() is False
