"""Tasks that training never meets: a share of all tasks, told by a hash of what was drawn, is held out.

Other seeds are no other tasks: where few tasks exist, training meets those of evaluation. So the task of a seed is the
first of the right side among those of `candidates`, and both sides together are all tasks. Within a side tasks are as
frequent as they were, and a task is still a pure function of its seed.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from yamame_envs.streams import bits, fold
from yamame_envs.tasks import Draw, Tensors

Split = Literal["all", "train", "test"]
"""Which tasks are drawn: all, those that are not held out, those that are."""
HELD_OUT = 0.25
"""The share that is held out: of few tasks, as lakes of 4x4 cells, a smaller one would be of another difficulty."""
_AGAIN = 0x7461736B
_MOST = 255  # candidates: that none of them is held out has a probability of 1e-32
_BELOW = 2**32


def candidates(seeds: Tensor, start: int, stop: int) -> Tensor:
    """The seeds ``[R, stop - start]`` that tasks are drawn from in turn: the seed itself, then others made of it."""
    numbers = torch.arange(start, stop, device=seeds.device)
    others = fold(seeds.unsqueeze(-1), _AGAIN, numbers)
    return torch.where(numbers == 0, seeds.unsqueeze(-1), others)


def hash_of(task: Tensors) -> Tensor:
    """Hashes the values of all entries ``[R, ...]`` of tasks, at least one, on any device: ``[R]`` int64."""
    parts = []
    for number, name in enumerate(sorted(task)):
        values = task[name].reshape(len(task[name]), -1)
        if values.is_floating_point():
            values = values.to(torch.float64).view(torch.int64)
        place = fold(torch.arange(values.shape[1], device=values.device), number)
        parts.append(fold(place, values.to(torch.int64)).sum(-1))
    return torch.stack(parts).sum(0)


def is_held_out(hashed: Tensor) -> Tensor:
    """Which tasks of these hashes ``[R]`` are held out, ``[R]`` bool."""
    return (bits(hashed) & (_BELOW - 1)) < int(HELD_OUT * _BELOW)


def draw_side(
    draw: Draw, task_hash: Callable[[Tensors], Tensor], seeds: Tensor, split: Split, label: str
) -> Tensors:
    """The tasks of seeds ``[R]`` on one side.

    Args:
        draw: Draws tasks from seeds, on either side.
        task_hash: The hashes ``[R]`` of tasks.
        seeds: ``[R]`` int64.
        split: The side.
        label: Whose tasks they are, for messages.

    Raises:
        ValueError: A seed has no task there, for there are too few.
    """
    task = draw(seeds)
    if split == "all":
        return task
    missing, drawn, start, stop = torch.arange(len(seeds), device=seeds.device), task, 0, 1
    while len(missing):
        if start >= _MOST:
            raise ValueError(f"{label}: split must be all where there are so few tasks, got {split!r}")
        good = (is_held_out(task_hash(drawn)) == (split == "test")).view(len(missing), stop - start)
        is_drawn, first = good.any(1), good.to(torch.uint8).argmax(1)
        taken = torch.arange(len(missing), device=seeds.device) * (stop - start) + first
        task = {k: v.index_copy(0, missing[is_drawn], drawn[k][taken[is_drawn]]) for k, v in task.items()}
        missing, start, stop = missing[~is_drawn], stop, 2 * stop + 1
        if len(missing):
            drawn = draw(candidates(seeds[missing], start, stop).flatten())
    return task
