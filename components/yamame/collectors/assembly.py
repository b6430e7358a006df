"""Puts steps of parallel environments together into whole trajectories.

Steps come in blocks ``[S, N]`` (time, env) and episodes end at different times in every env. An
episode leaves as one trajectory of a right-padded batch ``[E, L]`` in T+1 packing: one column per
timestep, the terminal observation last, ``mask`` True on real timesteps. What is not finished stays
here until a later block ends it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, pad
from tensordict.utils import expand_as_right
from torch import Tensor


class TrajectoryAssembler:
    """Collects the unfinished episodes of N envs. No step is lost or given out twice."""

    def __init__(self) -> None:
        self._open: TensorDictBase | None = None  # [N, C], of env n its first _length[n] columns
        self._length: Tensor | None = None  # [N]

    def add(
        self, steps: TensorDictBase, done: Tensor, terminal: TensorDictBase | None
    ) -> TensorDictBase:
        """Adds a block of consecutive steps; returns the episodes that ended in it, in order of
        step and then env.

        Args:
            steps: ``[S, N]``, what was seen at each step and the transition that left it.
            done: ``[S, N]`` bool, the episode ended with this transition.
            terminal: ``[E]``, the last observation of every ended episode, ordered as
                ``done.nonzero()``. May lack keys of ``steps``: those are zero at the last timestep.
                None when no episode ended.

        Returns:
            ``[E, L]`` with ``mask`` ``[E, L, 1]``; E is 0 when no episode ended.
        """
        num_steps, num_envs = done.shape
        length = self._length
        if length is None:
            length = torch.zeros(num_envs, dtype=torch.int64, device=done.device)
        self._open = _with_columns(self._open, steps, int(length.max()) + num_steps)
        envs = torch.arange(num_envs, device=done.device)
        columns = length + torch.arange(num_steps, device=done.device).unsqueeze(-1)
        for key in steps.keys(True, True):
            self._open.get(key)[envs, columns] = steps.get(key)

        end_step, end_env = done.nonzero(as_tuple=True)
        end = length[end_env] + end_step
        first = [0] * num_envs  # column at which the present episode of every env begins
        start = []
        for env, column in zip(end_env.tolist(), end.tolist(), strict=True):
            start.append(first[env])
            first[env] = column + 1
        finished = _gather(self._open, end_env, end.new_tensor(start), end, terminal)

        following = length.new_tensor(first)
        self._length = length + num_steps - following
        _move_to_front(self._open, self._length, following)
        return finished

    @property
    def num_open(self) -> int:
        """Steps of unfinished episodes."""
        return 0 if self._length is None else int(self._length.sum())

    @property
    def num_open_episodes(self) -> int:
        """Unfinished episodes of which there are steps."""
        return 0 if self._length is None else int((self._length > 0).sum())

    def state_dict(self) -> dict[str, Any]:
        """The unfinished episodes."""
        if self._open is None or self._length is None:
            return {"steps": None, "length": None}
        steps = self._open[:, : int(self._length.max())].clone()
        beyond = torch.arange(steps.shape[1], device=self._length.device) >= self._length.unsqueeze(
            -1
        )
        for value in steps.values(
            True, True
        ):  # beyond its end an episode has what an earlier one left there
            value[beyond] = 0
        return {"steps": steps, "length": self._length}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict`."""
        steps, length = state["steps"], state["length"]
        self._open = None if steps is None else steps.cpu().clone()
        self._length = None if length is None else length.cpu()


def _with_columns(
    held: TensorDictBase | None, steps: TensorDictBase, columns: int
) -> TensorDictBase:
    """``held`` ``[N, C]`` with at least so many columns: itself, or a larger copy."""
    if held is None:
        held = steps[:0].transpose(0, 1)
    width = held.shape[1]
    return held if width >= columns else pad(held, [0, 0, 0, max(columns, 2 * width) - width])


def _move_to_front(held: TensorDictBase, length: Tensor, first: Tensor) -> None:
    """Lets the open episodes that begin at columns ``first`` ``[N]`` begin at column 0."""
    envs = first.nonzero().squeeze(-1)
    if not len(envs):
        return
    column = torch.arange(int(length[envs].max()), device=envs.device)
    source = (first[envs].unsqueeze(-1) + column).clamp(max=held.shape[1] - 1)
    for value in held.values(True, True):
        value[envs, : len(column)] = value[envs.unsqueeze(-1), source]


def _gather(
    block: TensorDictBase, env: Tensor, start: Tensor, end: Tensor, terminal: TensorDictBase | None
) -> TensorDictBase:
    """Cuts E episodes ``block[env, start : end + 1]`` and appends their terminal timestep:
    ``[E, L]``.
    """
    num_transitions = end - start + 1
    longest = int(num_transitions.max()) if len(env) else 0
    column = torch.arange(longest + 1, device=env.device)
    real = column < num_transitions.unsqueeze(-1)
    last = column == num_transitions.unsqueeze(-1)
    source = (start.unsqueeze(-1) + column).clamp(max=block.shape[1] - 1)
    batch = TensorDict({}, batch_size=real.shape, device=block.device)
    for key in block.keys(True, True):
        value = block.get(key)[env.unsqueeze(-1), source]
        value = value.masked_fill(~expand_as_right(real, value), 0)
        final = None if terminal is None else terminal.get(key, None)
        if final is not None:
            value[last] = final
        batch.set(key, value)
    return batch.set("mask", (real | last).unsqueeze(-1))
