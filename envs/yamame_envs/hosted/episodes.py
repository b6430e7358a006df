"""The episodes that rows are playing: which task seeds come next, and what was done so far."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from yamame_envs.hosted.spaces import Array
from yamame_envs.random import fold

_AHEAD = 64  # task seeds of a row drawn at once, and steps after which old actions are looked at


class TaskSeeds:
    """The task seeds of every row's episodes: ``fold(streams[i], e)`` for the e-th episode of row i.

    Attributes:
        streams: ``[N]`` int64.
        episodes: ``[N]`` int64, the number of each row's next episode.
    """

    def __init__(self, streams: Tensor, episodes: Tensor | None = None) -> None:
        self.streams = streams.cpu()
        self.episodes = (
            np.zeros(len(streams), np.int64) if episodes is None else episodes.cpu().numpy().copy()
        )
        self._ahead: list[list[int]] = [[] for _ in streams]

    def take(self, rows: Sequence[int]) -> list[int]:
        """The task seeds of some rows' next episodes, whose turn it is then no more."""
        seeds = []
        for row in rows:
            if not self._ahead[row]:
                numbers = torch.arange(_AHEAD) + int(self.episodes[row])
                self._ahead[row] = fold(self.streams[row], numbers).tolist()[::-1]
            seeds.append(self._ahead[row].pop())
            self.episodes[row] += 1
        return seeds


class History:
    """The actions of all running episodes.

    Args:
        num_rows: Rows (N).
    """

    def __init__(self, num_rows: int) -> None:
        self._taken: list[Array] = []
        self._start = np.zeros(num_rows, np.int64)
        self._limit = _AHEAD

    def begin(self, rows: Sequence[int]) -> None:
        """Some rows begin an episode."""
        self._start[rows] = len(self._taken)

    def add(self, actions: Array) -> None:
        """All rows ``[N, ...]`` take their next action."""
        self._taken.append(actions)
        if len(self._taken) >= self._limit:
            first = int(self._start.min())
            del self._taken[:first]
            self._start -= first
            self._limit = 2 * len(self._taken) + _AHEAD

    def of(self, lengths: Array, like: Array) -> Array:
        """The first actions of each row's episode: ``[N, max(lengths), ...]``, padded with zeros.

        Args:
            lengths: ``[N]``, actions of each row.
            like: ``[N, ...]``, a batch of actions.
        """
        actions = np.zeros((len(lengths), int(lengths.max(initial=0)), *like.shape[1:]), like.dtype)
        for row, (start, length) in enumerate(zip(self._start.tolist(), lengths.tolist(), strict=True)):
            for step in range(length):
                actions[row, step] = self._taken[start + step][row]
        return actions

    def restore(self, actions: Array) -> None:
        """Goes on from what `of` returned."""
        self._taken = [actions[:, step].copy() for step in range(actions.shape[1])]
        self._start[:] = 0
