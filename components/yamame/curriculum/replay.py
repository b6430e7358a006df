"""Replay that shows every finished episode to a curriculum before it is stored."""

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from yamame.checks import PositiveInt, check_bounds, require
from yamame.curriculum.base import PlayedEpisodes, TDErrors

PLAYED_SEED = ("next", "played_seed")
"""Entry of finished trajectories with the seed of their task."""
_TIMESTEPS_AT_ONCE = 16384
"""Timesteps, including padding, that are evaluated at once, if no trajectory is longer."""


class ObservedReplay:
    """Replay of a collector whose environment writes ``played_seed`` (`yamame_envs.CurriculumEnv`).

    Args:
        replay: Stores the trajectories.
        observe: Takes finished episodes, and returns a mask of those to store, or None for all.
        td_errors: Returns the temporal-difference errors ``[E, L - 1]`` of trajectories ``[E, L]``
            on the CPU, 0 at padding (`yamame.training.Learner.td_errors`).
        discount: Discount factor of the values.
        max_steps: Largest number of transitions that are evaluated: the last ones of an episode.
    """

    @check_bounds
    def __init__(
        self,
        replay: Any,
        *,
        observe: Callable[[PlayedEpisodes], Tensor | None],
        td_errors: Callable[[TensorDictBase], Tensor],
        discount: float,
        max_steps: PositiveInt,
    ) -> None:
        self.replay = replay
        self._observe = observe
        self._td_errors = td_errors
        self._discount = discount
        self._max_steps = max_steps

    def __len__(self) -> int:
        return len(self.replay)

    @property
    def fields(self) -> Any:
        """Entries of the stored trajectories, None where the replay does not list them."""
        return getattr(self.replay, "fields", None)

    def extend(self, data: TensorDictBase) -> None:
        """Show trajectories ``[E, L]`` to the curriculum, and store those that it returns.

        Raises:
            ArgumentError: The trajectories have no ``played_seed``, or the mask has another shape.
        """
        seeds = data.get(PLAYED_SEED, None)
        keys = sorted(map(str, data.keys(True, True)))
        condition = f"hold {PLAYED_SEED}, which yamame_envs.CurriculumEnv writes"
        require("ObservedReplay", "the trajectories", keys, seeds is not None, condition)
        trajectories = data.exclude(PLAYED_SEED)
        # The seed is constant; the last timestep of a trajectory has no transition.
        episodes = PlayedEpisodes(seeds.flatten(1)[:, 0].clone(), trajectories, self._estimate)
        kept = self._observe(episodes)
        if kept is not None:
            shape = (len(trajectories),)
            is_mask = kept.dtype == torch.bool and kept.shape == shape
            got = f"{kept.dtype} {tuple(kept.shape)}"
            condition = f"return a mask torch.bool {shape}, or None"
            require("Curriculum", "observe", got, is_mask, condition)
            trajectories = trajectories[kept]
        if len(trajectories):
            self.replay.extend(trajectories)

    def _estimate(self, trajectories: TensorDictBase) -> TDErrors:
        """Compute the errors of trajectories ``[E, L]``, those of similar length together."""
        mask = trajectories.get("mask").flatten(1)
        valid = mask[:, 1:].clone()
        errors = torch.zeros(valid.shape)
        lengths = valid.sum(-1)
        chunk: list[int] = []
        longest = 0
        for row in lengths.argsort(stable=True).tolist():
            steps = min(int(lengths[row]), self._max_steps)
            if chunk and (len(chunk) + 1) * (steps + 1) > _TIMESTEPS_AT_ONCE:
                self._estimate_rows(trajectories, chunk, lengths, longest, errors, valid)
                chunk = []
            chunk.append(row)
            longest = steps
        self._estimate_rows(trajectories, chunk, lengths, longest, errors, valid)
        return TDErrors(errors, valid, self._discount)

    def _estimate_rows(
        self,
        trajectories: TensorDictBase,
        rows: list[int],
        lengths: Tensor,
        longest: int,
        errors: Tensor,
        valid: Tensor,
    ) -> None:
        """Write the errors of some rows, and mark the transitions that were evaluated."""
        index = torch.tensor(rows)
        first = (lengths[index] - longest).clamp(min=0).unsqueeze(-1)
        place = first + torch.arange(longest + 1)
        part = TensorDict({}, [len(rows), longest + 1], device="cpu")
        for key, value in trajectories.items(True, True):
            part.set(key, value[index.unsqueeze(-1), place])
        errors[index.unsqueeze(-1), place[:, :-1]] = self._td_errors(part)
        # Transitions before the evaluated ones have no error.
        valid[index] &= torch.arange(valid.shape[1]) >= first
