"""Estimate the speed of a run on more cores, machines and GPUs, and its bottleneck.

    python tools/benchmark.py fit sampling --json env=crafter > here.json        # on an acting core
    python tools/benchmark.py fit --device cuda --json env=crafter > gpu.json    # on a learner
    python tools/plan_scale.py here.json --updates gpu.json --cores 200 --learners 8

All costs are measured ones. Without ``--updates`` the learner is a core of the same kind. The
slowest part limits the speed: actors make ``cores / step`` environment steps per second, a learner
uses ``1 / (updates per step x update)``, its sampling serves ``1 / (updates per step x batch)``,
and its main thread stores ``1 / (storing a step)``. Learners share only gradients: each has its own
batch, actors and replay, so that the whole batch grows with their number. Networks between
machines, evaluations, startup, and actors on the learner's own cores are not modelled.
"""

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Costs:
    """Costs in seconds of one core, or of the learner's device."""

    step: float  # environment and decision
    update: float
    batch: float  # sampled and relabelled
    stored: float  # a step appended to replay
    updates_per_step: float


@dataclass(frozen=True)
class Plan:
    """Estimated speed of an arrangement, and its bottleneck."""

    name: str
    steps_per_s: float
    bound: str


def read_costs(acting: list[dict[str, Any]], learning: list[dict[str, Any]]) -> Costs:
    """Read the costs from rows of ``tools/benchmark.py fit sampling --json``.

    Raises:
        ValueError: A row is missing.
    """
    run = _row(learning, "fit", "run")["name"]
    steps, updates = (int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", run)[:2])
    append = _row(acting, "sampling", "call")
    trajectories, length = map(int, re.findall(r"\d+", append["name"])[:2])
    return Costs(
        step=_row(acting, "fit", "environment step")["seconds"],
        update=_row(learning, "fit", "update")["seconds"],
        batch=_row(acting, "sampling", "batch")["seconds"],
        stored=append["seconds"] / (trajectories * length),
        updates_per_step=updates / steps,
    )


def _row(rows: list[dict[str, Any]], section: str, unit: str) -> dict[str, Any]:
    found = [row for row in rows if (row["section"], row["unit"]) == (section, unit)]
    if not found:
        raise ValueError(
            f"no row of {section!r} per {unit}: run tools/benchmark.py fit sampling --json"
        )
    return found[-1]


def plans(costs: Costs, *, cores: int, learners: int) -> Iterator[Plan]:
    """Return the plans of one process, and of each step of docs/scale.md.

    >>> for plan in plans(Costs(0.001, 0.01, 0.001, 1e-5, 0.1), cores=8, learners=4):
    ...     print(f"{plan.name}: {plan.steps_per_s:.0f} steps/s, {plan.bound}")
    one process: 500 steps/s, acting and learning in turn
    1 actor beside the learner: 1000 steps/s, acting
    8 actors: 1000 steps/s, learning
    8 actors, 4 learners: 4000 steps/s, learning
    """
    alone = costs.step + costs.updates_per_step * costs.update
    yield Plan("one process", 1 / alone, "acting and learning in turn")
    for actors, ranks in ((1, 1), (cores, 1), (cores, learners)):
        limits = {
            "acting": actors / costs.step,
            "learning": ranks / (costs.updates_per_step * costs.update),
            "sampling": ranks / (costs.updates_per_step * costs.batch),
            "storing": ranks / costs.stored,
        }
        bound = min(limits, key=lambda name: limits[name])
        name = f"{actors} actor{'s' * (actors > 1)}" + (
            " beside the learner" if actors == 1 else ""
        )
        yield Plan(name if ranks == 1 else f"{name}, {ranks} learners", limits[bound], bound)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "acting", type=Path, help="what tools/benchmark.py fit sampling --json printed"
    )
    parser.add_argument(
        "--updates", type=Path, help="the same of the learner's device; that of acting if not given"
    )
    parser.add_argument(
        "--cores", type=int, default=16, help="on which actors play, all machines together"
    )
    parser.add_argument(
        "--learners", type=int, default=1, help="processes of torchrun, a device each"
    )
    options = parser.parse_args()
    acting = json.loads(options.acting.read_text())
    learning = acting if options.updates is None else json.loads(options.updates.read_text())
    costs = read_costs(acting, learning)
    needed = costs.step / (costs.updates_per_step * costs.update)
    print(
        f"A learner uses what {needed:.2g} cores play, at {costs.updates_per_step:.3g} "
        "updates a step.\n"
    )
    print("| arrangement | steps/s | held back by |\n|---|---|---|")
    for plan in plans(costs, cores=options.cores, learners=options.learners):
        print(f"| {plan.name} | {plan.steps_per_s:,.0f} | {plan.bound} |")


if __name__ == "__main__":
    main()
