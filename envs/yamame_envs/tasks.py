"""The tasks of coming episodes, drawn ahead in large batches.

Drawing one task costs nearly as much as drawing hundreds at once. A task is a pure function of its
seed, and the seed of an env's e-th episode is known in advance, so tasks are drawn for all envs at
the same time and handed out as episodes begin. How far ahead they are drawn changes no task.

They are drawn on the CPU, where a loop that ends by the data waits for nobody, and copied to where
the envs are.
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

    Attributes:
        tasks: ``[N * depth, ...]``, a ring of slots per env: ``task_seed``, what was drawn, and
            ``number``, which episode of its env it is.
    """

    def __init__(self, num_envs: int) -> None:
        self._depth = max(_DEPTH, _BATCH // num_envs)
        self._until: Tensor | None = (
            None  # [N] on the CPU, the tasks of each env's episodes before it are drawn
        )
        self.tasks: Tensors = {}

    def clear(self) -> None:
        """Forgets all tasks: the streams, the device or the episode counters have changed."""
        self._until, self.tasks = None, {}

    def lacks(self, begins: Tensor, episodes: Tensor) -> bool:
        """Whether an env of a mask ``[N]`` begins an episode, of the numbers ``[N]``, of which
        there is no task.

        Both are on the CPU.
        """
        return self._until is None or bool(((episodes >= self._until) & begins).any())

    def take(self, episodes: Tensor) -> Tensors:
        """Returns the tasks of the episodes of these numbers ``[N]``: new tensors ``[N, ...]``.

        An episode that is not drawn gets a task of another ``number``.
        """
        slot = (
            torch.arange(len(episodes), device=episodes.device) * self._depth
            + episodes % self._depth
        )
        return {name: value.index_select(0, slot) for name, value in self.tasks.items()}

    def reserve(
        self,
        num: int,
        streams: Tensor,
        episodes: Tensor,
        draw: Draw,
        device: torch.device | str = "cpu",
    ) -> int:
        """Sees to it that so many episodes of every env are drawn; returns of how many there are
        tasks.

        Args:
            num: At least 1.
            streams: ``[N]`` int64, the key of each env; its e-th task has the seed
                ``fold(key, e)``. On the CPU.
            episodes: ``[N]`` int64, the number of each env's next episode; it never decreases. On
                the CPU.
            draw: Draws tasks from seeds ``[R]`` on the CPU.
            device: Where tasks are kept.
        """
        if num > self._depth:
            self.clear()
            self._depth = num
        if self._until is None or int((self._until - episodes).min()) < num:
            self._refill(streams, episodes, draw, torch.device(device))
            return self._depth
        return int((self._until - episodes).min())

    def _refill(self, streams: Tensor, episodes: Tensor, draw: Draw, device: torch.device) -> None:
        """Draws all tasks that are missing in any env."""
        until = torch.zeros_like(episodes) if self._until is None else self._until
        numbers = episodes.unsqueeze(-1) + torch.arange(self._depth)
        env_id, ahead = (numbers >= until.unsqueeze(-1)).nonzero(as_tuple=True)
        number = numbers[env_id, ahead]
        slot = sent(env_id * self._depth + number % self._depth, device)
        seeds = fold(streams[env_id], number)
        for name, value in {"number": number, "task_seed": seeds, **draw(seeds)}.items():
            if name not in self.tasks:
                self.tasks[name] = torch.zeros(
                    numbers.numel(), *value.shape[1:], dtype=value.dtype, device=device
                )
            self.tasks[name].index_copy_(0, slot, sent(value, device))
        self._until = episodes + self._depth


def sent(value: Tensor, device: torch.device) -> Tensor:
    """A tensor on another device, of which the host does not wait until it is there."""
    if device.type == "cuda" and value.is_cpu:
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


def one_hots(index: Tensor, size: int) -> Tensor:
    """Indices ``[N]`` or ``[N, K]`` as one-hots ``[N, K * size]`` float32; can be captured, unlike
    torch's.
    """
    places = torch.arange(size, device=index.device)
    return (index.unsqueeze(-1) == places).to(torch.float32).reshape(len(index), -1)
