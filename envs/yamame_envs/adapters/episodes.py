"""The episodes that envs are playing: which task seeds come next, and what was done so far."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from yamame_envs.adapters.spaces import Array
from yamame_envs.streams import fold

_AHEAD = 64  # task seeds of an env drawn at once, and steps after which old actions are looked at


class TaskSeeds:
    """The task seeds of every env's episodes: ``fold(streams[i], e)`` for the e-th episode of env
    i.

    Attributes:
        streams: ``[N]`` int64.
        episodes: ``[N]`` int64, the number of each env's next episode.
    """

    def __init__(self, streams: Tensor, episodes: Tensor | None = None) -> None:
        self.streams = streams.cpu()
        self.episodes = (
            np.zeros(len(streams), np.int64) if episodes is None else episodes.cpu().numpy().copy()
        )
        self._ahead: list[list[int]] = [[] for _ in streams]

    def take(self, env_ids: Sequence[int]) -> list[int]:
        """The task seeds of some envs' next episodes, whose turn it is then no more."""
        seeds = []
        for env_id in env_ids:
            if not self._ahead[env_id]:
                numbers = torch.arange(_AHEAD) + int(self.episodes[env_id])
                self._ahead[env_id] = fold(self.streams[env_id], numbers).tolist()[::-1]
            seeds.append(self._ahead[env_id].pop())
            self.episodes[env_id] += 1
        return seeds


class History:
    """The actions of all running episodes.

    Args:
        num_envs: Envs (N).
    """

    def __init__(self, num_envs: int) -> None:
        self._taken: list[Array] = []
        self._start = np.zeros(num_envs, np.int64)
        self._limit = _AHEAD

    def begin(self, env_ids: Sequence[int]) -> None:
        """Some envs begin an episode."""
        self._start[env_ids] = len(self._taken)

    def add(self, actions: Array) -> None:
        """All envs ``[N, ...]`` take their next action."""
        self._taken.append(actions)
        if len(self._taken) >= self._limit:
            first = int(self._start.min())
            del self._taken[:first]
            self._start -= first
            self._limit = 2 * len(self._taken) + _AHEAD

    def of(self, lengths: Array, like: Array) -> Array:
        """The first actions of each env's episode: ``[N, max(lengths), ...]``, padded with zeros.

        Args:
            lengths: ``[N]``, actions of each env.
            like: ``[N, ...]``, a batch of actions.
        """
        actions = np.zeros((len(lengths), int(lengths.max(initial=0)), *like.shape[1:]), like.dtype)
        for env_id, (start, length) in enumerate(
            zip(self._start.tolist(), lengths.tolist(), strict=True)
        ):
            for step in range(length):
                actions[env_id, step] = self._taken[start + step][env_id]
        return actions

    def restore(self, actions: Array, lengths: Array) -> None:
        """Goes on from what `of` returned for these lengths: the episodes of all envs end at the
        same step.
        """
        longest = actions.shape[1]
        self._start = longest - lengths.astype(np.int64)
        # Env n's episode begins at its start; what stands before it is never read.
        source = np.maximum(np.arange(longest) - self._start[:, None], 0)
        self._taken = [actions[np.arange(len(lengths)), source[:, step]] for step in range(longest)]
