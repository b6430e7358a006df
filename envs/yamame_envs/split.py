"""Held-out tasks: a quarter of all tasks, chosen by a hash of their content, which training never
draws.

Different seeds may draw the same task, and where few tasks exist they often do. So the task of a
seed is the first one on the requested side of the split among those of `candidates`; the two sides
together are all tasks. Within a side tasks are as frequent as they were, and a task is still a pure
function of its seed.

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
"""Which tasks are drawn: all, those that are not held out, those that are."""
HELD_OUT = 0.25
"""The share that is held out: of few tasks, as lakes of 4x4 cells, a smaller one would be of
another difficulty.
"""
FEWEST = 8
"""The fewest different tasks that can be split."""
_AGAIN = 0x7461736B
_MOST = 255  # candidates: that none of them is held out has a probability of 1e-32
_BELOW = 2**32


class Identity(NamedTuple):
    """What makes two tasks the same one.

    Attributes:
        entries: Names of the entries of a task that are hashed; a task may lack some of them.
        novelty: Description of what is new on the other side of the split, such as ``"new mazes"``.
            It must hold for exactly these entries: two tasks that it calls the same must agree in
            all of them.
    """

    entries: tuple[str, ...]
    novelty: str


def candidates(seeds: Tensor, start: int, stop: int) -> Tensor:
    """The seeds ``[R, stop - start]`` that tasks are drawn from in turn: the seed itself, then
    others made of it.
    """
    numbers = torch.arange(start, stop, device=seeds.device)
    others = fold(seeds.unsqueeze(-1), _AGAIN, numbers)
    return torch.where(numbers == 0, seeds.unsqueeze(-1), others)


def hash_of(task: Tensors) -> Tensor:
    """Hashes the values of all entries ``[R, ...]`` of tasks, at least one, on any device: ``[R]``
    int64.
    """
    return torch.stack(
        [entry_hash(task[name], number) for number, name in enumerate(sorted(task))]
    ).sum(0)


def entry_hash(values: Tensor, number: int) -> Tensor:
    """The term ``[R]`` that an entry ``[R, ...]`` adds to `hash_of`; ``number`` is its place among
    the sorted names.
    """
    values = values.unsqueeze(-1).flatten(1)
    if values.is_floating_point():
        values = (values.to(torch.float64) + 0.0).view(
            torch.int64
        )  # -0.0 equals 0.0, its bits do not
    place = fold(torch.arange(values.shape[1], device=values.device), number)
    return fold(place, values.to(torch.int64)).sum(-1)


def is_held_out(hashed: Tensor) -> Tensor:
    """Which tasks of these hashes ``[R]`` are held out, ``[R]`` bool."""
    return (bits(hashed) & (_BELOW - 1)) < int(HELD_OUT * _BELOW)


@dataclass(frozen=True)
class HeldOutInstructions:
    """Tells which instructions training must not use, for `yamame.replay.Relabel`.

    Args:
        number: Place of the instruction among the sorted entries of the identity (`entry_hash`).
        split: The side that training draws from; tasks of the other side are held out.
    """

    number: int
    split: Split

    def __call__(self, instruction: Tensor, trajectories: TensorDictBase) -> Tensor:
        """Looks instructions ``[B, K, d]`` up for trajectories ``[B, L]`` with their
        ``world_hash``: ``[B]`` bool.
        """
        world = trajectories.get("world_hash", None)
        held = sorted(map(str, trajectories.keys()))
        condition = (
            "hold 'world_hash', as trajectories of environments that hold instructions out do"
        )
        require("HeldOutInstructions", "trajectories", held, world is not None, condition)
        hashed = world[:, 0].flatten() + entry_hash(instruction, self.number)
        return is_held_out(hashed) != (self.split == "test")


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
            raise ValueError(
                f"{label}: split must be all where there are so few tasks, got {split!r}"
            )
        good = (is_held_out(task_hash(drawn)) == (split == "test")).view(len(missing), stop - start)
        is_drawn, first = good.any(1), good.to(torch.uint8).argmax(1)
        taken = torch.arange(len(missing), device=seeds.device) * (stop - start) + first
        task = {
            k: v.index_copy(0, missing[is_drawn], drawn[k][taken[is_drawn]])
            for k, v in task.items()
        }
        missing, start, stop = missing[~is_drawn], stop, 2 * stop + 1
        if len(missing):
            drawn = draw(candidates(seeds[missing], start, stop).flatten())
    return task
