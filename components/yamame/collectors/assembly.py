"""Assembly of the steps of parallel environments into whole trajectories.

Steps come in blocks ``[S, N]`` (time, env), and episodes end at different times in every env. An
episode becomes one trajectory of a right-padded batch ``[E, L]`` in T+1 packing: one column per
timestep, the terminal observation last, ``mask`` True on real timesteps. Steps of unfinished
episodes are kept until a later block ends them.
"""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, pad
from tensordict.utils import expand_as_right
from torch import Tensor


class TrajectoryAssembler:
    """Collects the unfinished episodes of N envs. Every step is returned exactly once."""

    def __init__(self) -> None:
        self._open: TensorDictBase | None = None  # [N, C], of env n its first _length[n] columns
        self._length: Tensor | None = None  # [N]

    def add(
        self, steps: TensorDictBase, done: Tensor, terminal: TensorDictBase | None
    ) -> TensorDictBase:
        """Add a block of consecutive steps and return the episodes that ended in it.

        Args:
            steps: ``[S, N]``, the observation at each step and the transition from it.
            done: ``[S, N]`` bool, the episode ended with this transition.
            terminal: ``[E]``, the last observation of every ended episode, ordered as
                ``done.nonzero()``. May lack keys of ``steps``: those are zero at the last timestep.
                None when no episode ended.

        Returns:
            ``[E, L]`` with ``mask`` ``[E, L, 1]``, ordered by step and then env; E is 0 when no
            episode ended.
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
        # Column at which the present episode of every env begins. A loop, because an env may end
        # several episodes in one block.
        first = [0] * num_envs
        start = []
        for env, column in zip(end_env.tolist(), end.tolist(), strict=True):
            start.append(first[env])
            first[env] = column + 1
        finished = _gather(self._open, end_env, end.new_tensor(start), end, terminal)

        first_open = length.new_tensor(first)
        self._length = length + num_steps - first_open
        _move_to_front(self._open, self._length, first_open)
        return finished

    @property
    def num_open(self) -> int:
        """Number of steps of unfinished episodes."""
        return 0 if self._length is None else int(self._length.sum())

    @property
    def num_open_episodes(self) -> int:
        """Number of unfinished episodes with at least one step."""
        return 0 if self._length is None else int((self._length > 0).sum())

    def state_dict(self) -> dict[str, Any]:
        """Return the unfinished episodes."""
        if self._open is None or self._length is None:
            return {"steps": None, "length": None}
        longest = int(self._length.max())
        steps = self._open[:, :longest].clone()
        column = torch.arange(longest, device=self._length.device)
        is_beyond_end = column >= self._length.unsqueeze(-1)
        # Columns beyond the end still hold an earlier episode; states of equal runs shall be equal.
        for value in steps.values(True, True):
            value[is_beyond_end] = 0
        return {"steps": steps, "length": self._length}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self._open = None
        self._length = None
        if state["steps"] is not None:
            # A copy, because `add` writes into it.
            self._open = state["steps"].cpu().clone()
            self._length = state["length"].cpu()


def _with_columns(
    held: TensorDictBase | None, steps: TensorDictBase, columns: int
) -> TensorDictBase:
    """Return ``held`` ``[N, C]``, or a larger copy if it has fewer than ``columns`` columns."""
    if held is None:
        held = steps[:0].transpose(0, 1)
    width = held.shape[1]
    if width >= columns:
        return held
    # Doubled, so that the cost of copies stays proportional to the number of steps.
    new_width = max(columns, 2 * width)
    return pad(held, [0, 0, 0, new_width - width])


def _move_to_front(held: TensorDictBase, length: Tensor, first: Tensor) -> None:
    """Move the open episodes that begin at columns ``first`` ``[N]`` to column 0."""
    envs = first.nonzero().squeeze(-1)
    if not len(envs):
        return
    longest = int(length[envs].max())
    column = torch.arange(longest, device=envs.device)
    source = first[envs].unsqueeze(-1) + column
    # Shorter episodes copy some columns beyond their end, which are never read.
    source = source.clamp(max=held.shape[1] - 1)
    for value in held.values(True, True):
        value[envs, :longest] = value[envs.unsqueeze(-1), source]


def _gather(
    block: TensorDictBase, env: Tensor, start: Tensor, end: Tensor, terminal: TensorDictBase | None
) -> TensorDictBase:
    """Return E episodes ``block[env, start : end + 1]`` with terminal timesteps, ``[E, L]``."""
    num_transitions = end - start + 1
    longest = int(num_transitions.max()) if len(env) else 0
    column = torch.arange(longest + 1, device=env.device)
    is_real = column < num_transitions.unsqueeze(-1)
    is_last = column == num_transitions.unsqueeze(-1)
    # Padding reads columns that may not exist; it is zeroed below.
    source = (start.unsqueeze(-1) + column).clamp(max=block.shape[1] - 1)
    batch = TensorDict({}, batch_size=is_real.shape, device=block.device)
    for key in block.keys(True, True):
        value = block.get(key)[env.unsqueeze(-1), source]
        value = value.masked_fill(~expand_as_right(is_real, value), 0)
        last_value = None if terminal is None else terminal.get(key, None)
        if last_value is not None:
            value[is_last] = last_value
        batch.set(key, value)
    mask = (is_real | is_last).unsqueeze(-1)
    return batch.set("mask", mask)
