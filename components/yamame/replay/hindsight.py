"""Deterministic half of hindsight relabelling: instructions from given goals, and their effects.

`eligible` finds the timesteps that may provide a goal, `merge` puts given goals into an
instruction, `rewrite` changes whole right-padded trajectories ``[B, L]`` to what they would have
been under new instructions. Timestep t consists of the observation at t and the transition out
of t.

Law: `rewrite` returns what the environment would have emitted for the new instruction and the same
actions, because environments and relabelling share the semantics of `yamame.goals`.

Source: AMAGO, arXiv 2310.09971, hindsight instruction relabelling.
"""

from dataclasses import dataclass

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.utils import expand_as_right, unravel_key
from torch import Tensor

from yamame.goals import completion_times, num_goals, show


@dataclass(frozen=True)
class RelabelKeys:
    """Keys of the entries that relabelling reads and rewrites.

    Entries from ``action`` on are rewritten where a batch holds them, and are optional. ``is_init``
    is only checked: each trajectory must begin with the start of its rollout.
    """

    goal: NestedKey = "goal"
    achieved: NestedKey = "achieved"
    achieved_mask: NestedKey = "achieved_mask"
    mask: NestedKey = "mask"
    reward: NestedKey = ("next", "reward")
    terminated: NestedKey = ("next", "terminated")
    action: NestedKey = "action"
    prev_reward: NestedKey = "prev_reward"
    truncated: NestedKey = ("next", "truncated")
    done: NestedKey = ("next", "done")
    success: NestedKey = ("next", "success")
    is_init: NestedKey = "is_init"

    def ends(self) -> list[NestedKey]:
        """Return the keys of the flags that mark the end of an episode."""
        return [self.done, self.terminated, self.truncated]

    def needed(self) -> list[NestedKey]:
        """Return the keys that a batch must hold."""
        return [
            self.goal,
            self.achieved,
            self.achieved_mask,
            self.mask,
            self.reward,
            self.terminated,
        ]


def eligible(times: Tensor, valid: Tensor) -> Tensor:
    """Find the timesteps that may provide a synthetic goal.

    These are the real timesteps after the first, with an achieved goal, at which no goal was
    completed.

    Args:
        times: ``[B, K]`` completion times, L for goals that were not completed.
        valid: ``[B, L, M]`` bool, goals that are achieved at real timesteps.

    Returns:
        ``[B, L]`` bool.
    """
    options = valid.any(-1) & ~_at(times, valid.shape[1])
    # The agent has not achieved what holds at the start.
    options[:, 0] = False
    return options


def merge(
    instruction: Tensor, times: Tensor, drawn_times: Tensor, drawn_goals: Tensor, num_steps: int
) -> Tensor:
    """Write completed and drawn goals into the first slots, in order of time.

    Later slots are not changed. No two times are equal: drawn timesteps are distinct, and no goal
    was completed at any of them.

    Args:
        instruction: ``[B, K, d]``.
        times: ``[B, K]`` int64 completion times; ``num_steps`` for goals that were not completed.
        drawn_times: ``[B, H]`` int64; ``num_steps`` where nothing was drawn.
        drawn_goals: ``[B, H, d]``.
        num_steps: L.

    Returns:
        New instructions ``[B, K, d]``.
    """
    num_slots = instruction.shape[1]
    every_time = torch.cat([times, drawn_times], 1)
    every_goal = torch.cat([instruction, drawn_goals], 1)
    in_order, order = every_time.sort(1)
    goals = every_goal.take_along_dim(order.unsqueeze(-1), 1)
    is_known = (in_order < num_steps).unsqueeze(-1)
    return torch.where(is_known[:, :num_slots], goals[:, :num_slots], instruction)


def rewrite(
    batch: TensorDictBase,
    instruction: Tensor,
    changed: Tensor,
    keys: RelabelKeys,
    *,
    radius: float | None = None,
) -> TensorDictBase:
    """Return the trajectories that the environment would have emitted for other instructions.

    Args:
        batch: ``[B, L]`` whole trajectories.
        instruction: ``[B, K, d]``.
        changed: ``[B]`` bool, trajectories to rewrite.
        keys: Keys of the entries.
        radius: As for `yamame.goals.holds`.

    Returns:
        New batch, trimmed to its longest trajectory.
    """
    num_steps = batch.shape[1]
    changed = changed.unsqueeze(-1)
    step = torch.arange(num_steps, device=changed.device)
    mask = batch.get(keys.mask).reshape(batch.shape)
    achieved = batch.get(keys.achieved)
    achieved_mask = batch.get(keys.achieved_mask)
    times = completion_times(instruction, achieved, achieved_mask, mask, radius=radius)
    # A trajectory ends at the completion of its last goal.
    last_goal = (num_goals(instruction) - 1).clamp(min=0)
    end = times.gather(1, last_goal.unsqueeze(-1))
    is_complete = changed & (end < num_steps)
    real = mask & ~(is_complete & (step > end))
    length = int(real.sum(-1).max())

    # No transition leaves the last timestep.
    cut_observations = (mask & ~real)[:, :length]
    cut_transitions = (mask & is_complete & (step >= end))[:, :length]
    out = _cleared(batch[:, :length], cut_observations, cut_transitions, keys)

    def put(key: NestedKey, new: Tensor, where: Tensor = changed) -> None:
        """Write an entry of the trajectories ``where``, if the batch holds it."""
        value = out.get(key, None)
        if value is not None:
            new = new[:, :length].to(value.dtype).reshape(value.shape)
            out.set(key, torch.where(expand_as_right(where, value), new, value))

    arrived = _at(times, num_steps)
    finished = is_complete & (step == end - 1)
    active = (times.unsqueeze(1) <= step.unsqueeze(-1)).sum(-1)
    goal = show(instruction.unsqueeze(1), active).masked_fill(~real[..., None, None], 0)
    put(keys.mask, real)
    put(keys.goal, goal)
    put(keys.prev_reward, arrived)
    # The reward belongs to the step before arrival. Nothing arrives at timestep 0.
    put(keys.reward, arrived.roll(-1, 1))
    put(keys.terminated, finished, is_complete)
    put(keys.success, finished)
    put(keys.done, _ended(out, keys))
    return out


def _ended(batch: TensorDictBase, keys: RelabelKeys) -> Tensor:
    """Return the transitions that terminate or truncate their episode."""
    done = batch.get(keys.terminated)
    truncated = batch.get(keys.truncated, None)
    if truncated is None:
        return done
    return done | truncated.reshape(done.shape)


def _cleared(
    batch: TensorDictBase, cut_observations: Tensor, cut_transitions: Tensor, keys: RelabelKeys
) -> TensorDictBase:
    """Return a batch ``[B, L]`` with zeros where observations and transitions are cut off."""
    action = unravel_key(keys.action)

    def clear(name: NestedKey, value: Tensor) -> Tensor:
        is_transition = name == action or (isinstance(name, tuple) and name[0] == "next")
        cut = cut_transitions if is_transition else cut_observations
        return value.masked_fill(expand_as_right(cut, value), 0)

    return batch.named_apply(clear, nested_keys=True, batch_size=batch.shape)


def _at(times: Tensor, num_steps: int) -> Tensor:
    """Mark the timesteps ``[B, L]`` that are among ``times`` ``[B, K]``."""
    # One column more, for times of `num_steps`, which stand for "never".
    marks = torch.zeros(len(times), num_steps + 1, dtype=torch.bool, device=times.device)
    return marks.scatter_(1, times, True)[:, :num_steps]
