"""Measure the time of learning, acting and replay beside the limits of the machine.

    python tools/benchmark.py                                               # everything, one thread
    python tools/benchmark.py update --lengths 101,513                      # one section
    python tools/benchmark.py acting --json collector.autocast=bfloat16     # any override
    python tools/benchmark.py fit --device cuda experiment=dark_key_to_door  # a whole experiment
    python tools/benchmark.py update --against HEAD~3                       # two revisions
    python tools/benchmark.py update --versus encoder=gru                   # two settings
    python tools/benchmark.py shapes hardware=gpu env=frozenlake            # shapes of batches
    python tools/benchmark.py shapes --agent zoo:cpu_tmaze hardware=gpu experiment=cpu_tmaze

On a CPU times are CPU seconds, on a GPU they are taken between CUDA events. The limit of a row is
the time that its floating-point operations would take at the machine's own matrix product rate, or
its bytes at the rate of a copy, both measured in the same run. The rest of a row's time is overhead
and operations that are no matrix product. ``--against`` measures each revision with its own copy of
this command and compares rows of the same name. ``shapes`` measures no time: it counts the updates,
of 600, that a recording would replay. With ``--agent`` batches are episodes of that agent.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmark_sections import (
    Row,
    Subject,
    acting_rows,
    fit_rows,
    machine_rows,
    memory_rows,
    peak,
    sampling_rows,
    update_rows,
)
from benchmark_shapes import shape_table
from speed import Clock, Machine
from yamame import conf_dir

SECTIONS = ("update", "acting", "sampling", "fit", "pipeline", "memory")


def pipeline_rows(overrides: list[str]) -> Iterator[Row]:
    """Yield the time of the training recipe from end to end, with evaluations and checkpoints."""
    recipe = conf_dir().parent / "recipes" / "train.py"
    with tempfile.TemporaryDirectory() as folder:
        settings = ["logger=none", "run.name=bench", "budget.env_steps=16384"]
        command = [sys.executable, str(recipe), *settings, *overrides]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        summary = json.loads((Path(folder) / "runs/bench/summary.json").read_text())
    note = f"{summary['updates']} updates, {summary['wall_s']:.0f} s wall"
    seconds = summary["cpu_s"] / summary["env_steps"]
    yield Row("pipeline", "training recipe", "environment step", seconds, None, note)


def child(options: argparse.Namespace, *more: str) -> Any:
    """Return the output of this command in a new process, with additional arguments."""
    settings = ["--device", options.device, "--threads", str(options.threads)]
    command = [sys.executable, __file__, *settings, *more, *options.overrides]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of the selected sections."""
    clock = Clock(options.device)
    machine = Machine(options.device, clock)
    yield from machine_rows(machine)
    wanted = set(options.sections)
    if wanted - {"pipeline", "memory"}:
        subject = Subject(options.overrides, options.device)
    if "update" in wanted:
        yield from update_rows(subject, clock, machine, options.lengths)
    if "acting" in wanted:
        yield from acting_rows(subject, clock, machine, options.envs)
    if "sampling" in wanted:
        yield from sampling_rows(subject, clock, machine)
    if "fit" in wanted:
        yield from fit_rows(subject, clock)
    if "pipeline" in wanted:
        yield from pipeline_rows(options.overrides)
    if "memory" in wanted:
        yield from memory_rows(partial(child, options), options.memory_lengths)


def compared(options: argparse.Namespace) -> list[list[Row]]:
    """Return rows of the other side and of this one, each measured several times, in turn."""
    flags = {"--against": 1, "--versus": len(options.versus), "--rounds": 1}
    arguments = without(sys.argv[1:], flags)
    here = [sys.executable, __file__, *arguments, "--json"]
    with other_revision(options.against) as root:
        there, env = here, None
        if root is not None:
            there = [sys.executable, str(root / "tools" / "benchmark.py"), *arguments, "--json"]
            env = {**os.environ, "PYTHONPATH": f"{root}/components{os.pathsep}{root}/envs"}
        sides: list[list[list[Row]]] = [[], []]
        for _ in range(options.rounds):
            for side, command, its_env in ((0, there, env), (1, [*here, *options.versus], None)):
                done = subprocess.run(
                    command, env=its_env, check=True, stdout=subprocess.PIPE, text=True
                )
                sides[side].append([Row(**row) for row in json.loads(done.stdout)])
    return [[middle(list(same)) for same in zip(*side, strict=True)] for side in sides]


def without(arguments: list[str], flags: dict[str, int]) -> list[str]:
    """Return the arguments of a command without some flags and the values that follow them.

    >>> given = ["update", "--rounds", "5", "--versus", "encoder=gru"]
    >>> without(given, {"--rounds": 1, "--versus": 1})
    ['update']
    """
    kept, skip = [], 0
    for argument in arguments:
        name, _, value = argument.partition("=")
        if skip:
            skip -= 1
        elif name in flags:
            skip = flags[name] - bool(value)
        else:
            kept.append(argument)
    return kept


@contextmanager
def other_revision(name: str | None) -> Iterator[Path | None]:
    """Yield a working tree of another revision; None without a name."""
    if name is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["git", "worktree", "add", "--detach", folder, name], check=True, capture_output=True
        )
        try:
            yield Path(folder)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], check=True)


def middle(same: list[Row]) -> Row:
    """Return the row of median time among several measurements of it."""
    return sorted(same, key=lambda row: row.seconds)[len(same) // 2]


def show(rows: list[Row], before: list[Row] | None) -> None:
    """Print the table; a row of only one side has no number for the other."""
    earlier = {(row.section, row.name): row for row in before or []}
    print(
        "| section | what | time | of the limit | note |"
        + (" before | times faster |" if before else "")
    )
    print("|---" * (7 if before else 5) + "|")
    for row in rows:
        share = "" if row.limit is None else f"{row.limit / row.seconds:.0%}"
        cells = [row.section, row.name, f"{readable(row.seconds)} / {row.unit}", share, row.note]
        if before:
            then = earlier.pop((row.section, row.name), None)
            cells += (
                ["", ""]
                if then is None
                else [readable(then.seconds), f"{then.seconds / row.seconds:.2f}"]
            )
        print("| " + " | ".join(cells) + " |", flush=True)
    for row in earlier.values():
        print(
            f"| {row.section} | {row.name} | | | {row.note} | {readable(row.seconds)} / "
            f"{row.unit} | |"
        )


def readable(seconds: float) -> str:
    """Format a time with its unit."""
    scales = ((1.0, "s"), (1e3, "ms"), (1e6, "us"))
    factor, unit = next((scale for scale in scales if seconds * scale[0] >= 1), scales[-1])
    return f"{seconds * factor:.3g} {unit}"


def numbers(text: str) -> list[int]:
    """Parse ``1,2`` as ``[1, 2]``."""
    return [int(number) for number in text.split(",")]


def parsed() -> argparse.Namespace:
    """Parse the command line, with sections and overrides separated."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", help="sections, and overrides of the training recipe")
    parser.add_argument(
        "--lengths", type=numbers, default=[101, 513], help="of the updates' sequences"
    )
    parser.add_argument("--memory-lengths", type=numbers, default=[1025, 10001])
    parser.add_argument("--envs", type=numbers, default=[16, 256], help="how many environments act")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="prints JSON instead of a table")
    parser.add_argument("--against", help="a git revision to compare with")
    parser.add_argument(
        "--versus", nargs="+", default=[], help="overrides to compare those given with"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="measurements of each side of a comparison"
    )
    parser.add_argument(
        "--agent", help="whose trajectories shapes counts, e.g. zoo:cpu_mazerunner; of no data"
    )
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    options.overrides = [text for text in options.what if "=" in text]
    options.sections = [text for text in options.what if "=" not in text] or list(SECTIONS)
    if unknown := set(options.sections) - {*SECTIONS, "shapes"}:
        parser.error(f"unknown section {sorted(unknown)[0]!r}; there are {', '.join(SECTIONS)}")
    return options


def main() -> None:
    """Print a table, or JSON."""
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # which removes what is only there meanwhile
    options = parsed()
    torch.set_num_threads(options.threads)
    if "shapes" in options.sections:
        print("\n".join(shape_table(options.overrides, options.agent)))
    elif options.peak:
        print(json.dumps(peak(Subject(options.overrides, options.device), options.peak)))
    elif options.against or options.versus:
        before, after = compared(options)
        show(after, before)
    elif options.json:
        print(json.dumps([asdict(row) for row in measure(options)]))
    else:
        show(list(measure(options)), None)


if __name__ == "__main__":
    main()
