"""What acting and learning cost the host on the emulated device, per step of all environments and
per update.

    # the table of docs/lab/gpu/README.md
    python tests/gpu_emulation/program.py run tests/gpu_emulation/costs.py
    # of other settings
    python tests/gpu_emulation/program.py run tests/gpu_emulation/costs.py encoder=gru
    # the table of docs/lab/gpu/counts.md, of experiments that are meant for a GPU
    python tests/gpu_emulation/program.py run tests/gpu_emulation/costs.py --flagship

A step is counted from one decision to the next of the same block. The rest of a block is what it
costs beside its steps. An update is counted with the sampling and copying of its batch.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from unittest.mock import patch

import torch
import yamame
from emulated_cuda.counting import Counts, counted
from yamame.collectors import SyncCollector
from yamame.training import Prefetcher

ENVS = ("mazerunner", "frozenlake", "tmaze", "dark_key_to_door")
"""Each as the experiment ``cpu_*`` has it."""
SHORT = (
    "logger=none", "device=cuda", "evaluation.num_episodes=2", "evaluation.max_steps=2",
    "evaluation.video_frames=1",
    "budget={env_steps:null,minutes:null,updates:40}", "schedule.learning_starts=0",
    "schedule.num_envs=4",
    "schedule.steps_per_iteration=128", "schedule.updates_per_step=0.02", "schedule.batch_size=4",
    "schedule.regulator=null",
    "encoder.d_model=32",
    "packing.row_multiple=4", "packing.length_multiple=256",
)  # fmt: skip
"""Batches of one shape, so that the last updates are replayed. How large they are changes no
count.
"""
FLAGSHIP = {
    "dark_key_to_door": ("env.time_limit=30",),
    "mazerunner_15_k3": ("env.time_limit=60",),
}
"""Experiments of the paper's size, with shorter episodes, which change no count either."""
WAYS = {"`device=cuda`": (), "`hardware=gpu`": ("hardware=gpu",)}
LAST = 2
"""Blocks and iterations that are looked at: the last ones, when all is recorded."""


@dataclass
class Costs:
    """Counts of steps within blocks, of the rest of blocks, and of updates, each with how many they
    are.
    """

    steps: list[tuple[Counts, int]] = field(default_factory=list)
    blocks: list[tuple[Counts, int]] = field(default_factory=list)
    updates: list[tuple[Counts, int]] = field(default_factory=list)

    def last(self, what: str) -> tuple[Counts, int]:
        """The last counts of what there was, once all is recorded, and of how many."""
        counts, numbers = zip(*getattr(self, what)[-LAST:], strict=True)
        return Counts.merged(counts), sum(numbers)


@contextmanager
def measured() -> Iterator[Costs]:
    """Counts what collecting and updates inside cost."""
    collect, up_to, replay = SyncCollector.collect, Prefetcher.up_to, torch.cuda.CUDAGraph.replay
    costs, launched = Costs(), list[Counts]()

    def replay_watched(self):
        launched.append(counts.copy())
        replay(self)

    def collect_watched(self, num_steps):
        before, decided = counts.copy(), []
        launched.clear()
        hook = self.policy.register_forward_pre_hook(lambda *_: decided.append(counts.copy()))
        episodes = collect(self, num_steps)
        hook.remove()
        block, began = counts.since(before), decided or launched
        steps = began[-1].since(began[0])
        costs.steps.append((steps, len(began) - 1))
        costs.blocks.append((block.since(steps), 1))
        return episodes

    def up_to_watched(self, most, *, ends):
        before, number = counts.copy(), 0
        for batch in up_to(self, most, ends=ends):
            number += 1
            yield batch
        if number:
            costs.updates.append((counts.since(before), number))

    with (
        counted() as counts,
        patch.object(
            torch.cuda.CUDAGraph, "replay", replay_watched
        ),  # a graph that is recorded later is asked by it
        patch.object(SyncCollector, "collect", collect_watched),
        patch.object(Prefetcher, "up_to", up_to_watched),
    ):
        yield costs


def rows(
    experiments: dict[str, tuple[str, ...]], overrides: list[str], *, graphs: bool
) -> Iterator[list[str]]:
    """An experiment, its settings, and the counts of a step, of the rest of a block and of an
    update.
    """
    for experiment, own in experiments.items():
        for name, way in WAYS.items():
            with measured() as costs, redirect_stdout(StringIO()):
                yamame.train(
                    f"experiment={experiment}", *way, *SHORT, *own,
                    f"run.name={experiment}-{len(way)}", *overrides,
                )  # fmt: skip
            cells = [
                cell(*costs.last(what), graphs=graphs) for what in ("steps", "blocks", "updates")
            ]
            yield [f"`{experiment}`", name, *cells]


def table(overrides: list[str]) -> Iterator[str]:
    """Its lines, in Markdown: in every cell waits, copies and launches; kernels of graphs, too, of
    experiments that are meant for a GPU.
    """
    experiments = {f"cpu_{env}": () for env in ENVS}
    if "--flagship" in overrides:
        overrides = [text for text in overrides if text != "--flagship"]
        experiments = FLAGSHIP
    yield "| experiment | settings | a step | a block beside its steps | an update |"
    yield "|---|---|---|---|---|"
    for row in rows(experiments, overrides, graphs=experiments is FLAGSHIP):
        yield f"| {' | '.join(row)} |"


def cell(counts: Counts, number: int, *, graphs: bool) -> str:
    """What one of so many costs."""
    kinds = [counts.waits, counts.copies, counts.kernels]
    if graphs:
        kinds.append(counts.replayed)
    return ", ".join(f"{round(kind.total() / number, 1):,g}" for kind in kinds)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for line in table(sys.argv[1:]):
            print(line, flush=True)
