"""Puts steps of parallel environments together into whole trajectories.

Steps come in blocks ``[S, N]`` (time, environment row) and episodes end at different times in every row. An episode
leaves as one row of a right-padded batch ``[E, L]`` in T+1 packing: one row per timestep, the terminal observation
last, ``mask`` True on real timesteps. What is not finished stays here until a later block ends it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor


class TrajectoryAssembler:
    """Collects the unfinished episodes of N environment rows.

    `add` takes one block of consecutive steps and returns the episodes that ended in it, ordered by the step and then
    the row of their end. No step is lost or given out twice.
    """

    def __init__(self) -> None:
        self._open: TensorDictBase | None = None  # [N, C], of row n its first _length[n] columns
        self._length: Tensor | None = None  # [N]

    def add(
        self, steps: TensorDictBase, done: Tensor, terminal: TensorDictBase | None
    ) -> TensorDictBase | None:
        """Adds a block and returns the finished trajectories.

        Args:
            steps: ``[S, N]``, what was seen at each step and the transition that left it.
            done: ``[S, N]`` bool, the episode ended with this transition.
            terminal: ``[E]``, the last observation of every ended episode, ordered as ``done.nonzero()``. May lack
                keys of ``steps``: those are zero in the terminal row. None when no episode ended.

        Returns:
            ``[E, L]`` with ``mask`` ``[E, L, 1]``, or None when no episode ended.
        """
        num_steps, num_rows = done.shape
        length = self._length
        if length is None:
            length = torch.zeros(num_rows, dtype=torch.int64, device=done.device)
        self._open = _with_room(self._open, steps, int(length.max()) + num_steps)
        rows = torch.arange(num_rows, device=done.device)
        columns = length + torch.arange(num_steps, device=done.device).unsqueeze(-1)
        for key in steps.keys(True, True):
            self._open.get(key)[rows, columns] = steps.get(key)
        end_step, end_row = done.nonzero(as_tuple=True)
        end = length[end_row] + end_step
        start, following = _segments(torch.zeros_like(length), end, end_row)
        finished = None
        if terminal is not None and end_row.numel():
            finished = _gather(self._open, end_row, start, end, terminal)
        self._length = length + num_steps - following
        _move_to_front(self._open, self._length, following)
        return finished

    @property
    def num_open(self) -> int:
        """Steps of unfinished episodes."""
        return 0 if self._length is None else int(self._length.sum())

    def state_dict(self) -> dict[str, Any]:
        """The unfinished episodes."""
        if self._open is None or self._length is None:
            return {"steps": None, "length": None}
        return {"steps": self._open[:, : int(self._length.max())].clone(), "length": self._length}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict`."""
        steps = state["steps"]
        self._open, self._length = None if steps is None else steps.clone(), state["length"]


def _with_room(held: TensorDictBase | None, steps: TensorDictBase, columns: int) -> TensorDictBase:
    """``held`` ``[N, C]`` with at least so many columns: itself, or a larger copy."""
    if held is not None and held.shape[1] >= columns:
        return held
    width = columns if held is None else max(columns, 2 * held.shape[1])
    room = TensorDict({}, [steps.shape[1], width], device=steps.device)
    for key in steps.keys(True, True):
        value = steps.get(key)
        room.set(key, value.new_zeros(steps.shape[1], width, *value.shape[2:]))
    if held is not None:
        room[:, : held.shape[1]] = held
    return room


def _move_to_front(held: TensorDictBase, length: Tensor, first: Tensor) -> None:
    """Lets the open episodes that begin at columns ``first`` ``[N]`` begin at column 0."""
    rows = first.nonzero().squeeze(-1)
    if not len(rows):
        return
    column = torch.arange(int(length[rows].max()), device=rows.device)
    source = (first[rows].unsqueeze(-1) + column).clamp(max=held.shape[1] - 1)
    for value in held.values(True, True):
        value[rows, : len(column)] = value[rows.unsqueeze(-1), source]


def _segments(begin: Tensor, end: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """First column of the episode of every end, and the first column after the last end of every row.

    Ends of one row come in increasing order; an episode begins after the row's former end, or at ``begin[row]``.
    """
    following = begin.scatter_reduce(0, row, end + 1, "amax")
    order = row.argsort(stable=True)
    sorted_row, sorted_end = row[order], end[order]
    first = torch.ones_like(order, dtype=torch.bool)
    first[1:] = sorted_row[1:] != sorted_row[:-1]
    start = torch.empty_like(end)
    start[order] = torch.where(first, begin[sorted_row], sorted_end.roll(1) + 1)
    return start, following


def _gather(
    block: TensorDictBase, row: Tensor, start: Tensor, end: Tensor, terminal: TensorDictBase
) -> TensorDictBase:
    """Cuts episodes ``block[row, start : end + 1]`` and appends their terminal row."""
    num_transitions = end - start + 1
    column = torch.arange(int(num_transitions.max()) + 1, device=row.device)
    real = column < num_transitions.unsqueeze(-1)
    source = (start.unsqueeze(-1) + column).clamp(max=block.shape[1] - 1)
    last = column == num_transitions.unsqueeze(-1)
    out = {}
    for key in block.keys(True, True):
        value = block.get(key)[row.unsqueeze(-1), source]
        shape = real.shape + (1,) * (value.ndim - 2)
        value = torch.where(real.view(shape), value, torch.zeros((), dtype=value.dtype, device=value.device))
        final = terminal.get(key, None)
        if final is not None:
            value[last] = final
        out[key] = value
    batch = TensorDict({}, batch_size=real.shape, device=block.device)
    for key, value in out.items():
        batch.set(key, value)
    return batch.set("mask", (real | last).unsqueeze(-1))
