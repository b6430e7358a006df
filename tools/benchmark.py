"""Where the time goes in learning, acting and replay, each beside what the machine allows.

    python tools/benchmark.py                                       # everything, one thread
    python tools/benchmark.py update --lengths 101,513              # one section
    python tools/benchmark.py acting --json collector.autocast=bfloat16      # any override of the training recipe
    python tools/benchmark.py fit --device cuda experiment=dark_key_to_door  # what a whole experiment would take
    python tools/benchmark.py worth                                 # what has no setting, beside the plain way
    python tools/benchmark.py update --against HEAD~3               # two revisions, in alternation
    python tools/benchmark.py update --versus encoder=gru           # two settings, in alternation

On a CPU times are CPU seconds, on a GPU they are taken between CUDA events. The limit of a row is the time that its
floating-point operations would take at the machine's own matrix product rate, or its bytes at the rate of a copy, both
measured in the same run; acting has both, for every step reads all that is remembered. The rest of a row's time is
overhead and operations that are no matrix product.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmark_acting import acting_parts
from benchmark_fit import fit_parts
from benchmark_memory import keeping_parts, memory_parts, peak, timed_updates
from benchmark_update import update_parts
from benchmark_worth import worth_parts

SECTIONS = ("update", "acting", "replay", "fit", "worth", "pipeline", "memory")
SIZES = (
    "env.size=11", "env.num_goals=3", "env.time_limit=250", "timestep_encoder.hidden_size=512",
    "timestep_encoder.out_size=256", "agent.actor.hidden_size=256", "agent.critic.hidden_size=256",
    "schedule.batch_size=24", "logger=none",
)  # fmt: skip
"""The published size of agent on MazeRunner or another ``env=``, before overrides; an ``experiment=`` has its own."""
LAYERS = {
    "transformer": ["encoder.num_layers=3", "encoder.d_model=256", "encoder.sigma_reparam=true"],
    "gru": ["encoder.num_layers=3", "encoder.hidden_size=256"],
}

# From this checkout, whichever revision of the package is measured.
_SPEED = Path(__file__).parents[1] / "components" / "yamame" / "runs" / "speed.py"
_spec = importlib.util.spec_from_file_location("speed", _SPEED)
speed = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(speed)


@dataclass
class Row:
    """One line of the table: seconds of one ``unit``, and the least it could take."""

    section: str
    name: str
    unit: str
    seconds: float
    limit: float | None = None
    note: str = ""


class Subject:
    """An agent, its learner and its environment, built from overrides as the training recipe does."""

    def __init__(self, overrides: list[str], device: str) -> None:
        from hydra import compose, initialize_config_dir
        from yamame import conf_dir
        from yamame.runs.build import build_agent, build_learner

        kind = next((text.split("=")[1] for text in overrides if text.startswith("encoder=")), "transformer")
        other, whole = (any(text.startswith(key) for text in overrides) for key in ("env=", "experiment="))
        sizes = [text for text in SIZES if not (other and text.startswith("env."))] + LAYERS.get(kind, [])
        sizes = ["logger=none"] if whole else sizes
        given = [f"device={device}", *sizes, *overrides]
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            self.cfg = compose("train", overrides=given)
        self.device = device
        torch.manual_seed(0)
        self.env = self.make_env(16)
        self.agent = build_agent(self.cfg, self.env)
        self.learner = build_learner(self.cfg, self.agent)

    @contextmanager
    def counting_flops(self) -> Iterator[list[float]]:
        """Counts the operations of an update as PyTorch makes it: those of functions in C are not seen."""
        compiled = [module for module in self.learner.loss.modules() if getattr(module, "compiled", False)]
        try:
            for module in compiled:
                module.compiled = False
            with speed.counting_flops() as count:
                yield count
        finally:
            for module in compiled:
                module.compiled = True

    def make_env(self, rows: int) -> Any:
        """The environment of the configuration."""
        from yamame.runs.build import build_env

        return build_env(self.cfg, num_envs=rows, seed=0)

    def batch(self, size: int, length: int) -> Any:
        """Sequences of random play, repeated to the length asked for."""
        from yamame.replay import pack

        rollout = self.env.rollout(min(length - 1, 64), break_when_any_done=False).exclude("goal_reached")
        packed = pack(rollout)
        rows = torch.arange(size) % packed.shape[0]
        columns = torch.arange(length) % (packed.shape[1] - 1)
        batch = packed[rows.unsqueeze(-1), columns].contiguous()
        first = (torch.arange(length) == 0).expand(size, length).unsqueeze(-1)
        batch["is_init"], batch["mask"] = first.clone(), torch.ones_like(first)
        batch["step_index"] = torch.arange(length).expand(size, length).unsqueeze(-1).clone()
        return batch.to(self.device)


def acting_rows(subject: Subject, clock: Any, machine: Any, rows: list[int]) -> Iterator[Row]:
    """Environment steps with the agent's policy, in a collector that keeps what it saw: whole, and by parts."""
    # Revisions from before a setting know nothing of it.
    known = subject.cfg.collector
    settings = {name: known[name] for name in ("autocast", "compile_policy", "cuda_graph") if known.get(name)}
    autocast = settings.get("autocast")
    dtype = torch.float32 if autocast is None else getattr(torch, autocast)
    rates = machine.product_rate(torch.float32), machine.product_rate(dtype), machine.copy_rate()
    for count in rows:
        measured = acting_parts(
            (subject.make_env(count), subject.make_env(count)),
            subject.agent.policy(),
            clock=clock,
            counting_flops=speed.counting_flops,
            rates=rates,
            settings=settings,
        )
        for name, *numbers in measured:
            yield Row("acting", f"{count} rows, {name}", "environment step", *numbers)


def replay_rows(subject: Subject, clock: Any, machine: Any) -> Iterator[Row]:
    """Appending, reading and relabelling whole trajectories."""
    from yamame.replay import Relabel, TrajectoryReplayBuffer

    size = subject.cfg.schedule.batch_size
    with tempfile.TemporaryDirectory() as folder:
        for name, transform in (("read", None), ("read and relabelled", Relabel("some", inplace=True))):
            path = Path(folder) / name
            buffer = TrajectoryReplayBuffer(path=path, capacity=400_000, batch_size=size, transform=transform)
            data = subject.batch(256, 251).to("cpu")
            append = clock.time(lambda b=buffer, d=data: b.extend(d), least=5)
            read = sum(value.nbytes for value in data[:size].values(True, True))
            rate = machine.copy_rate()
            if transform is None:
                yield Row("replay", "256 x 251 appended", "call", append, read * 256 / size / rate)
            sample = clock.time(buffer.sample, least=20)
            yield Row("replay", f"{size} x 251 {name}", "batch", sample, read / rate)


def pipeline_rows(overrides: list[str]) -> Iterator[Row]:
    """The training recipe from end to end, evaluations and checkpoints included."""
    from yamame import conf_dir

    recipe = conf_dir().parent / "recipes" / "train.py"
    with tempfile.TemporaryDirectory() as folder:
        settings = ["logger=none", "run.name=bench", "budget.env_steps=16384"]
        command = [sys.executable, str(recipe), *settings, *overrides]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        summary = json.loads((Path(folder) / "runs/bench/summary.json").read_text())
    note = f"{summary['updates']} updates, {summary['wall_s']:.0f} s wall"
    yield Row(
        "pipeline", "training recipe", "environment step", summary["cpu_s"] / summary["env_steps"], None, note
    )


def child(options: argparse.Namespace, *more: str) -> Any:
    """What this command prints in a process of its own, with more arguments."""
    settings = ["--device", options.device, "--threads", str(options.threads)]
    command = [sys.executable, __file__, *settings, *more, *options.overrides]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """All rows that were asked for."""
    clock = speed.Clock(options.device)
    machine = speed.Machine(options.device, clock)
    for dtype in (torch.float32, torch.bfloat16):
        rate, kind = machine.product_rate(dtype), str(dtype).removeprefix("torch.")
        yield Row(
            "machine", f"matrix product, {kind}", "GFLOP", 1e9 / rate, None, f"{rate / 1e9:.0f} GFLOP/s"
        )
    rate = machine.copy_rate()
    yield Row("machine", "copy", "GB", 1e9 / rate, None, f"{rate / 1e9:.1f} GB/s")
    wanted = set(options.sections)
    if wanted & {"update", "acting", "replay", "fit", "worth"}:
        subject = Subject(options.overrides, options.device)
    if "update" in wanted:
        parts = update_parts(subject, clock, machine, options.lengths)
        yield from (Row("update", *part) for part in parts)
    if "acting" in wanted:
        yield from acting_rows(subject, clock, machine, options.rows)
    if "replay" in wanted:
        yield from replay_rows(subject, clock, machine)
    if "fit" in wanted:
        yield from (Row("fit", *row) for row in fit_parts(subject, clock))
    if "worth" in wanted:
        parts = worth_parts(subject, clock, options.rows, options.lengths)
        yield from (Row("worth", *part) for part in parts)
        size = subject.cfg.schedule.batch_size
        parts = keeping_parts(partial(child, options), size, max(options.lengths))
        yield from (Row("worth", *part) for part in parts)
    if "pipeline" in wanted:
        yield from pipeline_rows(options.overrides)
    if "memory" in wanted:
        parts = memory_parts(partial(child, options), options.memory_lengths)
        yield from (Row("memory", *part) for part in parts)


def rounds(options: argparse.Namespace) -> list[list[Row]]:
    """Rows of both sides of a comparison, every side measured several times, in turn."""
    settings = ["--device", options.device, "--threads", str(options.threads), "--json"]
    for name in ("lengths", "memory_lengths", "rows"):
        settings += [f"--{name.replace('_', '-')}", ",".join(map(str, getattr(options, name)))]
    sides: list[list[list[Row]]] = [[], []]
    with tempfile.TemporaryDirectory() as folder:
        other = {**os.environ}
        if options.against:
            subprocess.run(["git", "worktree", "add", "--detach", folder, options.against], check=True)
            other["PYTHONPATH"] = f"{folder}/components{os.pathsep}{folder}/envs"
        try:
            for _ in range(options.rounds):
                for side, env, more in ((0, other, []), (1, {**os.environ}, options.versus)):
                    what = [*options.sections, *options.overrides, *more]
                    command = [sys.executable, __file__, *what, *settings]
                    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
                    sides[side].append([Row(**row) for row in json.loads(done.stdout)])
        finally:
            if options.against:
                subprocess.run(["git", "worktree", "remove", "--force", folder], check=True)
    return [[middle(list(same)) for same in zip(*side, strict=True)] for side in sides]


def middle(same: list[Row]) -> Row:
    """The row of median time among several measurements of it."""
    return sorted(same, key=lambda row: row.seconds)[len(same) // 2]


def show(rows: list[Row], before: list[Row] | None) -> None:
    """Prints the table; a row that was not there before has no number of then."""
    earlier = {(row.section, row.name): row.seconds for row in before or []}
    print("| section | what | time | of the limit | note |" + (" before | times faster |" if before else ""))
    print("|---" * (7 if before else 5) + "|")
    for row in rows:
        share = "" if row.limit is None else f"{row.limit / row.seconds:.0%}"
        cells = [row.section, row.name, f"{readable(row.seconds)} / {row.unit}", share, row.note]
        if before:
            then = earlier.get((row.section, row.name))
            cells += ["", ""] if then is None else [readable(then), f"{then / row.seconds:.2f}"]
        print("| " + " | ".join(cells) + " |", flush=True)


def readable(seconds: float) -> str:
    """A time with its unit."""
    scales = ((1.0, "s"), (1e3, "ms"), (1e6, "us"))
    factor, unit = next((scale for scale in scales if seconds * scale[0] >= 1), scales[-1])
    return f"{seconds * factor:.3g} {unit}"


def keep_freed_memory() -> None:
    """As the recipes do when they begin, if the revision has it."""
    with suppress(ImportError):
        from yamame.runs import keep_freed_memory

        keep_freed_memory()


def numbers(text: str) -> list[int]:
    """``1,2`` -> ``[1, 2]``."""
    return [int(number) for number in text.split(",")]


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", help="sections, and overrides of the training recipe")
    parser.add_argument("--lengths", type=numbers, default=[101, 513], help="of the updates")
    parser.add_argument("--memory-lengths", type=numbers, default=[1025, 10001])
    parser.add_argument("--rows", type=numbers, default=[16, 256], help="that act")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="prints JSON instead of a table")
    parser.add_argument("--against", help="a git revision to compare with")
    parser.add_argument("--versus", nargs="+", default=[], help="overrides to compare those given with")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each side of a comparison")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--at-once", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--updates", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--giving-back", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    options.overrides = [text for text in options.what if "=" in text]
    options.sections = [text for text in options.what if "=" not in text] or list(SECTIONS)
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown section {sorted(unknown)[0]!r}; there are {', '.join(SECTIONS)}")
    torch.set_num_threads(options.threads)
    if not options.giving_back:
        keep_freed_memory()
    if options.peak or options.updates:
        subject = Subject(options.overrides, options.device)
        length = options.peak or options.updates
        found = (
            peak(subject, length, at_once=options.at_once) if options.peak else timed_updates(subject, length)
        )
        print(json.dumps(found))
    elif options.against or options.versus:
        before, after = rounds(options)
        show(after, before)
    elif options.json:
        print(json.dumps([asdict(row) for row in measure(options)]))
    else:
        show(list(measure(options)), None)


if __name__ == "__main__":
    main()
