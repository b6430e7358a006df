"""Held-out tasks: a quarter of all tasks, chosen by a hash, which training never draws.

Different seeds may draw the same task, and where few tasks exist they often do. So the task of a
seed is the first one on the requested side of the split among those of `candidates`; the two sides
together are all tasks. Within a side the relative frequencies of tasks stay the same, and a task is
still a pure function of its seed.

The hash covers the entries of an `Identity`. Hindsight relabelling changes the instruction of a
trajectory, so an identity either leaves the instruction out, or relabelling must reject held-out
instructions (`HeldOutInstructions`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor
from yamame.checks import require

from yamame_envs.streams import bits, fold
from yamame_envs.tasks import Draw, Tensors

Split = Literal["all", "train", "test"]
"""Tasks that are drawn: all of them, those that are not held out, or the held-out ones."""
# Of few tasks, such as lakes of 4x4 cells, a smaller share would differ in difficulty.
HELD_OUT = 0.25
"""Share of tasks that is held out."""
FEWEST = 8
"""Smallest number of different tasks that can be split. One side may have fewer, which evaluations
report (`yamame.evaluation.evaluate`)."""
# Separates the seeds of candidates from all other keys that are folded out of a seed.
_CANDIDATE = 0x7461736B
# The probability that none of so many candidates is held out is 1e-32.
_MAX_CANDIDATES = 255
_HASH_RANGE = 2**32


class Identity(NamedTuple):
    """Entries by which two tasks are the same one.

    Attributes:
        entries: Names of the entries of a task that are hashed; a task may lack some of them.
        novelty: Description of what is new on the other side of the split, such as ``"new mazes"``.
            It must fit these entries: two tasks that it calls the same must agree in all of them.
    """

    entries: tuple[str, ...]
    novelty: str


def candidates(seeds: Tensor, start: int, stop: int) -> Tensor:
    """Return the seeds ``[R, stop - start]`` from which the task of a seed is drawn in turn.

    Candidate 0 is the seed itself; the others are derived from it.
    """
    numbers = torch.arange(start, stop, device=seeds.device)
    others = fold(seeds.unsqueeze(-1), _CANDIDATE, numbers)
    return torch.where(numbers == 0, seeds.unsqueeze(-1), others)


def hash_of(task: Tensors) -> Tensor:
    """Hash the values of all entries ``[R, ...]`` of tasks: ``[R]`` int64.

    There must be at least one entry. The hash is the same on every device.
    """
    hashes = [entry_hash(task[name], number) for number, name in enumerate(sorted(task))]
    return torch.stack(hashes).sum(0)


def entry_hash(values: Tensor, number: int) -> Tensor:
    """Return the term ``[R]`` that an entry ``[R, ...]`` adds to `hash_of`.

    Args:
        values: Values of the entry.
        number: Index of the entry among the sorted names.
    """
    values = values.unsqueeze(-1).flatten(1)
    if values.is_floating_point():
        # Adding 0.0 turns -0.0 into 0.0, which is equal but has other bits.
        values = (values.to(torch.float64) + 0.0).view(torch.int64)
    place = fold(torch.arange(values.shape[1], device=values.device), number)
    return fold(place, values.to(torch.int64)).sum(-1)


def is_held_out(hashed: Tensor) -> Tensor:
    """Return a mask ``[R]`` of the hashes ``[R]`` whose tasks are held out."""
    return (bits(hashed) & (_HASH_RANGE - 1)) < int(HELD_OUT * _HASH_RANGE)


@dataclass(frozen=True)
class HeldOutInstructions:
    """Function that finds the instructions that `yamame.replay.Relabel` must not use.

    Args:
        number: Index of the instruction among the sorted entries of the identity (`entry_hash`).
        split: The side that training draws from; tasks of the other side are held out.
    """

    number: int
    split: Split

    def __call__(self, instruction: Tensor, trajectories: TensorDictBase) -> Tensor:
        """Return a mask ``[B]`` of held-out instructions.

        Args:
            instruction: ``[B, K, d]``.
            trajectories: ``[B, L]``, with ``world_hash``.
        """
        world = trajectories.get("world_hash", None)
        keys = sorted(map(str, trajectories.keys()))
        condition = "hold 'world_hash', as environments that hold out instructions write it"
        require("HeldOutInstructions", "trajectories", keys, world is not None, condition)
        hashed = world[:, 0].flatten() + entry_hash(instruction, self.number)
        return is_held_out(hashed) != (self.split == "test")


def draw_side(
    draw: Draw, task_hash: Callable[[Tensors], Tensor], seeds: Tensor, split: Split, label: str
) -> Tensors:
    """Draw the tasks of seeds ``[R]`` on one side of the split.

    Args:
        draw: Draws tasks from seeds, on either side.
        task_hash: Maps tasks to their hashes ``[R]``.
        seeds: ``[R]`` int64.
        split: Side of the split.
        label: Name of the environment in messages.

    Raises:
        ArgumentError: A seed has no task there, because there are too few.
    """
    drawn = draw(seeds)
    if split == "all":
        return drawn

    task = dict(drawn)
    # Rows without a task, for which candidates start..stop-1 are drawn.
    missing = torch.arange(len(seeds), device=seeds.device)
    start = 0
    stop = 1
    while len(missing):
        condition = "be all where there are so few tasks"
        require(label, "split", split, start < _MAX_CANDIDATES, condition)
        width = stop - start
        is_right = is_held_out(task_hash(drawn)) == (split == "test")
        is_right = is_right.view(len(missing), width)
        is_found = is_right.any(1)
        first = is_right.to(torch.uint8).argmax(1)
        source = torch.arange(len(missing), device=seeds.device) * width + first
        for name, value in task.items():
            found = drawn[name][source[is_found]]
            task[name] = value.index_copy(0, missing[is_found], found)
        missing = missing[~is_found]
        # Most seeds are done after the first candidates, so later turns draw more at once.
        start = stop
        stop = 2 * stop + 1
        if len(missing):
            drawn = draw(candidates(seeds[missing], start, stop).flatten())
    return task
