"""Check that everything works on a GPU, and measure the predictions of `docs/lab/gpu/README.md`.

    python tools/first_gpu_run.py prepare                  # with a network: wheels into .wheels/
    python tools/first_gpu_run.py run                      # on the GPU machine: nine minutes
    python tools/first_gpu_run.py run --parts parity,fit   # some parts; parity:acting is a group
    python tools/first_gpu_run.py run --tiny --device cpu  # a rehearsal without a GPU
    python tools/first_gpu_run.py table                    # the table of the latest run again

`run` is the default command. On an emulated device:
``python tests/gpu_emulation/program.py run tools/first_gpu_run.py run --tiny``.

Every part is a process with a time limit. A part that fails, hangs, lacks a package or corrupts the
device for its process ends no other part, and its results so far are kept: each is appended to
``results.jsonl`` at once. The folder of the results also gets ``output.txt`` (output of the parts),
``smi.csv`` (samples of nvidia-smi) and, at the end, ``table.md``.

The table has the time of ordinary updates and steps over that of recorded ones. If both are below
1.1, recording CUDA graphs is not worth its code.
"""

import argparse
import importlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu import results, supervise, wheels

ROOT = Path(__file__).parents[1]
PARTS = {"machine": 75, "smoke": 75, "parity": 60, "tests": 90, "speed": 110, "fit": 540}
"""Time limit of each part in seconds, of nine minutes; the most important part comes first.

The last part gets all the time that is left.
"""
MODULES = {"tests": "gpu.marked", "speed": "gpu.throughput"}
"""Modules of parts whose names differ from that of the part."""
NO_DEVICE = 3
"""Exit status of a part that finds no GPU."""
RESERVE = supervise.GRACE + 4.0
"""Seconds at the end, to kill the last part and to write the table."""


def run(options: argparse.Namespace) -> int:
    """Run the parts one after the other.

    Returns:
        0, or 1 if a part failed or was stopped, or packages are missing.
    """
    out: Path = options.out
    end = time.monotonic() + 60 * options.minutes - RESERVE
    # Times of a rehearsal are not compared with predictions.
    rehearsal = options.tiny or options.device != "cuda"
    results.append(out, "run", "began", time.strftime("%Y-%m-%d %H:%M:%S"), rehearsal=rehearsal)
    supervise.sample_gpu(out / "smi.csv")
    failed = False
    try:
        with tempfile.TemporaryDirectory(prefix="first_gpu_run_") as scratch:
            env = environment(Path(scratch))
            failed = not install(out, env, Path(scratch) / "site")
            for number, part in enumerate(options.parts):
                left = end - time.monotonic()
                limit = options.limits.get(part, options.limits[part.split(":")[0]])
                status = run_part(part, min(left, limit), options, env)
                failed |= status != 0
                # A later part may find no GPU because an earlier one has broken the driver.
                if status == NO_DEVICE and number == 0:
                    sys.exit(
                        "first_gpu_run: torch sees no GPU; `run --tiny --device cpu` is a "
                        "rehearsal without one"
                    )
    finally:
        # Also after a signal: the results so far are the reason for the run.
        supervise.end_descendants()
        text = results.table(out)
        (out / "table.md").write_text(text)
        print(f"\n{text}", flush=True)
    return int(failed)


def run_part(
    part: str, seconds: float, options: argparse.Namespace, env: dict[str, str]
) -> int | None:
    """Run a part in a process, for a number of seconds at most.

    Returns:
        Its exit status; None if it was stopped, or if no time was left for it.
    """
    if seconds < 1:
        results.append(options.out, "run", f"{part} ended", "no time was left")
        return None
    # Clock time, because a monotonic clock may differ between processes.
    until = time.time() + seconds
    command = [*launcher(), __file__, "part", part, f"--until={until}", f"--out={options.out}"]
    command.append(f"--device={options.device}")
    if options.tiny:
        command.append("--tiny")
    output = options.out / "output.txt"
    with output.open("a") as file:
        file.write(f"===== {part}, at most {seconds:.0f} s\n")
    begin = time.monotonic()
    status = supervise.run_limited(command, seconds=seconds, output=output, env=env)
    ended = f"stopped at its limit of {seconds:.0f} s" if status is None else f"status {status}"
    taken = time.monotonic() - begin
    results.append(options.out, "run", f"{part} ended", ended, seconds=round(taken, 1))
    print(f"{part}: {ended} after {taken:.0f} s", flush=True)
    return status


def environment(scratch: Path) -> dict[str, str]:
    """Return the environment variables of parts.

    Args:
        scratch: Folder for temporary files, with the wheels in ``site``.
    """
    # The wheels come first, then the checkout, which need not be installed.
    path = [str(scratch / "site")]
    for name in ("components", "envs", "tools"):
        path.append(str(ROOT / name))
    inherited = os.environ.get("PYTHONPATH")
    if inherited:
        path.append(inherited)
    defaults = {"OMP_NUM_THREADS": "4", "OMP_WAIT_POLICY": "PASSIVE", "MPLBACKEND": "Agg"}
    own = {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
        "HYDRA_FULL_ERROR": "1",
        "TMPDIR": str(scratch),
        "MPLCONFIGDIR": str(scratch / "matplotlib"),
    }
    return {**defaults, **os.environ, **own}


def install(out: Path, env: dict[str, str], target: Path) -> bool:
    """Install the wheels into a folder if this environment lacks packages.

    What cannot be installed is written as a result: parts that do not need it run all the same.

    Returns:
        Whether everything that was declared is there.
    """
    missing, outside = wheels.lacking()
    if outside:
        results.append(out, "run", "versions outside of the bounds", outside)
    if not missing:
        return True
    absent = sorted(set(missing) - wheels.prepared().keys())
    if absent:
        results.append(out, "run", "packages missing", absent)
        print(
            f"first_gpu_run: {', '.join(absent)} not installed, and no wheels in "
            f"{wheels.FOLDER}; parts that need them will fail. On a machine with a network, run "
            "`python tools/first_gpu_run.py prepare`, and copy the checkout with that folder.",
            file=sys.stderr,
        )
    if not wheels.prepared():
        return False
    output = out / "output.txt"
    status = supervise.run_limited(
        wheels.install_command(target), seconds=60, output=output, env=env
    )
    results.append(out, "run", "wheels installed", status == 0, number=len(wheels.prepared()))
    if status != 0:
        print(
            f"first_gpu_run: installing the wheels of {wheels.FOLDER} failed:\n"
            f"{output.read_text()[-1000:]}",
            file=sys.stderr,
        )
    return status == 0 and not absent


def run_own_part(options: argparse.Namespace) -> int:
    """Execute a part in this process."""
    # Here, because the process that supervises parts needs no torch, which takes seconds to load.
    import torch
    from gpu.job import Job

    if options.device == "cuda" and not torch.cuda.is_available():
        return NO_DEVICE
    part, _, choice = options.part.partition(":")
    job = Job(part, choice, options.device, options.tiny, options.out, options.until, launcher())
    importlib.import_module(MODULES.get(part, f"gpu.{part}")).run(job)
    job.check_choice()
    return int(bool(job.failures))


def launcher() -> list[str]:
    """Return the command that runs a script as this one was run, on an emulated device too."""
    # Options of the interpreter, and the program that sets up an emulated device.
    before_script = sys.orig_argv[1 : sys.orig_argv.index(sys.argv[0])]
    return [sys.executable, *before_script]


def end(number: int, _: Any) -> None:
    """Exit at a signal, so that the part is killed and the table is written."""
    # The exit status of a shell for a process that a signal has ended.
    sys.exit(128 + number)


def parts_of(text: str) -> list[str]:
    """Parse a list of parts such as ``machine,parity:acting``."""
    parts = text.split(",")
    for part in parts:
        if part.split(":")[0] not in PARTS:
            raise argparse.ArgumentTypeError(f"parts must be of {', '.join(PARTS)}, got {part}")
    return parts


def limit_of(text: str) -> tuple[str, float]:
    """Parse the limit of a part, or of a group of one, such as ``smoke=120``."""
    name, _, seconds = text.partition("=")
    if name.split(":")[0] not in PARTS or not seconds.replace(".", "", 1).isdigit():
        raise argparse.ArgumentTypeError(f"must be a part and seconds, as smoke=120, got {text}")
    return name, float(seconds)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare", help="download wheels for the GPU machine")
    preparing.add_argument(
        "--python", default="3.12", help="version of Python there (default: %(default)s)"
    )
    preparing.add_argument(
        "--platform", default="manylinux_2_28_x86_64", help="default: %(default)s"
    )
    running = commands.add_parser("run", help="run the parts")
    running.add_argument(
        "--minutes", type=float, default=9.0, help="of all parts together (default: %(default)s)"
    )
    running.add_argument(
        "--parts", type=parts_of, default=list(PARTS), help=f"of {', '.join(PARTS)}"
    )
    running.add_argument(
        "--limit", type=limit_of, action="append", default=[], help="another limit: smoke=120"
    )
    part = commands.add_parser("part", help="one part in this process, as `run` starts it")
    part.add_argument("part")
    part.add_argument("--until", type=float, default=time.time() + 600)
    table = commands.add_parser("table", help="print the table of the latest run")
    for each in (running, part, table):
        folder = Path(os.environ.get("OUT") or "gpu_run")
        each.add_argument(
            "--out",
            type=Path,
            default=folder,
            help="folder of the results (default: $OUT or gpu_run)",
        )
    for each in (running, part):
        each.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
        each.add_argument(
            "--tiny", action="store_true", help="small networks, to try the parts themselves"
        )
    given = sys.argv[1:]
    # `run` is the default command.
    if not given or (given[0].startswith("--") and given[0] != "--help"):
        given = ["run", *given]
    return parser.parse_args(given)


def main() -> int:
    """Run a command."""
    options = arguments()
    if options.command == "prepare":
        wheels.prepare(options.python, options.platform)
        return 0
    if options.command == "table":
        print(results.table(options.out), end="")
        return 0
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.command == "part":
        return run_own_part(options)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    # Limits scale with the time of the whole run.
    options.limits = {name: seconds * options.minutes / 9 for name, seconds in PARTS.items()}
    options.limits |= dict(options.limit)
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
