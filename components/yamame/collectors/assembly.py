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
        self._open: TensorDictBase | None = None  # [N, C], right aligned: the last column is the latest step
        self._open_length: Tensor | None = None  # [N]

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
        block = steps.transpose(0, 1)
        if self._open is None or self._open_length is None:
            length = torch.zeros(num_rows, dtype=torch.int64, device=done.device)
        else:
            length = self._open_length
            block = torch.cat([self._open, block], 1)
        carried = block.shape[1] - num_steps
        begin = carried - length
        end_step, end_row = done.nonzero(as_tuple=True)
        start, following = _segments(begin, end_step + carried, end_row)
        finished = None
        if terminal is not None and end_row.numel():
            finished = _gather(block, end_row, start, end_step + carried, terminal)
        self._open_length = block.shape[1] - following
        keep = int(self._open_length.max())
        self._open = block[:, block.shape[1] - keep :].clone()
        return finished

    @property
    def num_open(self) -> int:
        """Steps of unfinished episodes."""
        return 0 if self._open_length is None else int(self._open_length.sum())

    def state_dict(self) -> dict[str, Any]:
        """The unfinished episodes."""
        return {"open": self._open, "open_length": self._open_length}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict`."""
        self._open, self._open_length = state["open"], state["open_length"]


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
