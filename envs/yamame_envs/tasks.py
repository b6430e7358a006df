"""Tasks of coming episodes, drawn in advance in large batches.

Drawing one task costs nearly as much as drawing hundreds at once. A task is a pure function of its
seed, and the seed of every coming episode is known, so tasks are drawn for all envs at the same
time and used as episodes begin. How far in advance they are drawn changes no task.

They are drawn on the CPU, where a loop whose length depends on the data does not wait for a device,
and copied to the device of the envs.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from yamame_envs.streams import fold

Tensors = dict[str, Tensor]
Draw = Callable[[Tensor], Tensors]

# Episodes of an env that are drawn in advance.
_DEPTH = 4
# Smallest number of tasks drawn at once, for few envs.
_BATCH = 64


class TaskQueue:
    """Queue of the tasks of every env's episodes.

    Args:
        num_envs: Number of envs N.

    Attributes:
        choose: Function from the seeds ``[R]`` of coming episodes to those of the tasks that they
            play instead; None: they play their own.
        tasks: ``[N * depth, ...]``, a ring of slots per env: ``task_seed``, the drawn entries, and
            ``number``, the number of the episode.
    """

    def __init__(self, num_envs: int) -> None:
        self._depth = max(_DEPTH, _BATCH // num_envs)
        # [N] on the CPU: the tasks of all episodes below this number are drawn.
        self._until: Tensor | None = None
        self.choose: Callable[[Tensor], Tensor] | None = None
        self.tasks: Tensors = {}

    def clear(self) -> None:
        """Remove all tasks, because the streams, the device or the episodes have changed."""
        self._until = None
        self.tasks = {}

    def lacks(self, begins: Tensor, episodes: Tensor) -> bool:
        """Return whether an episode begins whose task is not drawn.

        Args:
            begins: ``[N]`` bool, envs that begin an episode. On the CPU.
            episodes: ``[N]`` int64, numbers of these episodes. On the CPU.
        """
        if self._until is None:
            return True
        is_missing = (episodes >= self._until) & begins
        return bool(is_missing.any())

    def take(self, episodes: Tensor) -> Tensors:
        """Return the tasks of the episodes with these numbers ``[N]``: new tensors ``[N, ...]``.

        An episode whose task is not drawn gets a task with another ``number``.
        """
        start = torch.arange(len(episodes), device=episodes.device) * self._depth
        slot = start + episodes % self._depth
        return {name: value.index_select(0, slot) for name, value in self.tasks.items()}

    def reserve(
        self,
        num: int,
        streams: Tensor,
        episodes: Tensor,
        draw: Draw,
        device: torch.device | str = "cpu",
    ) -> int:
        """Draw tasks until there are enough for ``num`` episodes of every env.

        Args:
            num: Number of episodes, at least 1.
            streams: ``[N]`` int64, key of each env; task e has the seed ``fold(key, e)``. On the
                CPU.
            episodes: ``[N]`` int64, number of the next episode of each env, which never decreases.
                On the CPU.
            draw: Draws tasks from seeds ``[R]`` on the CPU.
            device: Device of the tasks.

        Returns:
            Number of episodes for which every env has tasks.
        """
        if num > self._depth:
            self.clear()
            self._depth = num
        available = 0
        if self._until is not None:
            available = int((self._until - episodes).min())
        if available < num:
            self._refill(streams, episodes, draw, torch.device(device))
            available = self._depth
        return available

    def _refill(self, streams: Tensor, episodes: Tensor, draw: Draw, device: torch.device) -> None:
        """Draw all tasks that are missing in any env."""
        until = torch.zeros_like(episodes) if self._until is None else self._until
        numbers = episodes.unsqueeze(-1) + torch.arange(self._depth)
        env_id, ahead = (numbers >= until.unsqueeze(-1)).nonzero(as_tuple=True)
        number = numbers[env_id, ahead]
        slot = sent(env_id * self._depth + number % self._depth, device)
        seeds = fold(streams[env_id], number)
        if self.choose is not None:
            seeds = self.choose(seeds)
        drawn = {"number": number, "task_seed": seeds, **draw(seeds)}
        for name, value in drawn.items():
            if name not in self.tasks:
                shape = (numbers.numel(), *value.shape[1:])
                self.tasks[name] = torch.zeros(shape, dtype=value.dtype, device=device)
            self.tasks[name].index_copy_(0, slot, sent(value, device))
        self._until = episodes + self._depth


def sent(value: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device without waiting for the copy."""
    # Only copies from pinned memory are asynchronous.
    if device.type == "cuda" and value.is_cpu:
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


def one_hots(index: Tensor, size: int) -> Tensor:
    """Encode indices ``[N]`` or ``[N, K]`` as one-hots ``[N, K * size]`` float32."""
    # torch's one_hot cannot be captured: it reads the indices on the host.
    places = torch.arange(size, device=index.device)
    return (index.unsqueeze(-1) == places).to(torch.float32).reshape(len(index), -1)
