"""A team's tracking server for tests: MLflow's server, files proxied, on a database of PostgreSQL.

Everything listens on the loopback alone and lies in one temporary folder.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

PACKAGES = "postgresql"
"""Package of Debian and Ubuntu with the programs of PostgreSQL."""
_STARTS_S = 120.0


def find_program(name):
    """Return the path of a program of PostgreSQL; None if it is not installed.

    Debian installs them outside of the search path.
    """
    found = shutil.which(name)
    if found:
        return found
    candidates = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(candidates[-1]) if candidates else None


def free_port():
    """Return a port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(check, *, process, log):
    """Wait until a check is true; raise if the process ends before."""
    end = time.monotonic() + _STARTS_S
    while not check():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"{process.args[0]} did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)


class Database:
    """A cluster of PostgreSQL.

    Args:
        folder: Folder of its files.
    """

    def __init__(self, folder):
        self.folder = folder / "postgres"
        self.folder.mkdir()
        self.port = free_port()
        self.process = None
        self._log = folder / "postgres.log"
        # PostgreSQL refuses to run as root.
        self._user = {}
        if os.geteuid() == 0:
            self._user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(self.folder, "nobody", "nogroup")
        command = [find_program("initdb"), "-D", str(self.folder / "data"), "-U", "mlflow"]
        command += ["-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
        made = subprocess.run(
            command, capture_output=True, text=True, cwd=self.folder, **self._user
        )
        if made.returncode:
            raise RuntimeError(made.stderr)

    @property
    def uri(self):
        # With its driver: which one is the default depends on the version of SQLAlchemy.
        return f"postgresql+psycopg2://mlflow@127.0.0.1:{self.port}/postgres"

    def start(self):
        command = [find_program("postgres"), "-D", str(self.folder / "data")]
        command += ["-h", "127.0.0.1", "-p", str(self.port), "-k", str(self.folder)]
        # A power cut is not part of the tests.
        command += ["-c", "fsync=off", "-c", "max_connections=100"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, **self._user
            )
        wait_until(self._answers, process=self.process, log=self._log)

    def _answers(self):
        command = [find_program("pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, capture_output=True).returncode == 0

    def stop(self):
        """Stop it and cut all connections, as an administrator does."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(30.0)
            self.process = None


class TeamServer:
    """MLflow's server in a process of its own.

    Args:
        folder: Folder of its files.
        database: Its database, which must run at the first start.
    """

    def __init__(self, folder, database):
        self.database = database
        self.files = folder / "files"
        self.port = free_port()
        self.process = None
        self._log = folder / "server.log"

    @property
    def uri(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--workers", "1"]
        command += ["--backend-store-uri", self.database.uri]
        command += ["--artifacts-destination", str(self.files)]
        environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
        environment.pop("MLFLOW_TRACKING_URI", None)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        wait_until(self._answers, process=self.process, log=self._log)

    def _answers(self):
        # Not its page ``health``: the first answer from the database takes seconds.
        address = f"{self.uri}/api/2.0/mlflow/experiments/get?experiment_id=0"
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(address, timeout=60.0).status == 200
        return False

    def kill(self):
        """End the server and its workers at once, as a crash does."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30.0)
            self.process = None


@contextlib.contextmanager
def team_server():
    """Run a server of a team, and remove everything that it has written at the end."""
    # Not pytest's own folders, which another user must not enter.
    folder = Path(tempfile.mkdtemp(prefix="yamame-server-"))
    folder.chmod(0o755)
    database = Database(folder)
    server = TeamServer(folder, database)
    try:
        database.start()
        server.start()
        yield server
    finally:
        server.kill()
        database.stop()
        shutil.rmtree(folder, ignore_errors=True)
