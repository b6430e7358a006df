"""Task seeds of coming episodes, and the actions taken in the running ones."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from yamame_envs.adapters.spaces import Array
from yamame_envs.streams import fold

_SEEDS_AHEAD = 64
_MIN_STEPS = 64


class TaskSeeds:
    """Task seeds of every env: ``fold(streams[i], e)`` for episode e of env i.

    Attributes:
        streams: ``[N]`` int64.
        episodes: ``[N]`` int64, number of the next episode of each env.
    """

    def __init__(self, streams: Tensor, episodes: Tensor | None = None) -> None:
        self.streams = streams.cpu()
        if episodes is None:
            self.episodes = np.zeros(len(streams), np.int64)
        else:
            self.episodes = episodes.cpu().numpy().copy()
        self._ahead: list[list[int]] = [[] for _ in streams]

    def take(self, env_ids: Sequence[int]) -> list[int]:
        """Return the task seeds of the next episodes of some envs, and advance their counters."""
        seeds = []
        for env_id in env_ids:
            ahead = self._ahead[env_id]
            if not ahead:
                # Many seeds at once: a call of a torch function costs more than its numbers here.
                numbers = torch.arange(_SEEDS_AHEAD) + int(self.episodes[env_id])
                ahead += fold(self.streams[env_id], numbers).tolist()[::-1]
            seeds.append(ahead.pop())
            self.episodes[env_id] += 1
        return seeds


class History:
    """Actions of all running episodes.

    Args:
        num_envs: Number of envs N.
    """

    def __init__(self, num_envs: int) -> None:
        self._taken: list[Array] = []
        self._start = np.zeros(num_envs, np.int64)
        self._limit = _MIN_STEPS

    def begin(self, env_ids: Sequence[int]) -> None:
        """Start an episode in some envs."""
        self._start[env_ids] = len(self._taken)

    def add(self, actions: Array) -> None:
        """Append the next action ``[N, ...]`` of every env."""
        self._taken.append(actions)
        if len(self._taken) >= self._limit:
            # Drop what no running episode needs. The limit doubles with what is left, so the cost
            # per step stays constant.
            first = int(self._start.min())
            del self._taken[:first]
            self._start -= first
            self._limit = 2 * len(self._taken) + _MIN_STEPS

    def of(self, lengths: Array, like: Array) -> Array:
        """Return the first actions of each env's episode, padded with zeros.

        Args:
            lengths: ``[N]``, number of actions of each env.
            like: ``[N, ...]``, a batch of actions.

        Returns:
            ``[N, max(lengths), ...]``.
        """
        longest = int(lengths.max(initial=0))
        actions = np.zeros((len(lengths), longest, *like.shape[1:]), like.dtype)
        for env_id, length in enumerate(lengths.tolist()):
            start = int(self._start[env_id])
            for step in range(length):
                actions[env_id, step] = self._taken[start + step][env_id]
        return actions

    def restore(self, actions: Array, lengths: Array) -> None:
        """Restore what `of` returned for these lengths.

        The restored episodes end at the same step, so they start at different ones.
        """
        longest = actions.shape[1]
        self._start = longest - lengths.astype(np.int64)
        envs = np.arange(len(lengths))
        self._taken = []
        for step in range(longest):
            # Actions before the start of an env's episode are never read.
            source = np.maximum(step - self._start, 0)
            self._taken.append(actions[envs, source])
