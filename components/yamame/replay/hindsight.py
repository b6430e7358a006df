"""The deterministic half of hindsight relabelling: new instructions from given goals, and what
follows.

`eligible` says which timesteps may give a goal, `merge` puts given goals into an instruction,
`rewrite` makes a batch of whole right-padded trajectories ``[B, L]`` what it would have been under
new instructions. Timestep t holds what was seen at t and the transition that leaves t.

Law: what `rewrite` returns is what the environment would have emitted had it been given the new
instruction (while the agent acted the same), because environments and relabelling share the
semantics of `yamame.goals`.

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
    """Where a batch of trajectories keeps what relabelling reads and rewrites.

    The entries from ``action`` on are rewritten where the batch holds them and not needed
    otherwise; ``is_init`` is only checked: each trajectory must begin with the start of its
    rollout.
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

    def needed(self) -> list[NestedKey]:
        """The entries without which a batch cannot be relabelled."""
        return [
            self.goal,
            self.achieved,
            self.achieved_mask,
            self.mask,
            self.reward,
            self.terminated,
        ]


def eligible(times: Tensor, valid: Tensor) -> Tensor:
    """Timesteps ``[B, L]`` that may give a synthetic goal.

    These are the real ones after the first, with an achieved goal, at which no goal was completed.

    Args:
        times: ``[B, K]`` completion times, L where never.
        valid: ``[B, L, M]`` bool, which goals are achieved at real timesteps.
    """
    options = valid.any(-1) & ~_at(times, valid.shape[1])
    options[:, 0] = False
    return options


def merge(
    instruction: Tensor, times: Tensor, drawn_times: Tensor, drawn_goals: Tensor, num_steps: int
) -> Tensor:
    """Writes completed and drawn goals, in order of time, into the first slots; later slots stay as
    they are.

    No two times are equal: drawn timesteps are distinct, and no goal was completed at any of them.

    Args:
        instruction: ``[B, K, d]``.
        times: ``[B, K]`` int64, when each of its goals was completed; ``num_steps`` where never.
        drawn_times, drawn_goals: ``[B, H]`` int64, ``num_steps`` where nothing was drawn, and
            ``[B, H, d]``.
        num_steps: L.
    """
    num_slots = instruction.shape[1]
    in_order, order = torch.cat([times, drawn_times], 1).sort(1)
    goals = torch.cat([instruction, drawn_goals], 1).take_along_dim(order.unsqueeze(-1), 1)
    known = (in_order < num_steps).unsqueeze(-1)
    return torch.where(known[:, :num_slots], goals[:, :num_slots], instruction)


def rewrite(
    batch: TensorDictBase,
    instruction: Tensor,
    changed: Tensor,
    keys: RelabelKeys,
    *,
    radius: float | None = None,
) -> TensorDictBase:
    """What the environment would have emitted for other instructions, in a new batch.

    The new batch is trimmed to its longest mask.

    Args:
        batch: ``[B, L]`` whole trajectories.
        instruction: ``[B, K, d]``.
        changed: ``[B]`` bool, the trajectories to rewrite; the others stay as they are.
        keys: Names of the entries.
        radius: As for `yamame.goals.holds`.
    """
    num_steps, changed = batch.shape[1], changed.unsqueeze(-1)
    step = torch.arange(num_steps, device=changed.device)
    mask = batch.get(keys.mask).reshape(batch.shape)
    achieved = batch.get(keys.achieved), batch.get(keys.achieved_mask)
    times = completion_times(instruction, *achieved, mask, radius=radius)
    last_goal = (num_goals(instruction) - 1).clamp(min=0).unsqueeze(-1)
    end = times.gather(1, last_goal)
    complete = changed & (end < num_steps)
    kept = mask & ~(complete & (step > end))
    beyond, leaving = mask & ~kept, mask & complete & (step >= end)
    length = int(kept.sum(-1).max())

    def clear(name: NestedKey, value: Tensor) -> Tensor:
        transition = name == unravel_key(keys.action) or (
            isinstance(name, tuple) and name[0] == "next"
        )
        cut = leaving if transition else beyond
        return value.masked_fill(expand_as_right(cut[:, :length], value), 0)

    out = batch[:, :length].named_apply(clear, nested_keys=True, batch_size=(len(batch), length))

    def put(key: NestedKey, new: Tensor, where: Tensor = changed) -> None:
        value = out.get(key, None)
        if value is not None:
            new = new[:, :length].to(value.dtype).reshape(value.shape)
            out.set(key, torch.where(expand_as_right(where, value), new, value))

    arrived = _at(times, num_steps)
    finish = complete & (step == end - 1)
    active = (times.unsqueeze(1) <= step.unsqueeze(-1)).sum(-1)
    put(keys.mask, kept)
    put(keys.goal, show(instruction.unsqueeze(1), active).masked_fill(~kept[..., None, None], 0))
    put(keys.prev_reward, arrived)
    put(keys.reward, arrived.roll(-1, 1))  # nothing arrives at timestep 0
    put(keys.terminated, finish, complete)
    put(keys.success, finish)
    ended = out.get(keys.terminated)
    if out.get(keys.truncated, None) is not None:
        ended = ended | out.get(keys.truncated).reshape(ended.shape)
    put(keys.done, ended)
    return out


def _at(times: Tensor, num_steps: int) -> Tensor:
    """Whether a timestep is one of the ``times`` ``[B, K]``, which are ``num_steps`` where never:
    ``[B, L]`` bool.
    """
    marks = torch.zeros(len(times), num_steps + 1, dtype=torch.bool, device=times.device)
    return marks.scatter_(1, times, True)[:, :num_steps]
