"""The tasks of coming episodes, drawn ahead in large batches.

Drawing one task costs nearly as much as drawing hundreds at once. A task is a pure function of its seed, and
the seed of a row's e-th episode is known in advance, so tasks are drawn for all rows at the same time and
handed out row by row as episodes end. How far ahead they are drawn changes no task.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from yamame_envs.random import fold

Tensors = dict[str, Tensor]
Draw = Callable[[Tensor], Tensors]

_DEPTH = 4  # episodes of a row drawn ahead
_BATCH = 64  # tasks drawn at once at least, when rows are few


class TaskQueue:
    """Hands out the tasks of every row's episodes.

    Args:
        num_rows: Rows of the environment (N).
    """

    def __init__(self, num_rows: int) -> None:
        self._depth = max(_DEPTH, _BATCH // num_rows)
        self._until: Tensor | None = None  # [N], the tasks of each row's episodes before this one are drawn
        self._tasks: Tensors = {}  # [N * depth, ...], a ring of slots per row

    def clear(self) -> None:
        """Forgets all tasks: the streams, the device or the episode counters have changed."""
        self._until, self._tasks = None, {}

    def take(self, rows: Tensor, streams: Tensor, episodes: Tensor, draw: Draw) -> Tensors:
        """Returns the tasks of some rows' next episodes.

        Args:
            rows: ``[R]`` int64, rows that begin an episode.
            streams: ``[N]`` int64, the key of each row; its e-th task has the seed ``fold(key, e)``.
            episodes: ``[N]`` int64, the number of each row's next episode; it never decreases.
            draw: Draws tasks from seeds ``[R]``.

        Returns:
            New tensors ``[R, ...]``: ``task_seed`` and what ``draw`` returned.
        """
        number = episodes.index_select(0, rows)
        if self._until is None or bool((number >= self._until.index_select(0, rows)).any()):
            self._refill(streams, episodes, draw)
        slot = rows * self._depth + number % self._depth
        return {name: value.index_select(0, slot) for name, value in self._tasks.items()}

    def _refill(self, streams: Tensor, episodes: Tensor, draw: Draw) -> None:
        """Draws all tasks that are missing in any row."""
        until = torch.zeros_like(episodes) if self._until is None else self._until
        numbers = episodes.unsqueeze(-1) + torch.arange(self._depth, device=episodes.device)
        row, ahead = (numbers >= until.unsqueeze(-1)).nonzero(as_tuple=True)
        number = numbers[row, ahead]
        seeds = fold(streams[row], number)
        for name, value in {"task_seed": seeds, **draw(seeds)}.items():
            if name not in self._tasks:
                self._tasks[name] = value.new_zeros(numbers.numel(), *value.shape[1:])
            self._tasks[name].index_copy_(0, row * self._depth + number % self._depth, value)
        self._until = episodes + self._depth
