"""The tasks of coming episodes, drawn ahead in large batches.

Drawing one task costs nearly as much as drawing hundreds at once. A task is a pure function of its seed, and
the seed of an env's e-th episode is known in advance, so tasks are drawn for all envs at the same time and
handed out env by env as episodes end. How far ahead they are drawn changes no task.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from yamame_envs.streams import fold

Tensors = dict[str, Tensor]
Draw = Callable[[Tensor], Tensors]

_DEPTH = 4  # episodes of an env drawn ahead
_BATCH = 64  # tasks drawn at once at least, when envs are few


class TaskQueue:
    """Hands out the tasks of every env's episodes.

    Args:
        num_envs: Envs of the environment (N).
    """

    def __init__(self, num_envs: int) -> None:
        self._depth = max(_DEPTH, _BATCH // num_envs)
        self._until: Tensor | None = None  # [N], the tasks of each env's episodes before this one are drawn
        self._tasks: Tensors = {}  # [N * depth, ...], a ring of slots per env

    def clear(self) -> None:
        """Forgets all tasks: the streams, the device or the episode counters have changed."""
        self._until, self._tasks = None, {}

    def take(self, env_ids: Tensor, streams: Tensor, episodes: Tensor, draw: Draw) -> Tensors:
        """Returns the tasks of some envs' next episodes.

        Args:
            env_ids: ``[R]`` int64, envs that begin an episode.
            streams: ``[N]`` int64, the key of each env; its e-th task has the seed ``fold(key, e)``.
            episodes: ``[N]`` int64, the number of each env's next episode; it never decreases.
            draw: Draws tasks from seeds ``[R]``.

        Returns:
            New tensors ``[R, ...]``: ``task_seed`` and what ``draw`` returned.
        """
        number = episodes.index_select(0, env_ids)
        if self._until is None or bool((number >= self._until.index_select(0, env_ids)).any()):
            self._refill(streams, episodes, draw)
        slot = env_ids * self._depth + number % self._depth
        return {name: value.index_select(0, slot) for name, value in self._tasks.items()}

    def _refill(self, streams: Tensor, episodes: Tensor, draw: Draw) -> None:
        """Draws all tasks that are missing in any env."""
        until = torch.zeros_like(episodes) if self._until is None else self._until
        numbers = episodes.unsqueeze(-1) + torch.arange(self._depth, device=episodes.device)
        env_id, ahead = (numbers >= until.unsqueeze(-1)).nonzero(as_tuple=True)
        number = numbers[env_id, ahead]
        seeds = fold(streams[env_id], number)
        for name, value in {"task_seed": seeds, **draw(seeds)}.items():
            if name not in self._tasks:
                self._tasks[name] = value.new_zeros(numbers.numel(), *value.shape[1:])
            self._tasks[name].index_copy_(0, env_id * self._depth + number % self._depth, value)
        self._until = episodes + self._depth
