"""What all tests share."""

import gc
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.version import Version

# Before anything imports torch: tests are small, and threads that wait for each other take longer
# than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Runs of tests are no runs of the user who starts them.
os.environ["YAMAME_TRUST_RECORD"] = "off"

# A job in the background ignores these, and so would every process that tests start and stop.
for name, heard in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    if signal.getsignal(getattr(signal, name)) is signal.SIG_IGN:
        signal.signal(getattr(signal, name), heard)


def pytest_collection_finish() -> None:
    """Garbage is not looked for among what was imported and collected."""
    gc.freeze()


def _skip_if_missing(message: str) -> None:
    missing = re.search(r"the package (\w+) must be installed, run: pip install", message)
    if missing and importlib.util.find_spec(missing.group(1)) is None:
        pytest.skip(message)
    older = re.search(r"(\w+) ([\d.]+) or later must be installed, run: pip install", message)
    if older and Version(version(older.group(1))) < Version(older.group(2)):
        pytest.skip(message)


@pytest.fixture(autouse=True)
def _forget_modules_of_this_test(tmp_path_factory):
    """Removes modules that a test has imported from its own files, which another test may have of
    the same name.
    """
    before = set(sys.modules)
    yield
    folder, removed = str(tmp_path_factory.getbasetemp()), set()
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if isinstance(file, str) and file.startswith(folder):
            del sys.modules[name]
            removed.add(name)
    if removed and "gymnasium" in sys.modules:
        # Another import of these modules registers their environments again.
        registry = sys.modules["gymnasium"].registry
        for name, spec in list(registry.items()):
            entry = spec.entry_point
            module = (
                entry.partition(":")[0]
                if isinstance(entry, str)
                else getattr(entry, "__module__", "")
            )
            if module in removed:
                del registry[name]


@pytest.fixture(scope="session")
def skip_if_missing():
    """Skips where an error says that a package is missing, and it is: a wrong message skips
    nothing.
    """
    return _skip_if_missing


@pytest.fixture(scope="session")
def nothing_read_back() -> type:
    """A context that fails at operations that wait for a device, or whose result has a size that
    depends on data.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    read = ("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "bincount")

    class NothingReadBack(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name = func._schema.name.removeprefix("aten::")
            indexed = name.startswith(("index", "_index_put")) and isinstance(args[1], list | tuple)
            indices = [value for value in (args[1] if indexed else ()) if value is not None]
            masked = any(value.dtype in (torch.bool, torch.uint8) for value in indices)
            if name in (*read, "repeat_interleave") or "unique" in name or masked:
                raise AssertionError(f"{func} in what is recorded")
            return func(*args, **(kwargs or {}))

    return NothingReadBack


@pytest.fixture(scope="session")
def tape(nothing_read_back) -> type:
    """Records on a CPU as a CUDA graph does: a replay repeats operations on the same tensors, no
    line of the function.

    A recording leaves everything as it was, and fails where something is read back, or a tensor is
    read that is not declared. ``numbers`` are what each recording has baked in.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from yamame.execution.capturing import capturing
    from yamame.testing import DeclaredReads

    class Log(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.calls, self.written = [], {}

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            for argument, value in zip(func._schema.arguments, args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    for storage in (each.untyped_storage() for each in tree_leaves(value)):
                        self.written.setdefault(storage.data_ptr(), (storage, storage.clone()))
            out = func(*args, **(kwargs or {}))
            if not func.is_view:
                self.calls.append((func, args, kwargs or {}, tree_leaves(out)))
            return out

    def numbers(args, kwargs):
        return [value for value in tree_leaves((args, kwargs)) if isinstance(value, int | float)]

    class Tape:
        def __init__(self):
            self.warmed = self.records = self.replays = self.steps = 0
            self.numbers = []

        def warm(self, function):
            assert not capturing()
            self.warmed += 1
            return function()

        def wait(self):
            pass

        def record(self, function, *, reads):
            assert capturing()
            self.records += 1
            log, state = Log(), torch.get_rng_state()
            with nothing_read_back(), log, DeclaredReads(reads):
                results = function()
            self.numbers.append([numbers(args, kwargs) for _, args, kwargs, _ in log.calls])
            for storage, before in log.written.values():
                storage.copy_(before)
            torch.set_rng_state(state)

            @torch.no_grad()
            def replay():
                self.replays += 1
                self.steps += not results  # whole steps return nothing
                for func, args, kwargs, outs in log.calls:
                    for out, new in zip(outs, tree_leaves(func(*args, **kwargs)), strict=True):
                        if out is not new:
                            out.copy_(new)

            return replay, results

    return Tape


class Forked(NamedTuple):
    """A program that runs as a copy of the process of `forking.py`."""

    pid: int
    server: subprocess.Popen
    folder: Path

    def wait(self) -> subprocess.CompletedProcess:
        """Its end, and what it printed."""
        status = int(self.server.stdout.readline())
        out, err = ((self.folder / name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess([], status, out, err)


@pytest.fixture(scope="session")
def begin_forked(tmp_path_factory):
    """Begins a Python program, in a process that has torch and the recipes' imports already; one at
    a time.
    """
    command, servers = [sys.executable, str(Path(__file__).with_name("forking.py"))], []

    def begin(program, *arguments, cwd, **env):
        if not servers:
            servers.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        folder = tmp_path_factory.mktemp("forked")
        files = {name: str(folder / name) for name in ("stdout", "stderr")}
        asked = {"program": program, "arguments": arguments, "cwd": str(cwd), "env": env, **files}
        print(json.dumps(asked), file=servers[0].stdin, flush=True)
        return Forked(int(servers[0].stdout.readline()), servers[0], folder)

    yield begin
    for server in servers:
        server.kill()
        server.communicate()


@pytest.fixture(scope="session")
def run_forked(begin_forked):
    """Runs a Python program as `begin_forked` begins it: what became of it, and what it printed."""
    return lambda program, *arguments, cwd, **env: begin_forked(
        program, *arguments, cwd=cwd, **env
    ).wait()


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Writes a module of a user's own where it is found, and forgets it afterwards."""
    import importlib
    import sys

    written = []

    def write(name, source):
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()
        assert name not in sys.modules
        written.append(name)

    yield write
    for name in written:
        sys.modules.pop(name, None)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """An MLflow database without runs: copied, it saves the seconds that making one takes."""
    from yamame.tracking.mlflow_store import connect

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    connect(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def tracking_uri(empty_store, tmp_path_factory):
    """One MLflow database for all tests that need none of their own; in the session ``server`` of
    nox a team's server.
    """
    server = os.environ.get("YAMAME_TEST_TRACKING_URI")
    if server:
        return server
    path = shutil.copy(empty_store, tmp_path_factory.mktemp("mlflow"))
    return f"sqlite:///{path}"


@pytest.fixture
def start(tracking_uri, tmp_path):
    """Starts a tracker in a run directory of its own."""
    from yamame.tracking import MLflowTracker

    senders = {}

    def start(directory=tmp_path, **options):
        if directory in senders:
            senders[directory].stop()  # as if the process before had been killed
        tracker = MLflowTracker(
            tracking_uri=tracking_uri, **{"system_metrics": False, "flush_s": 0.0, **options}
        )
        tracker.start(directory, name="a run", params={"seed": 1, "agent.gammas": [0.9, 0.99]})
        senders[directory] = tracker.sender
        return tracker

    return start


@pytest.fixture(scope="session")
def settle():
    """Waits until a tracker's store has all that was logged."""
    import time

    def settle(tracker, seconds=30.0):
        end = time.monotonic() + seconds
        while tracker.sender.count_waiting() and time.monotonic() < end:
            time.sleep(0.01)
        assert tracker.sender.count_waiting() == 0

    return settle
