"""Measure the wall-clock seconds of a short run beside busy processes.

A variant, if given, is measured in alternation.

    python tools/threads.py --busy 2 --versus OMP_WAIT_POLICY=PASSIVE  # threads that sleep
    python tools/threads.py --root /tmp/other_checkout                 # another revision
    python tools/threads.py --busy 2 budget.env_steps=16384            # other settings
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
SETTINGS = ["budget.env_steps=8192", "budget.minutes=null", "logger=none"]
BUSY = "while True: pass"


def seconds(root: Path, settings: list[str], changes: dict[str, str]) -> float:
    """Return the seconds that recipes/train.py of a checkout takes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            str(root / "recipes/train.py"),
            *SETTINGS,
            *settings,
            f"run.root={folder}",
        ]
        paths = os.pathsep.join(str(root / name) for name in ("components", "envs"))
        environment = {**os.environ, "PYTHONPATH": paths, **changes}
        start = time.perf_counter()
        subprocess.run(command, env=environment, check=True, capture_output=True, cwd=folder)
        return time.perf_counter() - start


def main() -> None:
    """Parse the command line and print the times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="*", help="overrides of recipes/train.py")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute all the while")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--versus", default="", help="NAME=VALUE of the environment: the variant")
    parser.add_argument("--root", type=Path, default=HERE, help="the checkout of the variant")
    given = parser.parse_args()
    name, _, value = given.versus.partition("=")
    variant = (given.root, given.settings, {name: value} if name else {})
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(given.busy)]
    try:
        for _ in range(given.pairs):
            own, other = seconds(HERE, given.settings, {}), seconds(*variant)
            print(f"{own:7.1f} s   variant {other:7.1f} s   ratio {own / other:.2f}", flush=True)
    finally:
        for process in busy:
            process.kill()


if __name__ == "__main__":
    main()
