"""Measure the memory models of ``encoder=``: costs, and results of learning at equal CPU-seconds.

    python tools/memory_models.py                        # print the table of costs
    python tools/memory_models.py commands               # print the learning runs, a command a line
    python tools/memory_models.py results --root runs    # add finished ones to docs/results

Costs are those of one decision step of one stream, with features of 128 numbers, after a history of
some length; a Transformer has a context of that length. The learning runs need no MLflow. Their
results are read from their run directories, on the machine that made them, into the CSV files that
`yamame.report.evidence` describes; then the tables of docs/howto/memory_models.md are filled.
"""

import argparse
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yamame
import yaml
from tensordict import TensorDictBase
from yamame.cli.nodes import instantiate, plain
from yamame.files.config import flatten
from yamame.files.identity import is_a_setting
from yamame.report import Resampling, make_sections, read_evidence, write_evidence, write_tables
from yamame.tracking.history import COMMAND_TAG, MetricHistory, RunHistory
from yamame.tracking.machine import machine
from yamame.tracking.summary import versions
from yamame.trajectory import TrajectoryEncoder

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "howto" / "memory_models.md"
EVIDENCE = ROOT / "docs" / "results"
ENCODERS = (
    *("memoryless", "window", "transformer", "memo", "rsm", "gru", "lstm"),
    *("linear_recurrent", "mingru", "lru", "ffm", "mlstm", "deltanet"),
)
TASKS = {
    "tmaze": "env=tmaze env.length=50",
    "RepeatPreviousEasy": "env=popgym env.id=RepeatPreviousEasy",
}
BUDGET = "budget.cpu_s=60 budget.minutes=null"
SEED = 20
HISTORIES = (100, 10_000)
_FEATURES, _BLOCKS, _STEPS = 128, 5, 40
"""Features, and blocks of steps whose fastest is the measurement."""


class Costs(NamedTuple):
    """Row of the table of costs: bytes and microseconds after each of `HISTORIES`."""

    encoder: str
    parameters: int
    state_bytes: tuple[int, ...]
    microseconds: tuple[float, ...]


def make_encoder(choice: str, context_length: int) -> TrajectoryEncoder:
    """Return an encoder with the settings of the command line."""
    cfg = yamame.compose(f"encoder={choice}", f"context_length={context_length}")
    torch.manual_seed(0)
    encoder: TrajectoryEncoder = instantiate(cfg.encoder)(_FEATURES)
    return encoder.eval()


@torch.no_grad()
def measure(choice: str) -> Costs:
    """Return the costs of an encoder."""
    sizes = []
    times = []
    for history in HISTORIES:
        steps = _BLOCKS * _STEPS
        encoder = make_encoder(choice, context_length=history + steps)
        memory = encoder.init_memory(1)
        x = torch.randn(1, _FEATURES)
        starts = torch.ones(1, dtype=torch.bool)
        for t in range(history):
            memory = encoder.grow(memory)
            index = torch.full((1,), t)
            _, memory = encoder.step(x, memory, starts, index)
            starts = torch.zeros(1, dtype=torch.bool)
        sizes.append(num_bytes(memory))

        memory, _ = encoder.grow_by(memory, steps)
        index = torch.full((1,), history)
        fastest = float("inf")
        for _ in range(_BLOCKS):
            began = time.process_time()
            for _ in range(_STEPS):
                memory = encoder.grow(memory)
                _, memory = encoder.step(x, memory, starts, index)
                index = index + 1
            fastest = min(fastest, time.process_time() - began)
        times.append(1e6 * fastest / _STEPS)
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    return Costs(choice, parameters, tuple(sizes), tuple(times))


def num_bytes(memory: TensorDictBase) -> int:
    """Return the size of a memory."""
    return sum(value.nbytes for value in memory.values(True, True))


def cost_table() -> Iterator[str]:
    """Yield the lines of the table of costs."""
    yield "| `encoder=` | parameters | bytes of memory | microseconds of a step |"
    yield "| --- | --- | --- | --- |"
    for choice in ENCODERS:
        costs = measure(choice)
        sizes = "; ".join(f"{size:,}" for size in costs.state_bytes)
        times = "; ".join(f"{duration:,.0f}" for duration in costs.microseconds)
        yield f"| `{choice}` | {costs.parameters:,} | {sizes} | {times} |"


def overrides_of(task: str, encoder: str) -> list[str]:
    """Return the overrides of a learning run, as the tables of the page have them."""
    return [*TASKS[task].split(), f"encoder={encoder}", *BUDGET.split()]


def commands(root: str) -> Iterator[str]:
    """Yield the commands of all learning runs."""
    for encoder in ENCODERS:
        for task in TASKS:
            words = ["python", "recipes/train.py", *overrides_of(task, encoder), f"seed={SEED}"]
            words += ["logger=none", f"run.root={root}", f"run.name={task}-{encoder}"]
            yield shlex.join([*words, "resume=auto"])


def read_run(folder: Path, task: str, encoder: str) -> RunHistory:
    """Return a finished run from its directory.

    Raises:
        SystemExit: The run has other settings than its command, or is of another machine.
    """
    summary = yaml.safe_load((folder / "summary.json").read_text())
    config = yaml.safe_load((folder / "config.yaml").read_text())
    if summary["versions"] != versions():
        raise SystemExit(f"{folder}: has versions {summary['versions']}, here are {versions()}")
    overrides = overrides_of(task, encoder)
    different = differing(config, plain(yamame.compose(*overrides)))
    if different:
        raise SystemExit(f"{folder}: differs from {' '.join(overrides)} in {', '.join(different)}")

    last = max((folder / "checkpoints").glob("step-*.pt"))
    progress = torch.load(last, weights_only=True)["components"]["progress"]
    tags = {f"version.{name}": value for name, value in summary["versions"].items()}
    tags |= {f"machine.{name}": value for name, value in machine().items()}
    tags["mlflow.source.git.commit"] = summary["git_revision"]
    tags["evaluated_on"] = summary["evaluated_on"] or ""
    tags[COMMAND_TAG] = shlex.join(["python", "recipes/train.py", *overrides, f"seed={SEED}"])
    return RunHistory(
        run_id=f"{task}-{encoder}-{summary['git_revision'][:8]}",
        name=folder.name,
        status=summary["status"],
        started_ms=int(1000 * (folder / "config.yaml").stat().st_mtime),
        params={name: str(value) for name, value in flatten(config).items()},
        tags=tags,
        metrics=metrics_of(progress["curve"], summary),
    )


def differing(config: Mapping[str, Any], composed: Mapping[str, Any]) -> list[str]:
    """Return the settings of a run that are not those of its command."""
    found = flatten(config)
    wanted = flatten(composed)
    names = []
    for name in sorted(found.keys() | wanted.keys()):
        is_computed = wanted.get(name) == "auto"  # when the run begins
        is_equal = str(found.get(name)) == str(wanted.get(name))
        if is_a_setting(name) and not is_equal and not is_computed:
            names.append(name)
    return names


def metrics_of(curve: Sequence[Mapping[str, float]], summary: Mapping[str, Any]) -> Any:
    """Return the metrics of evaluations; costs are known at the last one alone."""
    metrics = {}
    steps = np.array([point["env_steps"] for point in curve], dtype=float)
    for name in curve[-1]:
        if name != "env_steps":
            values = np.array([point.get(name, np.nan) for point in curve], dtype=float)
            metrics[f"eval/{name}"] = MetricHistory(steps, values)
    for name in ("env_steps", "updates", "cpu_s", "wall_s"):
        value = np.array([summary[name]], dtype=float)
        metrics[f"cost/{name}"] = MetricHistory(steps[-1:], value)
    return metrics


def add_results(root: Path) -> None:
    """Add finished runs to the evidence, and fill the tables of the page."""
    runs = []
    for task in TASKS:
        for encoder in ENCODERS:
            folder = root / f"{task}-{encoder}"
            summary = folder / "summary.json"
            if summary.is_file() and yaml.safe_load(summary.read_text())["status"] == "FINISHED":
                runs.append(read_run(folder, task, encoder))
    sections, left_out = make_sections(runs)
    for run, reason in left_out:
        print(f"not counted: {run.name}: {reason}")
    for line in write_evidence(EVIDENCE, sections):
        print(line)
    all_sections, _ = make_sections(read_evidence(EVIDENCE))
    for line in write_tables([PAGE], all_sections, Resampling()):
        print(f"to be run: {line}")
    print(f"{len(runs)} runs")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="costs and results of memory models")
    parser.add_argument(
        "action", nargs="?", default="costs", choices=["costs", "commands", "results"]
    )
    parser.add_argument("--root", default="runs", help="run.root of the learning runs")
    arguments = parser.parse_args()
    if arguments.action == "results":
        add_results(Path(arguments.root))
        return
    torch.set_num_threads(1)
    lines = cost_table() if arguments.action == "costs" else commands(arguments.root)
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()
