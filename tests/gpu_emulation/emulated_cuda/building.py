"""Builds the library of the emulated device, once per version of PyTorch, in the user's cache,
without importing it.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("device.cpp")
EMULATED = "2.13"
"""The version of PyTorch whose insides the source knows."""
OPTIONS = ("-std=c++20", "-O1", "-fPIC", "-shared")


def missing() -> str | None:
    """Why there can be no emulated device here; None where there can."""
    version, cuda = installed()
    if cuda is not None:
        return f"PyTorch {version} has CUDA of its own"
    if not version.startswith(f"{EMULATED}."):
        return f"PyTorch {EMULATED} is emulated, {version} is installed"
    if sys.platform != "linux":
        return "a library is loaded before others on Linux alone"
    if shutil.which("g++") is None:
        return "g++ must be installed to build the emulated device"
    return None


def library() -> Path:
    """The library, built if it is not there yet."""
    torch = _torch_folder()
    identity = hashlib.sha256()
    for part in (
        SOURCE.read_bytes(),
        str(torch).encode(),
        installed()[0].encode(),
        repr(OPTIONS).encode(),
    ):
        identity.update(part)
    folder = _cache()
    folder.mkdir(parents=True, exist_ok=True)
    built = folder / f"device-{identity.hexdigest()[:16]}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests of several processes build it once
        if not built.exists():
            _build(torch, built)
    return built


@cache
def installed() -> tuple[str, str | None]:
    """The version of PyTorch, and that of its CUDA."""
    text = (_torch_folder() / "version.py").read_text()
    version = re.search(r"^__version__ = '(.*)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda.*= '(.*)'", text, re.MULTILINE)
    assert version is not None
    return version[1], cuda and cuda[1]


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "yamame" / "gpu_emulation"


def _build(torch: Path, built: Path) -> None:
    include, lib = torch / "include", torch / "lib"
    includes = [f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}"]
    links = [f"-L{lib}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{lib}"]
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        unfinished = Path(folder) / built.name
        subprocess.run(
            ["g++", *OPTIONS, *includes, str(SOURCE), "-o", str(unfinished), *links], check=True
        )
        unfinished.rename(built)
